"""The puller under its guards: what is refused, whom it turns to, and what it holds against whom."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator
from typing import Any

from federation.config import Limits
from federation.identity import block_digest, key_hash
from federation.limits.bulkhead import Shares
from federation.limits.errors import LateError, ShedError
from federation.limits.guards import PeerGuards
from federation.limits.names import Failure, GuardName, Kind
from federation.limits.orders import Order
from federation.transfer.frames import Encoder
from federation.transfer.staging import Staging
from moonmesh.v1 import peer_pb2
from tests.support.catalogs import news
from tests.support.links import FP, SIZE, FakeLink, Script, data_of
from tests.support.peers_in_memory import KEYS, Bench
from tests.support.timing import SchedulingDelay
from tests.support.wait import wait_for_async

ALL = [data_of(key) for key in KEYS]


def hide_misses(bench: Bench) -> None:
    """Claims everything anew, as if the views had just been refreshed."""
    for view in bench.views.values():
        view.apply(news(view, 2, added=[key_hash(FP, k) for k in KEYS]), 0.0)


async def test_a_peer_that_has_no_room_is_left_alone_for_as_long_as_it_asks() -> None:
    async def full(request: peer_pb2.PullRequest) -> AsyncGenerator[bytes, None]:
        raise ShedError("no room", retry_after=5.0)
        yield b""

    east, west = FakeLink("east", KEYS, full), FakeLink("west", KEYS)
    bench = Bench(east, west)
    assert await bench.collect(bench.ask(KEYS[:3])) == ALL[:3]
    assert east.verdicts == ["shed"]
    assert not east.guard.ready(Kind.PULL, time.monotonic())
    assert east.guard.breaker(time.monotonic()) == "closed"
    assert await bench.collect(bench.ask(KEYS[3:])) == ALL[3:]
    assert len(east.requests) == 1, "not asked again before its time"
    assert east.guard.refusals == {GuardName.RETRY_AFTER: 1}


async def test_what_a_breaker_refuses_is_asked_of_the_next_and_is_no_retry() -> None:
    east, west = FakeLink("east", KEYS), FakeLink("west", KEYS)
    bench = Bench(east, west, limits=Limits(peer_breaker_failures=1, peer_retries_few=1))
    east.guard.note(Failure.DIGEST, time.monotonic())
    for key, data in zip(KEYS, ALL, strict=True):
        assert await bench.collect(bench.ask([key])) == [data]
    assert east.requests == []
    assert west.guard.status(time.monotonic())["retries_left"] == 1


async def test_retries_are_bounded_by_the_second_peers_budget() -> None:
    east, west = FakeLink("east", []), FakeLink("west", KEYS)
    bench = Bench(
        east,
        west,
        claims={"east": KEYS, "west": KEYS},
        limits=Limits(peer_retries_few=2, peer_retry_percent=0),
    )
    got = [await bench.collect(bench.ask([key])) for key in KEYS[:4]]
    assert got == [[ALL[0]], [ALL[1]], [None], [None]]
    assert west.guard.refusals == {GuardName.RETRIES: 2}


async def test_a_peer_that_claims_all_and_has_nothing_opens_its_breaker() -> None:
    liar = FakeLink("liar", [])
    bench = Bench(
        liar, claims={"liar": KEYS}, limits=Limits(peer_breaker_failures=3, peer_doubt_ms=0)
    )
    rounds = 0
    while liar.guard.ready(Kind.PULL, time.monotonic()) and rounds < 50:
        hide_misses(bench)
        await bench.collect(bench.ask())
        rounds += 1
    assert 32 / len(KEYS) <= rounds <= 32 / len(KEYS) + 4
    assert liar.guard.status(time.monotonic())["failures"] == {"dishonest": 3}


async def test_a_block_that_crossed_too_many_borders_is_not_kept() -> None:
    async def onward(request: peer_pb2.PullRequest) -> AsyncGenerator[bytes, None]:
        encoder = Encoder(1 << 20)
        data = data_of(KEYS[0])
        for message in encoder.block(0, block_digest(FP, KEYS[0], data), memoryview(data), hops=1):
            yield message
        yield encoder.end()

    east = FakeLink("east", KEYS, onward)
    bench = Bench(east)
    assert await bench.collect(bench.ask(KEYS[:1])) == [None]
    assert east.verdicts == ["failed"]
    assert east.guard.status(time.monotonic())["failures"] == {"protocol": 1}
    assert east.guard.refusals == {GuardName.HOPS: 1}
    assert (bench.staging.reserved, bench.landed) == (0, [])


async def test_the_digest_guard_can_be_switched_off_to_show_what_it_is_for() -> None:
    async def lies(request: peer_pb2.PullRequest) -> AsyncGenerator[bytes, None]:
        encoder = Encoder(1 << 20)
        for message in encoder.block(0, b"0" * 16, memoryview(b"x" * SIZE)):
            yield message
        yield encoder.end()

    east = FakeLink("east", KEYS, lies)
    bench = Bench(east)
    found = PeerGuards(
        Limits(), "east", random.Random(1), off=frozenset({GuardName.DIGEST})
    ).outgoing
    east.guard._off = found._off
    assert await bench.collect(bench.ask(KEYS[:1])) == [b"x" * SIZE]


async def test_a_stream_that_is_too_fast_is_slowed_down() -> None:
    big = 3 << 20

    async def fast(request: peer_pb2.PullRequest) -> AsyncGenerator[bytes, None]:
        encoder = Encoder(1 << 20)
        for index, key in enumerate(request.keys):
            data = bytes(big)
            for message in encoder.block(index, block_digest(FP, key, data), memoryview(data)):
                yield message
        yield encoder.end()

    east = FakeLink("east", KEYS, fast)
    bench = Bench(east, limits=Limits(peer_bytes_per_s=12 << 20), staging_bytes=64 << 20)
    ask = bench.puller.ask(FP, KEYS, [big] * len(KEYS), timeout=5.0)
    began = time.monotonic()
    assert len(await bench.collect(ask)) == len(KEYS)
    await bench.puller.close()
    # 18 MiB, of which 12 may come at once; after the last nobody waits for the pause.
    assert time.monotonic() - began > 0.3


async def test_blocks_of_one_peer_never_take_the_staging_of_another() -> None:
    east, west = FakeLink("east", KEYS), FakeLink("west", KEYS)
    shares = Shares(4 * SIZE, ["east", "west"], 50)
    staging = Staging(bytes_max=4 * SIZE, hold=60.0, shares=shares)
    bench = Bench(east, west, claims={"east": KEYS[:5], "west": KEYS[5:]}, staging=staging)
    assert await bench.collect(bench.ask(KEYS[:5])) == [*ALL[:3], None, None]
    assert east.guard.refusals == {GuardName.STAGING: 1}
    assert await bench.collect(bench.ask(KEYS[5:])) == [ALL[5]]
    assert (shares.used("east"), shares.used("west")) == (3 * SIZE, SIZE)
    assert bench.staging.reserved == 0


async def test_however_a_pull_ends_its_ticket_does_too() -> None:
    async def never(request: peer_pb2.PullRequest) -> AsyncGenerator[bytes, None]:
        await asyncio.Event().wait()
        yield b""

    east = FakeLink("east", KEYS, never)
    bench = Bench(east)
    ask = bench.ask()
    await wait_for_async(
        lambda: east.guard.status(time.monotonic())["open"] == {"pull": 1}, 5, "the pull"
    )
    await bench.puller.close()
    ask.leave()
    status: dict[str, Any] = east.guard.status(time.monotonic())
    assert (status["open"], status["failures"]) == ({}, {"ours": 1})


def behind(seconds: float, source: FakeLink) -> Script:
    """A peer that answers rightly after `seconds`, if it is listened to for so long."""

    async def answer(request: peer_pb2.PullRequest) -> AsyncGenerator[bytes, None]:
        await asyncio.sleep(min(seconds, source.timeout))
        if seconds >= source.timeout:
            raise LateError("no answer within the deadline")
        source.guard.heard(time.monotonic())  # as the link does
        async for message in source.honest(request):
            yield message

    return answer


async def asked_in_a_hurry(bench: Bench, key: str, seconds: float) -> float:
    """An engine that waits for `seconds` and gets nothing; how long it did wait."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    ask = bench.ask([key], timeout=seconds)
    assert await ask.block(0, began + seconds) is None
    ask.leave()
    return loop.time() - began


