"""Threads beside an event loop: as many as there will ever be, from the start."""

from __future__ import annotations

import asyncio
import threading

from federation.aside import ASIDE_THREADS, threads_aside


def of_the_pool() -> set[int]:
    return {t.ident or 0 for t in threading.enumerate() if t.name.startswith("aside")}


async def test_all_run_from_the_start_and_no_more_come() -> None:
    asyncio.get_running_loop().set_default_executor(threads_aside())
    begun = of_the_pool()
    assert len(begun) == ASIDE_THREADS
    inside, go, most, lock = 0, threading.Event(), 0, threading.Lock()

    def work() -> int:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
            if inside == ASIDE_THREADS:
                go.set()
        assert go.wait(10)
        with lock:
            inside -= 1
        return threading.get_ident()

    used = await asyncio.gather(*(asyncio.to_thread(work) for _ in range(3 * ASIDE_THREADS)))
    assert set(used) <= begun
    assert most == ASIDE_THREADS
    assert of_the_pool() == begun
