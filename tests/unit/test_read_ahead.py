"""The next window of an answer is read while one is sent: one, where there is memory; nothing stays held."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import pytest

from federation.config import Limits
from federation.identity import block_digest
from federation.keys.naming import Naming
from federation.limits.guards import Guards
from federation.limits.names import GuardName
from federation.limits.ticket import Cost, Ticket
from federation.transfer.server import BlockServer, UnwellError
from local_group.holdings import Holdings
from local_group.outcome import Outcome, Status
from local_group.store import ReadBatch
from tests.support.wait import wait_for_async
from tests.support.wire import DATA, FP, MIB, Memory

KEYS = [f"k{n}" for n in range(8)]


class Owner:
    """A server of blocks of 1 MiB, two in a window, and one pull of a peer."""

    def __init__(self, **limits: Any) -> None:
        self.limits = Limits(serve_window_bytes=2 * MIB, **limits)
        self.guards = Guards(self.limits, ["west"], random.Random(1))
        self.guard = self.guards["west"].incoming
        self.memory = Memory(1 << 40)
        holdings = Holdings(blocks_max=100, hop_limit=1, on_change=lambda change: None)
        for key in KEYS:
            assert holdings.report(FP, key, MIB, block_digest(FP, key, memoryview(DATA)), 0.0)
        self.server = BlockServer(
            store=self.memory,
            master=self.memory,
            holdings=holdings,
            naming=Naming(()),
            limits=self.limits,
        )
        self.server.use(self.guards)
        ticket = self.guard.admit(Cost(), time.monotonic())
        assert isinstance(ticket, Ticket)
        self.ticket = ticket

    def serve(
        self, keys: Sequence[str] = KEYS, credit: Callable[[], float] = lambda: float("inf")
    ) -> AsyncGenerator[bytes, None]:
        until = asyncio.get_running_loop().time() + 10
        sizes = [MIB] * len(keys)
        return self.server.serve(FP, keys, sizes, self.guard, self.ticket, until, credit=credit)

    @property
    def held(self) -> int:
        return int(self.guard.status(time.monotonic())["memory_bytes"])


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_one_window_is_read_while_another_is_sent_and_no_more() -> None:
    owner = Owner()
    answer = owner.serve()
    sizes = [len(await anext(answer))]
    await settled()
    assert owner.memory.reads == 2
    assert owner.held == 4 * MIB
    sizes.append(len(await anext(answer)))
    await settled()
    assert owner.memory.reads == 2, "of the window after the next nothing is read yet"
    async for message in answer:
        sizes.append(len(message))
        assert owner.held <= 4 * MIB
    assert len(sizes) == 9, "a block of a message's size is one message, and the end is one"
    assert owner.memory.reads == 4
    assert owner.held == 0


async def test_what_may_not_be_sent_yet_is_not_read() -> None:
    owner, left = Owner(), [float(MIB)]
    answer = owner.serve(credit=lambda: left[0])
    await anext(answer)
    await settled()
    assert owner.memory.reads == 1
    left[0] = 2 * MIB
    await anext(answer)
    await settled()
    assert owner.memory.reads == 2, "what may be sent reaches into the next window"
    await answer.aclose()
    assert owner.held == 0


async def test_without_memory_for_two_they_come_one_by_one() -> None:
    owner = Owner(bounce_bytes=16 * MIB, block_bytes_max=MIB)
    other = owner.guard.admit(Cost(), time.monotonic())
    assert isinstance(other, Ticket)
    assert other.hold(GuardName.WINDOW, 13 * MIB, time.monotonic()) is None
    answer = owner.serve()
    await anext(answer)
    await settled()
    assert owner.memory.reads == 1
    left = [len(message) async for message in answer]
    assert len(left) >= 8
    assert owner.memory.reads == 4
    assert owner.guard.refusals == {}, "nobody was refused: it was not its turn yet"


async def test_who_waits_for_memory_goes_before_what_is_read_ahead() -> None:
    owner = Owner(bounce_bytes=16 * MIB, block_bytes_max=MIB)
    other = owner.guard.admit(Cost(), time.monotonic())
    assert isinstance(other, Ticket)
    assert other.hold(GuardName.WINDOW, 11 * MIB, time.monotonic()) is None
    answer = owner.serve()
    third = owner.guard.admit(Cost(), time.monotonic())
    assert isinstance(third, Ticket)
    until = asyncio.get_running_loop().time() + 10
    turns = owner.server._turns
    waiting = asyncio.create_task(turns.hold(owner.guard, third, GuardName.WINDOW, 8 * MIB, until))
    await settled()
    first = asyncio.create_task(anext(answer))
    await settled()
    assert not first.done(), "it stands in line behind the one that came before"
    other.done(time.monotonic())
    assert await waiting is None
    await first
    await answer.aclose()


async def test_a_pull_that_ends_gives_back_what_was_read_for_it() -> None:
    owner = Owner()
    answer = owner.serve()
    await anext(answer)
    await settled()
    assert owner.held == 4 * MIB
    await answer.aclose()
    assert owner.held == 0


async def test_a_pull_that_ends_does_not_wait_for_mooncake() -> None:
    owner = Owner()
    answer = owner.serve()
    await anext(answer)
    owner.memory.gate.clear()
    await settled()
    assert owner.memory.reads == 2
    await asyncio.wait_for(answer.aclose(), 5)
    assert owner.held == 0
    await wait_for_async(lambda: len(asyncio.all_tasks()) == 1, 5, "no task to be left")


async def test_what_fails_ahead_is_told_after_what_was_read_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owner = Owner()
    read = owner.memory.read

    async def fails(keys: Sequence[str], sizes: Sequence[int], timeout: float) -> ReadBatch:
        batch = await read(keys, sizes, timeout)
        if owner.memory.reads == 2:
            return ReadBatch([Outcome(Status.ERROR, 0, -900)] * len(keys))
        return batch

    monkeypatch.setattr(owner.memory, "read", fails)
    came: list[int] = []

    async def take() -> None:
        async for message in owner.serve():
            came.append(len(message))

    with pytest.raises(UnwellError):
        await take()
    assert sum(came) >= 2 * MIB
    assert owner.held == 0