async def test_a_peer_slower_than_its_callers_is_not_cut_off_for_the_patient() -> None:
    hurried = [f"hurried-{n}" for n in range(30)]
    east = FakeLink("east", [*hurried, *KEYS])
    east.script = behind(0.08, east)
    bench = Bench(east)
    for key in hurried:
        await asked_in_a_hurry(bench, key, 0.02)
    assert east.guard.ready(Kind.PULL, time.monotonic())
    assert east.guard.status(time.monotonic())["failures"] == {}
    assert await bench.collect(bench.ask(KEYS, timeout=5.0)) == ALL
    await bench.puller.close()


async def test_a_frozen_peer_is_left_out_soon_although_all_callers_are_in_a_hurry() -> None:
    east = FakeLink("east", KEYS)
    east.script = behind(60.0, east)
    bench = Bench(east)  # five failures, silence 300 ms
    began, calls, worst = time.monotonic(), 0, 0.0
    with SchedulingDelay() as noise:
        while east.guard.ready(Kind.PULL, time.monotonic()) and time.monotonic() - began < 10:
            worst = max(worst, await asked_in_a_hurry(bench, KEYS[calls % 6], 0.05))
            calls += 1
    lasted = time.monotonic() - began
    assert worst < 0.2 + 2 * noise.worst, "its deadline is kept, whatever goes on behind it"
    assert 0.3 <= lasted < 1.5 + calls * noise.worst
    assert calls <= 14
    assert bench.puller.under_way == 0
    await bench.puller.close()


