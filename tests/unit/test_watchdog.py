"""What holds up an event loop is found, with the place where it was."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from federation.counters import counters
from federation.peers.details import TEXT_CHARS
from federation.watchdog import (
    KEPT,
    LOG_SECONDS,
    STACK_CHARS,
    STALL_SECONDS,
    UNSEEN,
    StallBook,
    Watchdog,
    stack_of,
)


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    found = Watchdog("test").install()
    yield found
    found.stop()


def hold_up(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def test_who_holds_up_the_loop_is_named(
    watchdog: Watchdog, caplog: pytest.LogCaptureFixture
) -> None:
    name = 'moonmesh_loop_stalls_total{process="test"}'
    before = counters.snapshot().get(name, 0)

    async def main() -> None:
        await asyncio.sleep(0.01)
        hold_up(0.3)
        await asyncio.sleep(0.01)

    asyncio.run(main())
    stalls = watchdog.book.status()["latest"]
    ours = [stall for stall in stalls if "hold_up" in stall["stack"]]
    assert len(ours) == 1, stalls
    assert ours[0]["stack"].startswith("tests/unit/test_watchdog.py:")
    assert " < tests/unit/test_watchdog.py:" in ours[0]["stack"], "and who called it"
    assert ours[0]["ms"] >= 300
    assert ours[0]["cpu_ms"] > 0
    assert counters.snapshot()[name] - before == watchdog.book.count
    assert "the event loop stood still for" in caplog.text


def test_a_loop_that_waits_does_not_stall(watchdog: Watchdog) -> None:
    async def main() -> None:
        await asyncio.sleep(4 * STALL_SECONDS)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, time.sleep, 4 * STALL_SECONDS)

    asyncio.run(main())
    assert not any("sleep" in stall["stack"] for stall in watchdog.book.status()["latest"])


def test_of_many_stalls_the_latest_are_kept_and_few_are_logged() -> None:
    book = StallBook("test")
    lines = [book.note(0.1, 0.0, f"place {n}", n * 0.1, n * 0.1) for n in range(150)]
    assert [n for n, line in enumerate(lines) if line] == [0, int(LOG_SECONDS / 0.1)]
    assert f"; {int(LOG_SECONDS / 0.1)} since the last such line" in lines[100]
    assert len(book.status()["latest"]) == KEPT
    assert book.status()["latest"][-1]["stack"] == "place 149"
    assert book.status()["count"] == 150


def test_a_stack_is_short_enough_for_status() -> None:
    def deep(n: int) -> str:
        return deep(n - 1) if n else stack_of(sys._getframe())

    assert len(deep(50)) <= STACK_CHARS <= TEXT_CHARS
    assert len(UNSEEN) <= TEXT_CHARS
    assert stack_of(None) == ""


def test_it_costs_next_to_nothing_while_nothing_happens(watchdog: Watchdog) -> None:
    used: list[float] = []

    async def main() -> None:
        thread = next(t for t in threading.enumerate() if t.name == "watchdog")
        clock = time.pthread_getcpuclockid(thread.ident or 0)
        before = time.clock_gettime(clock)
        await asyncio.sleep(2.0)
        used.append(time.clock_gettime(clock) - before)

    asyncio.run(main())
    assert used[0] / 2.0 < 0.002, "of a core; on a busy machine each look costs more"
