"""A peer that is later than it ever is: another is asked as well, and what that says of whom."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator

from federation.config import Limits
from federation.identity import block_digest
from federation.peers.wire import UnreachableError
from federation.transfer.fair import PullClass
from federation.transfer.frames import Encoder
from federation.transfer.hedge import (
    FIRSTS_LEAST,
    HEDGES_FEW,
    HEDGES_PERCENT,
    LATE_SECONDS_MIN,
    Hedges,
)
from federation.transfer.source import Source
from moonmesh.v1 import peer_pb2
from tests.support.links import FP, FakeLink, Script, data_of
from tests.support.peers_in_memory import KEYS, Bench
from tests.support.wait import wait_for_async

ALL = [data_of(key) for key in KEYS]


def knows(bench: Bench, *sources: Source) -> None:
    """Those have been quick so far."""
    for source in sources:
        for _ in range(FIRSTS_LEAST):
            bench.puller.hedges.came(source.name, 0.001)


def after(gate: asyncio.Event, source: FakeLink) -> Script:
    async def answer(request: peer_pb2.PullRequest) -> AsyncGenerator[bytes, None]:
        await gate.wait()
        source.guard.heard(time.monotonic())
        async for message in source.honest(request):
            yield message

    return answer


@contextlib.asynccontextmanager
async def closing(bench: Bench) -> AsyncIterator[Bench]:
    yield bench
    await bench.puller.close()
    assert bench.staging.reserved == 0
    assert bench.puller.under_way == 0


def test_late_is_what_a_peer_seldom_is() -> None:
    hedges = Hedges()
    assert hedges.begin("east") is None
    for n in range(FIRSTS_LEAST):
        assert hedges.begin("east") is None
        hedges.came("east", 0.1 + n / 1000)
    late = hedges.begin("east")
    assert late is not None
    assert 0.118 <= late <= 0.12
    assert hedges.begin("west") is None
    for _ in range(FIRSTS_LEAST):
        hedges.came("west", 0.0001)
    assert hedges.begin("west") == LATE_SECONDS_MIN


def test_second_requests_are_a_share_of_the_first() -> None:
    hedges = Hedges()
    made = 0
    for _ in range(1000):
        hedges.begin("east")
        made += hedges.take()
    assert HEDGES_PERCENT * 10 <= made <= HEDGES_PERCENT * 10 + HEDGES_FEW
    assert hedges.made == made


async def test_a_late_peer_does_not_hold_up_what_another_has() -> None:
    gate = asyncio.Event()
    east, west = FakeLink("east", KEYS), FakeLink("west", KEYS)
    east.script = after(gate, east)
    async with closing(Bench(east, west)) as bench:
        knows(bench, east)
        assert await bench.collect(bench.ask()) == ALL
        assert (east.requests, west.requests) == ([KEYS], [KEYS])
        assert west.verdicts == ["succeeded"]
        assert {block.origin for block in bench.landed} == {"west"}
        # Its first message is listened to, no longer: it is well, and was only late.
        gate.set()
        await wait_for_async(lambda: east.verdicts == ["succeeded"], 5, "the first to end")
        assert len(bench.landed) == len(KEYS), "nothing lands twice"


async def test_a_peer_that_stays_silent_is_blamed_although_another_was_quick() -> None:
    gate = asyncio.Event()
    east, west = FakeLink("east", KEYS), FakeLink("west", KEYS)
    east.script = after(gate, east)
    async with closing(Bench(east, west, limits=Limits(peer_silence_ms=50))) as bench:
        knows(bench, east)
        assert await bench.collect(bench.ask()) == ALL
        await wait_for_async(lambda: east.verdicts == ["failed"], 5, "the first to end")
        failures = east.guard.status(time.monotonic())["failures"]
        assert failures == {"timeout": 1}


async def test_where_the_first_comes_after_all_the_second_is_cancelled_without_blame() -> None:
    gate = asyncio.Event()
    east, west = FakeLink("east", KEYS), FakeLink("west", KEYS)
    east.script = after(gate, east)
    west.script = after(asyncio.Event(), west)
    async with closing(Bench(east, west)) as bench:
        knows(bench, east)
        ask = bench.ask()
        await wait_for_async(lambda: west.requests == [KEYS], 5, "the second request")
        gate.set()
        assert await bench.collect(ask) == ALL
        await wait_for_async(lambda: west.verdicts == ["abandoned"], 5, "the second to end")
        assert east.verdicts == ["succeeded"]


async def test_a_second_peer_that_lies_does_not_win() -> None:
    async def lies(request: peer_pb2.PullRequest) -> AsyncGenerator[bytes, None]:
        encoder = Encoder(1 << 20)
        for message in encoder.block(0, b"0" * 16, memoryview(b"x" * 10)):
            yield message
        yield encoder.end()

    gate = asyncio.Event()
    east, west = FakeLink("east", KEYS), FakeLink("west", KEYS, lies)
    east.script = after(gate, east)
    async with closing(Bench(east, west)) as bench:
        knows(bench, east)
        ask = bench.ask()
        await wait_for_async(lambda: west.verdicts == ["failed"], 5, "the lie")
        assert not any(ask.landed(n) for n in range(len(KEYS)))
        gate.set()
        assert await bench.collect(ask) == ALL
        assert east.verdicts == ["succeeded"]
        assert len(west.requests) == 1


async def test_both_fail_and_nobody_is_left_waiting() -> None:
    async def breaks(request: peer_pb2.PullRequest) -> AsyncGenerator[bytes, None]:
        await asyncio.sleep(0.1)
        raise UnreachableError("gone")
        yield b""

    east, west = FakeLink("east", KEYS, breaks), FakeLink("west", KEYS, breaks)
    async with closing(Bench(east, west)) as bench:
        knows(bench, east)
        assert await bench.collect(bench.ask()) == [None] * len(KEYS)
        assert (len(east.requests), len(west.requests)) == (1, 1), "once for each block"


async def test_only_a_first_token_is_worth_a_second_request() -> None:
    east, west = FakeLink("east", KEYS), FakeLink("west", KEYS)
    gate = asyncio.Event()
    east.script = after(gate, east)
    async with closing(Bench(east, west)) as bench:
        knows(bench, east)
        ask = bench.ask(pull_class=PullClass.BATCH)
        await asyncio.sleep(5 * LATE_SECONDS_MIN)
        assert west.requests == []
        gate.set()
        assert await bench.collect(ask) == ALL


async def test_the_only_holder_is_asked_again_for_what_a_broken_stream_did_not_bring() -> None:
    times = 0

    async def breaks_once(request: peer_pb2.PullRequest) -> AsyncGenerator[bytes, None]:
        nonlocal times
        times += 1
        if times > 1:
            async for message in east.honest(request):
                yield message
            return
        encoder = Encoder(1 << 20)
        data = data_of(KEYS[0])
        for message in encoder.block(0, block_digest(FP, KEYS[0], data), memoryview(data)):
            yield message
        for message in encoder.flush():
            yield message
        raise UnreachableError("the connection broke")

    east = FakeLink("east", KEYS)
    east.script = breaks_once
    async with closing(Bench(east)) as bench:
        assert await bench.collect(bench.ask()) == ALL
        assert east.requests == [KEYS, KEYS[1:]]
        assert east.verdicts == ["failed", "succeeded"]


async def test_a_stream_that_always_breaks_is_asked_for_twice_and_no_more() -> None:
    async def breaks(request: peer_pb2.PullRequest) -> AsyncGenerator[bytes, None]:
        encoder = Encoder(1 << 20)
        key = request.keys[0]
        data = data_of(key)
        for message in encoder.block(0, block_digest(FP, key, data), memoryview(data)):
            yield message
        for message in encoder.flush():
            yield message
        raise UnreachableError("the connection broke")

    east = FakeLink("east", KEYS, breaks)
    async with closing(Bench(east)) as bench:
        assert await bench.collect(bench.ask()) == [*ALL[:2], None, None, None, None]
        assert east.requests == [KEYS, KEYS[1:]]