async def test_what_is_late_for_its_caller_is_there_for_the_next() -> None:
    east = FakeLink("east", KEYS)
    east.script = behind(0.05, east)
    bench = Bench(east)
    await asked_in_a_hurry(bench, KEYS[0], 0.01)
    await wait_for_async(lambda: len(bench.staging) == 1, 5, "the block to land")
    assert await bench.collect(bench.ask(KEYS[:1], timeout=0.01)) == ALL[:1]
    assert len(east.requests) == 1


async def test_a_key_that_is_asked_for_anew_is_not_given_up_with_the_first() -> None:
    east = FakeLink("east", KEYS)
    east.script = behind(60.0, east)
    bench = Bench(east)
    await asked_in_a_hurry(bench, KEYS[0], 0.01)
    east.script = behind(0.5, east)
    assert await bench.collect(bench.ask(KEYS[:1], timeout=2.0)) == ALL[:1]
    assert bench.puller.under_way == 0


async def test_what_was_asked_of_a_peer_that_is_switched_off_is_asked_of_another() -> None:
    asked = asyncio.Event()

    async def hang(request: peer_pb2.PullRequest) -> AsyncGenerator[bytes, None]:
        asked.set()
        await asyncio.Event().wait()
        yield b""

    east, west = FakeLink("east", KEYS, hang), FakeLink("west", KEYS)
    bench = Bench(east, west, limits=Limits(pulls_per_peer=1))
    ask = bench.ask(KEYS)
    await asked.wait()
    east.guard.order = Order.PAUSED
    bench.puller.drop("east")
    assert await bench.collect(ask) == ALL
    assert east.verdicts == ["abandoned"], "it is not its fault"
    assert east.guard.open(Kind.PULL) == 0


async def test_a_pull_that_was_not_yet_begun_ends_too_when_its_peer_is_switched_off() -> None:
    east = FakeLink("east", KEYS)
    bench = Bench(east)
    ask = bench.ask(KEYS)
    east.guard.order = Order.OFF
    bench.puller.drop("east")  # before its task has run for the first time
    assert await asyncio.wait_for(bench.collect(ask), 1.0) == [None] * len(KEYS)
    assert bench.puller.under_way == 0
    assert east.requests == []
