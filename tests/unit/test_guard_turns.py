"""Serves that wait for memory: in order of class, no longer than the deadline."""

from __future__ import annotations

import asyncio
import random
import time

from federation.config import Limits
from federation.limits.guards import Guards
from federation.limits.names import GuardName
from federation.limits.ticket import Cost, Ticket
from federation.transfer.fair import PullClass
from federation.transfer.turns import Turns
from tests.support.wait import wait_for_async

PULL = Cost()
MIB = 1 << 20


def soon(seconds: float = 5.0) -> float:
    return asyncio.get_running_loop().time() + seconds


async def test_memory_that_another_peer_gives_back_is_noticed() -> None:
    peers = Guards(
        Limits(bounce_bytes=64 * MIB, block_bytes_max=MIB), ["west", "east"], random.Random(1)
    )
    west, east = (peers[name].incoming for name in ("west", "east"))
    turns = Turns([west, east])
    now = time.monotonic()
    one, two = west.admit(PULL, now), east.admit(PULL, now)
    assert isinstance(one, Ticket)
    assert isinstance(two, Ticket)
    assert one.hold(GuardName.WINDOW, 40 * MIB, now) is None
    waiting = asyncio.create_task(turns.hold(east, two, GuardName.WINDOW, 30 * MIB, soon()))
    await asyncio.sleep(0)
    assert not waiting.done()
    one.done(now)
    assert await waiting is None
    refusal = await turns.hold(east, two, GuardName.WINDOW, 40 * MIB, soon(0.02))
    assert refusal is not None
    assert east.refusals == {GuardName.WINDOW: 1}


async def test_who_waits_for_memory_is_served_by_class_and_then_as_he_came() -> None:
    limits = Limits(bounce_bytes=16 * MIB, block_bytes_max=MIB)
    west = Guards(limits, ["west"], random.Random(1))["west"].incoming
    turns = Turns([west])
    now = time.monotonic()
    tickets = [west.admit(PULL, now) for _ in range(5)]
    held, *others = [ticket for ticket in tickets if isinstance(ticket, Ticket)]
    assert held.hold(GuardName.WINDOW, 16 * MIB, now) is None
    served: list[int] = []

    async def serve(number: int, ticket: Ticket, pull_class: PullClass) -> None:
        assert (
            await turns.hold(west, ticket, GuardName.WINDOW, 16 * MIB, soon(), pull_class) is None
        )
        served.append(number)
        ticket.done(time.monotonic())

    classes = [PullClass.PREFETCH, PullClass.BATCH, PullClass.FIRST_TOKEN, PullClass.BATCH]
    tasks = [
        asyncio.create_task(serve(number, ticket, pull_class))
        for number, (ticket, pull_class) in enumerate(zip(others, classes, strict=True))
    ]
    await asyncio.sleep(0)
    held.done(time.monotonic())
    await wait_for_async(lambda: len(served) == 4, 5, "all to be served")
    await asyncio.gather(*tasks)
    # The prefetch has as much of a claim as the first batch, and is served before the second.
    assert (served[0], served[-1]) == (2, 3)
