"""What the class of a pull changes: its turn, what is asked for at a time, and when it is over."""

from __future__ import annotations

import asyncio

from federation.config import Limits
from federation.identity import key_hash
from federation.transfer.ask import Ask
from federation.transfer.fair import PullClass
from federation.transfer.schedule import LOWER_BLOCKS_MAX
from tests.support.catalogs import view_of
from tests.support.wait import wait_for_async
from tests.unit.test_hedge import ALL, after, closing
from tests.unit.test_puller import FP, KEYS, Bench, FakeSource, data_of


async def test_a_lower_class_asks_bit_by_bit_and_a_first_token_for_all() -> None:
    keys = [f"n{i}" for i in range(2 * LOWER_BLOCKS_MAX + 2)]
    east = FakeSource("east", keys)
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
    east = FakeSource("east", KEYS)
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
    east = FakeSource("east", KEYS)
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
