"""The puller: one pull a block, the next holder when one fails, and nothing kept that is not right."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncGenerator

from federation.config import Limits
from federation.errors import PeerError
from federation.identity import block_digest
from federation.limits.names import Failure
from federation.transfer.frames import Encoder
from federation.transfer.slots import Slots
from federation.transfer.staging import Staging
from moonmesh.v1 import peer_pb2
from tests.support.links import FP, SIZE, FakeLink, data_of
from tests.support.peers_in_memory import KEYS, Bench
from tests.support.wait import wait_for_async


async def test_a_chain_is_pulled_in_one_stream() -> None:
    east = FakeLink("east", KEYS)
    bench = Bench(east)
    assert await bench.collect(bench.ask()) == [data_of(key) for key in KEYS]
    assert east.requests == [KEYS]
    assert east.verdicts == ["succeeded"]
    assert [block.key for block in bench.landed] == KEYS
    assert {(block.origin, block.epoch) for block in bench.landed} == {("east", 3)}
    assert bench.staging.reserved == 0


async def test_what_is_staged_is_not_pulled_again() -> None:
    east = FakeLink("east", KEYS)
    bench = Bench(east)
    await bench.collect(bench.ask(KEYS[:3]))
    assert await bench.collect(bench.ask()) == [data_of(key) for key in KEYS]
    assert east.requests == [KEYS[:3], KEYS[3:]]


async def test_memory_of_blocks_is_free_once_nobody_has_them() -> None:
    slots = Slots(1 << 20)
    staging = Staging(bytes_max=1 << 20, hold=10.0, memory=slots.take)
    gc.collect()
    gc.disable()
    try:
        east = FakeLink("east", KEYS[:5])
        bench = Bench(east, claims={"east": KEYS}, staging=staging)
        ask = bench.ask()
        assert (await bench.collect(ask))[5:] == [None]
        await wait_for_async(lambda: not bench.puller.waiting, 5, "the pull to end")
        bench.landed.clear()
        assert slots.used_bytes > 0
        staging.drop_of("east")
        assert slots.used_bytes == 0, "without a collection of garbage"
    finally:
        gc.enable()


async def test_two_who_ask_at_once_share_one_pull() -> None:
    east = FakeLink("east", KEYS)
    bench = Bench(east)
    first, second = bench.ask(), bench.ask()
    results = await asyncio.gather(bench.collect(first), bench.collect(second))
    assert results == [[data_of(key) for key in KEYS]] * 2
    assert east.requests == [KEYS]


async def test_what_one_peer_lacks_is_asked_of_the_next() -> None:
    east = FakeLink("east", KEYS[:2])
    west = FakeLink("west", KEYS)
    bench = Bench(east, west, claims={"east": KEYS, "west": KEYS[2:]})
    assert await bench.collect(bench.ask()) == [data_of(key) for key in KEYS]
    assert west.requests == [KEYS[2:]]
    assert bench.views["east"].honesty.broken == 4


async def test_a_peer_that_fails_is_replaced() -> None:
    async def dies(request: peer_pb2.PullRequest) -> AsyncGenerator[bytes, None]:
        encoder = Encoder(1 << 20)
        data = data_of(KEYS[0])
        for message in encoder.block(0, block_digest(FP, KEYS[0], data), memoryview(data)):
            yield message
        for message in encoder.flush():
            yield message
        raise PeerError("it died")

    east, west = FakeLink("east", KEYS, dies), FakeLink("west", KEYS)
    bench = Bench(east, west)
    assert await bench.collect(bench.ask()) == [data_of(key) for key in KEYS]
    assert (east.verdicts, west.verdicts) == (["failed"], ["succeeded"])
    assert west.requests == [KEYS[1:]]


async def test_a_wrong_digest_ends_the_stream_and_keeps_nothing() -> None:
    async def lies(request: peer_pb2.PullRequest) -> AsyncGenerator[bytes, None]:
        encoder = Encoder(1 << 20)
        for index in range(len(request.keys)):
            for message in encoder.block(index, b"0" * 16, memoryview(b"x" * SIZE)):
                yield message
        yield encoder.end()

    east = FakeLink("east", KEYS, lies)
    bench = Bench(east)
    assert await bench.collect(bench.ask()) == [None] * len(KEYS)
    assert east.verdicts == ["failed"]
    assert bench.landed == []
    assert (bench.staging.bytes, bench.staging.reserved) == (0, 0)
    assert bench.puller.under_way == 0


async def test_a_stream_that_ends_early_is_a_failure() -> None:
    async def stops(request: peer_pb2.PullRequest) -> AsyncGenerator[bytes, None]:
        return
        yield b""

    east = FakeLink("east", KEYS, stops)
    bench = Bench(east)
    assert await bench.collect(bench.ask()) == [None] * len(KEYS)
    assert east.verdicts == ["failed"]


async def test_the_chain_ends_at_the_first_block_that_nobody_has() -> None:
    east = FakeLink("east", [KEYS[0], KEYS[2]])
    bench = Bench(east)
    assert await bench.collect(bench.ask()) == [data_of(KEYS[0])] + [None] * 5
    assert east.requests == [KEYS[:1]]


async def test_a_pull_that_nobody_waits_for_is_cancelled() -> None:
    go_on = asyncio.Event()
    ended = asyncio.Event()

    async def slow(request: peer_pb2.PullRequest) -> AsyncGenerator[bytes, None]:
        try:
            async for message in east.honest(request):
                yield message
                await go_on.wait()
        finally:
            ended.set()

    east = FakeLink("east", KEYS, slow)
    bench = Bench(east)
    ask = bench.ask()
    until = asyncio.get_running_loop().time() + 5.0
    assert await ask.block(0, until) is not None
    ask.leave()
    go_on.set()
    await asyncio.wait_for(ended.wait(), 5)
    await bench.puller.close()
    assert len(bench.landed) < len(KEYS)
    assert east.verdicts == ["succeeded"], (
        "what it was asked for came, as far as it was listened to"
    )
    assert bench.puller.under_way == 0


async def test_in_the_background_it_goes_on_though_nobody_waits() -> None:
    east = FakeLink("east", KEYS)
    bench = Bench(east)
    ask = bench.ask(background=5.0)
    ask.leave()
    again = bench.ask()
    assert await bench.collect(again) == [data_of(key) for key in KEYS]
    assert east.requests == [KEYS]


async def test_a_waiter_that_gives_up_leaves_the_block_to_the_others() -> None:
    gate = asyncio.Event()

    async def held_up(request: peer_pb2.PullRequest) -> AsyncGenerator[bytes, None]:
        await gate.wait()
        async for message in east.honest(request):
            yield message

    east = FakeLink("east", KEYS, held_up)
    bench = Bench(east)
    patient, hasty = bench.ask(), bench.ask()
    assert await hasty.block(0, asyncio.get_running_loop().time() + 0.01) is None
    hasty.leave()
    gate.set()
    assert await bench.collect(patient) == [data_of(key) for key in KEYS]


async def test_full_staging_sheds_the_rest_and_blames_nobody() -> None:
    east, west = FakeLink("east", KEYS), FakeLink("west", KEYS)
    bench = Bench(east, west, staging_bytes=2 * SIZE)
    assert await bench.collect(bench.ask()) == [data_of(key) for key in KEYS[:2]] + [None] * 4
    assert east.verdicts == ["abandoned"]
    assert west.requests == [], "another peer would not fit either"
    assert bench.staging.reserved == 0


async def test_streams_beyond_the_limit_wait_for_a_place() -> None:
    gate = asyncio.Event()
    open_now = 0
    most = 0

    async def counted(request: peer_pb2.PullRequest) -> AsyncGenerator[bytes, None]:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        await gate.wait()
        async for message in east.honest(request):
            yield message
        open_now -= 1

    east = FakeLink("east", KEYS, counted)
    bench = Bench(east, limits=Limits(pulls_per_peer=2))
    asks = [bench.ask([key]) for key in KEYS]
    await wait_for_async(lambda: most == 2, 5, "two streams to be open")
    gate.set()
    assert [await bench.collect(ask) for ask in asks] == [[data_of(key)] for key in KEYS]
    assert most == 2


async def test_what_waits_beyond_the_limit_is_shed_at_once() -> None:
    east = FakeLink("east", KEYS)
    bench = Bench(east, limits=Limits(pulls_waiting_per_peer=2))
    asks = [bench.ask([key]) for key in KEYS[:3]]
    assert [await bench.collect(ask) for ask in asks] == [
        [data_of(KEYS[0])],
        [data_of(KEYS[1])],
        [None],
    ]


async def test_close_ends_what_is_under_way() -> None:
    async def never(request: peer_pb2.PullRequest) -> AsyncGenerator[bytes, None]:
        await asyncio.Event().wait()
        yield b""

    east = FakeLink("east", KEYS, never)
    bench = Bench(east)
    ask = bench.ask()
    await asyncio.sleep(0)
    await bench.puller.close()
    assert await bench.collect(ask) == [None] * len(KEYS)
    assert bench.puller.under_way == 0


async def test_a_peer_that_is_not_asked_because_its_breaker_is_open_is_not_blamed() -> None:
    east, west = FakeLink("east", KEYS), FakeLink("west", KEYS)
    bench = Bench(east, west, limits=Limits(peer_breaker_failures=1))
    east.guard.note(Failure.ERROR, time.monotonic())
    assert await bench.collect(bench.ask()) == [data_of(key) for key in KEYS]
    assert (east.verdicts, west.verdicts) == ([], ["succeeded"])


async def test_a_defect_of_ours_blames_nobody_and_leaves_nobody_waiting() -> None:
    async def breaks(request: peer_pb2.PullRequest) -> AsyncGenerator[bytes, None]:
        raise AssertionError("a defect")
        yield b""

    east = FakeLink("east", KEYS, breaks)
    bench = Bench(east)
    assert await bench.collect(bench.ask()) == [None] * len(KEYS)
    assert east.verdicts == ["abandoned"]


async def test_a_run_longer_than_a_request_is_pulled_in_pieces() -> None:
    east = FakeLink("east", KEYS)
    bench = Bench(east, limits=Limits(peer_request_keys_max=4))
    assert await bench.collect(bench.ask()) == [data_of(key) for key in KEYS]
    assert east.requests == [KEYS[:4], KEYS[4:]]


async def test_a_key_that_is_asked_for_twice_is_pulled_once() -> None:
    east = FakeLink("east", KEYS)
    bench = Bench(east)
    keys = [KEYS[0], KEYS[0], KEYS[1]]
    assert await bench.collect(bench.ask(keys)) == [data_of(key) for key in keys]
    assert east.requests == [KEYS[:2]]
    assert bench.puller.under_way == 0


async def test_a_speed_is_of_all_bytes_also_of_a_block_that_ends_in_the_next_message() -> None:
    async def whole_messages(request: peer_pb2.PullRequest) -> AsyncGenerator[bytes, None]:
        encoder = Encoder(SIZE)  # so the end of each block goes with the next header
        for index, key in enumerate(request.keys):
            data = data_of(key)
            for message in encoder.block(index, block_digest(FP, key, data), memoryview(data)):
                yield message
        yield encoder.end()

    bench = Bench(FakeLink("east", KEYS, whole_messages))
    for key in KEYS:
        assert await bench.collect(bench.ask([key])) == [data_of(key)]
    found = bench.puller.speeds.estimate("east", time.monotonic())
    assert found is not None
    assert found.size >= SIZE, "bytes when it was looked, in the middle"
