"""Waiting for one's turn: in order, no longer than the deadline, and only for what passes."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from federation.config import Limits
from federation.limits.guard import Guard
from federation.limits.guards import Guards, PeerGuards
from federation.limits.names import GuardName
from federation.limits.ticket import Cost, Refusal, Ticket
from federation.transfer.turns import Turns
from tests.support.wait import wait_for_async

PULL = Cost()


def outgoing(**limits: Any) -> Guard:
    return PeerGuards(Limits(**limits), "west", random.Random(1)).outgoing


def soon(seconds: float = 5.0) -> float:
    return asyncio.get_running_loop().time() + seconds


async def let_in(turns: Turns, guard: Guard, until: float | None = None) -> Ticket:
    answer = await turns.admit(guard, PULL, soon() if until is None else until)
    assert isinstance(answer, Ticket), answer
    return answer


async def test_who_waits_is_let_in_when_a_place_is_free_in_the_order_of_asking() -> None:
    turns, guard = Turns(), outgoing(pulls_per_peer=1)
    first = await let_in(turns, guard)
    order: list[int] = []
    release: list[Ticket] = [first]

    async def wait(number: int) -> None:
        release.append(await let_in(turns, guard))
        order.append(number)

    tasks = [asyncio.create_task(wait(number)) for number in range(4)]
    for number in range(4):
        await asyncio.sleep(0)
        assert order == list(range(number))
        release.pop().done(time.monotonic())
        await wait_for_async(lambda n=number: len(order) == n + 1, 5, "the next")  # type: ignore[misc]
    assert order == [0, 1, 2, 3]
    await asyncio.gather(*tasks)
    assert guard.refusals == {}, "who waited and was let in was not refused"


async def test_who_comes_later_does_not_get_a_place_before_those_who_wait() -> None:
    turns, guard = Turns(), outgoing(pulls_per_peer=1)
    first = await let_in(turns, guard)
    waiting = asyncio.create_task(let_in(turns, guard))
    await asyncio.sleep(0)
    first.done(time.monotonic())
    late = await turns.admit(guard, PULL, soon(0.05))
    assert isinstance(late, Refusal)
    assert (await waiting).open


async def test_who_waits_leaves_at_his_deadline_and_is_counted() -> None:
    turns, guard = Turns(), outgoing(pulls_per_peer=1)
    await let_in(turns, guard)
    began = time.monotonic()
    until = soon(0.05)
    answers = await asyncio.gather(*(turns.admit(guard, PULL, until) for _ in range(3)))
    assert time.monotonic() - began < 2
    assert [a.reason for a in answers if isinstance(a, Refusal)] == [GuardName.STREAMS] * 3
    assert guard.refusals == {GuardName.STREAMS: 3}


async def test_what_does_not_pass_is_told_at_once() -> None:
    turns, guard = Turns(), outgoing(peer_breaker_failures=1, peer_breaker_open_ms=60_000)
    (await let_in(turns, guard)).done(time.monotonic(), ok=False)
    answer = await turns.admit(guard, PULL, soon(60))
    assert isinstance(answer, Refusal)
    assert answer.reason is GuardName.BREAKER
    assert guard.refusals == {GuardName.BREAKER: 1}


async def test_a_rate_is_waited_for_though_nobody_releases_anything() -> None:
    turns, guard = Turns(), outgoing(peer_requests_per_s=50)
    for _ in range(50):
        (await let_in(turns, guard)).done(time.monotonic())
    began = time.monotonic()
    for _ in range(5):
        (await let_in(turns, guard)).done(time.monotonic())
    assert time.monotonic() - began > 0.04


async def test_one_who_is_cancelled_does_not_hold_the_others_up() -> None:
    turns, guard = Turns(), outgoing(pulls_per_peer=1)
    first = await let_in(turns, guard)
    tasks = [asyncio.create_task(let_in(turns, guard)) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[1].cancel()
    first.done(time.monotonic())
    (await tasks[2]).done(time.monotonic())
    assert guard.status(time.monotonic())["open"] == {}


async def test_a_queue_for_one_peer_is_no_queue_for_another() -> None:
    turns = Turns()
    peers = Guards(Limits(pulls_per_peer=1), ["west", "east"], random.Random(1))
    await let_in(turns, peers["west"].outgoing)
    waiting = asyncio.create_task(let_in(turns, peers["west"].outgoing))
    await asyncio.sleep(0)
    await let_in(turns, peers["east"].outgoing, soon(0))
    assert not waiting.done()
    waiting.cancel()


async def test_memory_that_another_peer_gives_back_is_noticed() -> None:
    mib = 1 << 20
    peers = Guards(
        Limits(bounce_bytes=64 * mib, block_bytes_max=mib), ["west", "east"], random.Random(1)
    )
    west, east = (peers[name].incoming for name in ("west", "east"))
    turns = Turns([west, east])
    now = time.monotonic()
    one, two = west.admit(PULL, now), east.admit(PULL, now)
    assert isinstance(one, Ticket)
    assert isinstance(two, Ticket)
    assert one.hold(GuardName.WINDOW, 40 * mib, now) is None
    waiting = asyncio.create_task(turns.hold(east, two, GuardName.WINDOW, 30 * mib, soon()))
    await asyncio.sleep(0)
    assert not waiting.done()
    one.done(now)
    assert await waiting is None
    refusal = await turns.hold(east, two, GuardName.WINDOW, 40 * mib, soon(0.02))
    assert refusal is not None
    assert east.refusals == {GuardName.WINDOW: 1}
