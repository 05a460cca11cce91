"""The size of the pool: asked for now and then, in the background, and the last answer holds."""

from __future__ import annotations

import asyncio

import pytest

from federation.transfer import pool as module
from federation.transfer.pool import PoolSize
from local_group.admin import Segment
from local_group.process_errors import AdminError
from tests.support.wait import wait_for_async


class Master:
    def __init__(self) -> None:
        self.asked = 0
        self.sizes: list[tuple[int, str]] | None = [(5, "OK"), (7, "OK"), (100, "LOST")]
        self.gate = asyncio.Event()
        self.gate.set()

    async def segments(self) -> list[Segment]:
        self.asked += 1
        await self.gate.wait()
        if self.sizes is None:
            raise AdminError("it does not answer")
        return [Segment("s", "h:1", size, 0, status) for size, status in self.sizes]


async def test_segments_in_use_are_the_pool_and_are_asked_for_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    master, told = Master(), list[int]()
    pool = PoolSize(master)
    pool.tell = told.append
    master.gate.clear()
    for _ in range(5):
        pool.look()  # one question at a time, and nobody waits for it
    master.gate.set()
    await wait_for_async(lambda: told == [12], 5, "the size")
    pool.look()
    await asyncio.sleep(0.01)
    assert master.asked == 1
    monkeypatch.setattr(module, "REFRESH_SECONDS", 0.0)
    pool._next = 0.0
    master.sizes = [(20, "OK")]
    pool.look()
    await wait_for_async(lambda: told == [12, 20], 5, "the new size")


async def test_a_master_that_does_not_answer_changes_nothing_and_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)
    master, told = Master(), list[int]()
    pool = PoolSize(master)
    pool.tell = told.append
    master.sizes = None
    pool.look()
    await wait_for_async(lambda: master.asked == 1 and pool._looking is None, 5, "the error")
    master.sizes = [(3, "OK")]
    pool.look()
    await wait_for_async(lambda: told == [3], 5, "the size")
