"""What the class of a pull changes: its turn, what is asked for at a time, and when it is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

from federation.config import Limits
from federation.identity import key_hash
from federation.limits.errors import LateError
from federation.transfer.ask import Ask
from federation.transfer.fair import PullClass
from federation.transfer.schedule import LOWER_BLOCKS_MAX
from moonmesh.v1 import peer_pb2
from tests.support.catalogs import view_of
from tests.support.links import FP, FakeLink, data_of
from tests.support.peers_in_memory import KEYS, Bench
from tests.support.wait import wait_for_async
from tests.unit.test_hedge import ALL, after, closing


async def test_a_lower_class_asks_bit_by_bit_and_a_first_token_for_all() -> None:
    keys = [f"n{i}" for i in range(2 * LOWER_BLOCKS_MAX + 2)]
    east = FakeLink("east", keys)
    bench = Bench(east)
    got = await bench.collect(bench.ask(keys, pull_class=PullClass.PREFETCH))
    assert got == [data_of(key) for key in keys]
    ahead = list(east.asked)
    assert [list(request.keys) for request in ahead] == [
        keys[:LOWER_BLOCKS_MAX],
        keys[LOWER_BLOCKS_MAX:-2],
        keys[-2:],
    ]
    assert {request.pull_class for request in ahead} == {PullClass.PREFETCH.value}
    assert all(request.credit > 0 for request in ahead)
    east.held |= set(KEYS)
    bench.views["east"] = view_of(key_hash(FP, key) for key in KEYS)
    assert await bench.collect(bench.ask()) == [data_of(key) for key in KEYS]
    (first,) = east.asked[len(ahead) :]
    assert (first.pull_class, first.credit) == (PullClass.FIRST_TOKEN.value, 0)


async def test_who_waits_for_a_prefetch_lifts_it() -> None:
    gate = asyncio.Event()
    east = FakeLink("east", KEYS)
    east.script = after(gate, east)
    async with closing(Bench(east, limits=Limits(pulls_per_peer=1))) as bench:
        first = bench.ask([KEYS[0]])
        batch = bench.ask([KEYS[1]], pull_class=PullClass.BATCH)
        ahead = bench.ask([KEYS[2]], pull_class=PullClass.PREFETCH)
        lifted = bench.ask([KEYS[2]])
        gate.set()
        asks: list[Ask] = [first, batch, ahead, lifted]
        got = [await bench.collect(ask) for ask in asks]
        assert got == [[ALL[0]], [ALL[1]], [ALL[2]], [ALL[2]]]
        assert east.requests == [[KEYS[0]], [KEYS[2]], [KEYS[1]]]


async def test_what_waits_its_turn_and_nobody_wants_any_more_is_gone_at_once() -> None:
    gate = asyncio.Event()
    east = FakeLink("east", KEYS)
    east.script = after(gate, east)
    async with closing(Bench(east, limits=Limits(pulls_per_peer=1))) as bench:
        first = bench.ask([KEYS[0]])
        second = bench.ask([KEYS[1]])
        await wait_for_async(lambda: len(east.requests) == 1, 5, "the first")
        second.leave()
        await wait_for_async(lambda: bench.puller.waiting == 1, 5, "the second to be gone")
        assert bench.puller.under_way == 1
        gate.set()
        assert await bench.collect(first) == [ALL[0]]
        assert east.requests == [[KEYS[0]]]


async def test_what_goes_on_after_its_asker_left_is_no_first_token_any_more() -> None:
    gate = asyncio.Event()
    east = FakeLink("east", KEYS)
    east.script = after(gate, east)
    async with closing(Bench(east, limits=Limits(pulls_per_peer=1))) as bench:
        first = bench.ask([KEYS[0]], background=5.0)
        looked = bench.ask([KEYS[1]], background=5.0)
        await wait_for_async(lambda: len(east.requests) == 1, 5, "the first")
        schedule = bench.puller._dispatch._lines["east"].schedule
        assert schedule.urgent
        looked.leave()
        assert schedule.urgent, "the first is waited for"
        first.leave()
        assert not schedule.urgent
        batch = bench.ask([KEYS[2]], pull_class=PullClass.BATCH)
        again = bench.ask([KEYS[3]])
        gate.set()
        assert await bench.collect(again) == [ALL[3]]
        assert await bench.collect(batch) == [ALL[2]]
        await wait_for_async(lambda: bench.puller.under_way == 0, 5, "all to land")
        assert east.requests == [[KEYS[0]], [KEYS[3]], [KEYS[2]], [KEYS[1]]]
        assert east.asked[3].pull_class == PullClass.PREFETCH.value


async def test_who_leaves_takes_his_class_along_and_the_others_keep_theirs() -> None:
    gate = asyncio.Event()
    east = FakeLink("east", KEYS)
    east.script = after(gate, east)
    async with closing(Bench(east, limits=Limits(pulls_per_peer=1))) as bench:
        running = bench.ask([KEYS[0]])
        ahead = bench.ask([KEYS[1]], pull_class=PullClass.PREFETCH)
        batch = bench.ask([KEYS[1]], pull_class=PullClass.BATCH)
        first = bench.ask([KEYS[1]])
        first.leave()
        gate.set()
        for ask in (running, ahead, batch):
            await bench.collect(ask)
        assert east.asked[1].pull_class == PullClass.BATCH.value


async def test_who_comes_later_and_has_more_time_gets_it() -> None:
    gate = asyncio.Event()
    east = FakeLink("east", KEYS)
    east.script = after(gate, east)
    async with closing(Bench(east)) as bench:
        hurried = bench.ask(timeout=0.05)
        patient = bench.ask(timeout=5.0)
        until = asyncio.get_running_loop().time() + 5.0
        assert await hurried.block(0, until - 4.95) is None
        hurried.leave()
        gate.set()
        assert await bench.collect(patient) == ALL
        assert east.requests == [KEYS]


async def test_who_waits_his_turn_has_the_time_of_the_last_who_came() -> None:
    gate = asyncio.Event()
    east = FakeLink("east", KEYS)
    east.script = after(gate, east)
    async with closing(Bench(east, limits=Limits(pulls_per_peer=1))) as bench:
        running = bench.ask([KEYS[0]])
        hurried = bench.ask([KEYS[1]], timeout=0.05)
        patient = bench.ask([KEYS[1]], timeout=5.0)
        until = asyncio.get_running_loop().time() + 5.0
        assert await hurried.block(0, until - 4.9) is None
        hurried.leave()
        gate.set()
        assert await bench.collect(patient) == [ALL[1]]
        assert await bench.collect(running) == [ALL[0]]


async def test_the_rest_of_a_stream_that_ended_in_its_time_is_asked_for_anew() -> None:
    east = FakeLink("east", KEYS)

    async def slow(request: peer_pb2.PullRequest) -> AsyncGenerator[bytes, None]:
        """One block, and the next not before the deadline."""
        east.script = east.honest
        async for message in east.honest(request):
            east.guard.heard(time.monotonic())
            yield message
            await asyncio.sleep(east.timeout)
            raise LateError("no answer within the deadline", where="east")

    east.script = slow
    limits = Limits(peer_silence_ms=50)
    async with closing(Bench(east, limits=limits)) as bench:
        hurried = bench.ask(timeout=0.1)
        now = asyncio.get_running_loop().time()
        assert await hurried.block(0, now + 5.0) is not None
        assert east.timeout <= 0.1
        patient = bench.ask(timeout=5.0)
        assert await hurried.block(1, now + 0.05) is None
        hurried.leave()
        assert await bench.collect(patient) == ALL
        assert east.requests == [KEYS, KEYS[1:]]
