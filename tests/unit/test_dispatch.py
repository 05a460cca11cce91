"""Pulls that wait for their turn: in order, no longer than the deadline, and only for what passes."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import Any

import pytest

from federation.config import Limits
from federation.limits.guard import Guard
from federation.limits.guards import Guards, PeerGuards
from federation.limits.names import GuardName
from federation.limits.ticket import Cost, Refusal, Ticket
from federation.transfer.allowance import Allowance
from federation.transfer.ask import NobodyWaits
from federation.transfer.dispatch import Dispatch, Turn
from federation.transfer.fair import PullClass
from tests.support.wait import wait_for_async

PULL = Cost()


def outgoing(**limits: Any) -> Guard:
    return PeerGuards(Limits(**limits), "west", random.Random(1)).outgoing


def soon(seconds: float = 5.0) -> float:
    return asyncio.get_running_loop().time() + seconds


class Pulls:
    """Pulls of peers, whose turns end with their tickets."""

    def __init__(self, **limits: Any) -> None:
        self.dispatch = Dispatch(Limits(**limits))
        self.expects: int | None = 4096

    async def admit(
        self, guard: Guard, until: float, pull_class: PullClass = PullClass.FIRST_TOKEN
    ) -> Pull | Refusal:
        turn = self.dispatch.join(guard, PULL, pull_class, b"n" * 16, 1, self.expects)
        assert turn is not None
        try:
            answer = await self.dispatch.admit(turn, until)
        except BaseException:
            self.dispatch.leave(turn)
            raise
        if isinstance(answer, Refusal):
            self.dispatch.leave(turn)
            return answer
        return Pull(self.dispatch, turn, answer)


@dataclass
class Pull:
    dispatch: Dispatch
    turn: Turn
    ticket: Ticket

    def done(self, now: float, *, ok: bool = True) -> None:
        self.ticket.done(now, ok=ok)
        self.dispatch.leave(self.turn)


async def let_in(
    pulls: Pulls,
    guard: Guard,
    until: float | None = None,
    pull_class: PullClass = PullClass.FIRST_TOKEN,
) -> Pull:
    answer = await pulls.admit(guard, soon() if until is None else until, pull_class)
    assert isinstance(answer, Pull), answer
    return answer


async def test_who_waits_is_let_in_when_a_place_is_free_in_the_order_of_asking() -> None:
    pulls, guard = Pulls(pulls_per_peer=1), outgoing(pulls_per_peer=1)
    first = await let_in(pulls, guard)
    order: list[int] = []
    release: list[Pull] = [first]

    async def wait(number: int) -> None:
        release.append(await let_in(pulls, guard))
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
    pulls, guard = Pulls(pulls_per_peer=1), outgoing(pulls_per_peer=1)
    first = await let_in(pulls, guard)
    waiting = asyncio.create_task(let_in(pulls, guard))
    await asyncio.sleep(0)
    first.done(time.monotonic())
    late = await pulls.admit(guard, soon(0.05))
    assert isinstance(late, Refusal)
    assert (await waiting).ticket.open


async def test_who_waits_leaves_at_his_deadline_and_is_counted() -> None:
    pulls, guard = Pulls(pulls_per_peer=1), outgoing(pulls_per_peer=1)
    await let_in(pulls, guard)
    began = time.monotonic()
    until = soon(0.05)
    answers = await asyncio.gather(*(pulls.admit(guard, until) for _ in range(3)))
    assert time.monotonic() - began < 2
    assert [a.reason for a in answers if isinstance(a, Refusal)] == [GuardName.STREAMS] * 3
    assert guard.refusals == {GuardName.STREAMS: 3}


async def test_what_does_not_pass_is_told_at_once() -> None:
    pulls, guard = Pulls(), outgoing(peer_breaker_failures=1, peer_breaker_open_ms=60_000)
    (await let_in(pulls, guard)).done(time.monotonic(), ok=False)
    answer = await pulls.admit(guard, soon(60))
    assert isinstance(answer, Refusal)
    assert answer.reason is GuardName.BREAKER
    assert guard.refusals == {GuardName.BREAKER: 1}


async def test_a_rate_is_waited_for_though_nobody_releases_anything() -> None:
    pulls, guard = Pulls(), outgoing(peer_requests_per_s=50)
    for _ in range(50):
        (await let_in(pulls, guard)).done(time.monotonic())
    began = time.monotonic()
    for _ in range(5):
        (await let_in(pulls, guard)).done(time.monotonic())
    assert time.monotonic() - began > 0.04


async def test_one_who_is_cancelled_does_not_hold_the_others_up() -> None:
    pulls, guard = Pulls(pulls_per_peer=1), outgoing(pulls_per_peer=1)
    first = await let_in(pulls, guard)
    tasks = [asyncio.create_task(let_in(pulls, guard)) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[1].cancel()
    first.done(time.monotonic())
    (await tasks[2]).done(time.monotonic())
    assert guard.status(time.monotonic())["open"] == {}


async def test_a_queue_for_one_peer_is_no_queue_for_another() -> None:
    pulls = Pulls(pulls_per_peer=1)
    peers = Guards(Limits(pulls_per_peer=1), ["west", "east"], random.Random(1))
    await let_in(pulls, peers["west"].outgoing)
    waiting = asyncio.create_task(let_in(pulls, peers["west"].outgoing))
    await asyncio.sleep(0)
    await let_in(pulls, peers["east"].outgoing, soon(0))
    assert not waiting.done()
    waiting.cancel()


async def test_a_first_token_goes_before_those_who_wait_and_has_streams_of_its_own() -> None:
    pulls, guard = Pulls(pulls_per_peer=4), outgoing(pulls_per_peer=4)
    lower = [asyncio.create_task(let_in(pulls, guard, None, PullClass.BATCH)) for _ in range(8)]
    await wait_for_async(lambda: sum(task.done() for task in lower) == 3, 5, "three of four")
    first = await let_in(pulls, guard, soon(0))
    waiting = asyncio.create_task(let_in(pulls, guard))
    await asyncio.sleep(0)
    first.done(time.monotonic())
    second = await waiting
    assert sum(task.done() for task in lower) == 3
    second.done(time.monotonic())
    for task in lower:
        (await task).done(time.monotonic())
    assert guard.status(time.monotonic())["open"] == {}


async def test_a_prefetch_that_somebody_waits_for_now_is_let_send_all() -> None:
    pulls, guard = Pulls(), outgoing()
    pulls.expects = None
    pull = await let_in(pulls, guard, None, PullClass.PREFETCH)
    told = pull.turn.allowance.messages()
    before = await anext(told)
    place = pull.turn.claim
    assert not before.all
    assert place.initial + before.credit == place.given == place.outstanding
    pulls.dispatch.reclass(pull.turn, PullClass.FIRST_TOKEN)
    assert (await anext(told)).all
    pull.done(time.monotonic())


async def test_what_nobody_wants_any_more_leaves_the_queue_at_once() -> None:
    pulls, guard = Pulls(pulls_per_peer=1), outgoing(pulls_per_peer=1)
    first = await let_in(pulls, guard)
    turn = pulls.dispatch.join(guard, PULL, PullClass.BATCH, b"n" * 16, 1, None)
    assert turn is not None
    waiting = asyncio.create_task(pulls.dispatch.admit(turn, soon()))
    await asyncio.sleep(0)
    turn.give_up()
    with pytest.raises(NobodyWaits):
        await waiting
    assert len(turn.line.schedule) == 1
    first.done(time.monotonic())
    assert guard.status(time.monotonic())["open"] == {}


async def test_what_may_be_sent_is_told_anew_to_another_gateway() -> None:
    allowance = Allowance()
    allowance.give(5)
    first = allowance.messages()
    assert (await anext(first)).credit == 5
    allowance.give(7)
    assert (await anext(first)).credit == 7
    second = allowance.messages()
    assert (await anext(second)).credit == 12
    allowance.give_all()
    assert [more.all async for more in second] == [True]
