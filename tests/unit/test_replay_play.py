from __future__ import annotations

import asyncio
from typing import Any

import pytest

from federation.bench.engine import Answer
from federation.bench.engines import BenchError
from federation.bench.replay import lease_ttl_ms, play
from federation.bench.tally import Tally, quantile, replay_figures, replay_targets
from federation.bench.workload import Request, Workload


def an_answer(number: int = 0, **change: Any) -> Answer:
    base = Answer(
        number=number, local=1, peer=0, misses=1, wrong_bytes=0, get_ms=1.0, put_ms=2.0,
        overrun_ms=0.0, overrun_raw_ms=0.0, put_overrun_ms=0.0, put_overrun_raw_ms=0.0,
        errors=[], codes={},
    )  # fmt: skip
    return base._replace(**change)


class FakeEngine:
    def __init__(self) -> None:
        self.asked: list[int] = []
        self.in_flight = self.in_flight_max = 0
        self.gate: asyncio.Event | None = None
        self.fail_at = -1
        self.reached = asyncio.Event()
        self.reached_at = 0

    async def ask(self, number: int, keys: tuple[str, ...], timeout: float) -> Answer:
        self.asked.append(number)
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        if len(self.asked) == self.reached_at:
            self.reached.set()
        try:
            if self.gate is not None:
                await self.gate.wait()
            else:
                await asyncio.sleep(0)
            if number == self.fail_at:
                raise BenchError("the engine broke off")
            return an_answer(number)
        finally:
            self.in_flight -= 1

    async def finish(self) -> dict[str, Any]:
        return {}


def a_workload(count: int, rate: float | None = None, groups: int = 2) -> Workload:
    return Workload(
        tuple(
            Request(i, None if rate is None else i / rate, i % groups, (str(i), "x"))
            for i in range(count)
        ),
        groups,
        8192,
    )


async def played(
    workload: Workload,
    engines: list[FakeEngine],
    *,
    stop: asyncio.Event | None = None,
    concurrency: int = 8,
    answer_s: float = 5.0,
) -> Tally:
    tally = Tally("federated")
    await play(
        workload,
        engines,
        tally,
        concurrency=concurrency,
        answer_s=answer_s,
        stop=stop or asyncio.Event(),
        progress=lambda _: None,
    )
    return tally


async def test_every_request_goes_to_its_group_once() -> None:
    engines = [FakeEngine(), FakeEngine()]
    tally = await played(a_workload(51), engines)
    assert tally.requests == 51
    assert engines[0].asked == list(range(0, 51, 2))
    assert engines[1].asked == list(range(1, 51, 2))
    assert tally.hit_rate == 0.5


async def test_as_many_as_wanted_are_in_flight_and_no_more() -> None:
    engine = FakeEngine()
    engine.gate = asyncio.Event()
    engine.reached_at = 8
    task = asyncio.create_task(played(a_workload(30, groups=1), [engine], concurrency=8))
    await asyncio.wait_for(engine.reached.wait(), 5)
    for _ in range(20):
        await asyncio.sleep(0)
    assert engine.in_flight == 8
    engine.gate.set()
    assert (await task).requests == 30
    assert engine.in_flight_max == 8


async def test_requests_wait_for_their_due_time() -> None:
    tally = await played(a_workload(11, rate=50.0), [FakeEngine(), FakeEngine()])
    assert tally.elapsed_s >= 0.2
    assert len(tally.late_ms) == 11


async def test_stop_ends_it_and_keeps_what_there_is() -> None:
    stop = asyncio.Event()
    engine = FakeEngine()
    engine.reached_at = 3
    task = asyncio.create_task(played(a_workload(1000, rate=10, groups=1), [engine], stop=stop))
    await asyncio.wait_for(engine.reached.wait(), 5)
    stop.set()
    tally = await asyncio.wait_for(task, 5)
    assert 3 <= tally.requests < 10
    assert tally.requests == len(engine.asked)


async def test_stop_ends_it_although_every_place_is_held_by_an_engine_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("federation.bench.replay.DRAIN_S", 0.05)
    stop = asyncio.Event()
    engine = FakeEngine()
    engine.gate, engine.reached_at = asyncio.Event(), 2
    task = asyncio.create_task(
        played(a_workload(10, groups=1), [engine], stop=stop, concurrency=2, answer_s=60)
    )
    await asyncio.wait_for(engine.reached.wait(), 5)
    stop.set()
    assert (await asyncio.wait_for(task, 5)).requests == 0
    assert engine.in_flight == 0


async def test_a_broken_engine_ends_it_with_its_error() -> None:
    engine = FakeEngine()
    engine.fail_at = 20
    with pytest.raises(BenchError, match="broke off"):
        await played(a_workload(1000, groups=1), [engine])
    assert len(engine.asked) < 40


def test_a_lease_pins_little_of_the_pool() -> None:
    work = a_workload(100)  # 16 KiB a request
    assert lease_ttl_ms(1 << 30, work, rate=10.0) == 10_000
    assert lease_ttl_ms(16 << 20, work, rate=100.0) == 512
    assert lease_ttl_ms(1 << 20, work, rate=100.0) == 500
    assert lease_ttl_ms(1 << 20, Workload((), 2, 8192), None) == 10_000


def a_tally(mode: str, local: int, peer: int, misses: int, **change: Any) -> Tally:
    tally = Tally(mode)
    tally.add(an_answer(local=local, peer=peer, misses=misses, **change))
    return tally


def test_figures_of_all_modes() -> None:
    found = replay_figures(
        {
            "federated": a_tally("federated", 20, 9, 71),
            "isolated": a_tally("isolated", 20, 0, 80, wrong_bytes=3),
            "one-pool": a_tally("one-pool", 30, 0, 70, overrun_ms=5.0),
        },
        lru=0.31,
        extra={"peer_bytes": 7},
    )
    assert (found["local_hits"], found["peer_hits"]) == (20, 9)
    assert (found["hit_rate"], found["isolated_hit_rate"], found["one_pool_hit_rate"]) == (
        0.29,
        0.20,
        0.30,
    )
    assert found["ratio_to_one_pool"] == pytest.approx(0.29 / 0.30)
    assert (found["wrong_bytes"], found["deadline_overruns"], found["peer_bytes"]) == (3, 1, 7)
    assert {t.name: t.met for t in replay_targets(found)} == {
        "wrong_bytes": False,
        "deadline_overruns": False,
        "ratio_to_one_pool": False,
        "wasted_share": None,
        "metadata_share": None,
    }


def test_modes_that_played_different_parts_are_not_compared() -> None:
    short = a_tally("federated", 20, 9, 71)
    long = a_tally("one-pool", 30, 0, 70)
    long.add(an_answer(1))
    found = replay_figures({"federated": short, "one-pool": long}, lru=None, extra={})
    assert found["ratio_to_one_pool"] is None
    assert found["one_pool_hit_rate"] is None
    assert found["modes"]["one-pool"]["hit_rate"] is not None


@pytest.mark.parametrize(("failed", "met"), [(1, True), (2, None)])
def test_a_pool_that_failed_is_no_yardstick(failed: int, met: bool | None) -> None:
    found = replay_figures(
        {
            "federated": a_tally("federated", 40, 20, 90),
            "one-pool": a_tally("one-pool", 30, 0, 120, codes={"put -900": failed}),
        },
        lru=None,
        extra={},
    )
    assert found["ratio_to_one_pool"] == pytest.approx(2.0)
    assert {t.name: t.met for t in replay_targets(found)}["ratio_to_one_pool"] is met


def test_as_many_requests_are_not_the_same_requests() -> None:
    other = Tally("isolated")
    other.add(an_answer(1))
    found = replay_figures(
        {"federated": a_tally("federated", 1, 0, 1), "isolated": other}, lru=None, extra={}
    )
    assert found["isolated_hit_rate"] is None


def test_overruns_are_counted_with_and_without_what_is_excused() -> None:
    tally = Tally("federated")
    tally.add(an_answer(overrun_ms=5.0, overrun_raw_ms=30.0))
    tally.add(an_answer(overrun_raw_ms=9.0, put_overrun_ms=7.0, put_overrun_raw_ms=80.0))
    tally.engine_stats = [{"machine_delay_ms": 3.0, "thread_delay_ms": 4.0}, {}]
    found = replay_figures({"federated": tally, "isolated": Tally("isolated")}, lru=None, extra={})
    for figures in (found, found["modes"]["federated"]):
        assert (figures["deadline_overruns"], figures["deadline_overruns_raw"]) == (2, 3)
        assert (figures["worst_overrun_ms"], figures["worst_overrun_raw_ms"]) == (7.0, 80.0)
    assert found["modes"]["federated"]["put_overruns"] == 1
    assert found["modes"]["federated"]["machine_delay_ms_max"] == 3.0
    assert found["modes"]["isolated"]["thread_delay_ms_max"] is None


def test_figures_of_nothing() -> None:
    found = replay_figures({}, lru=None, extra={})
    assert (found["requests"], found["hit_rate"], found["ratio_to_one_pool"]) == (0, None, None)
    assert {t.met for t in replay_targets(found)} == {None}


def test_a_single_mode_is_what_the_plain_figures_are_of() -> None:
    found = replay_figures({"isolated": a_tally("isolated", 1, 0, 3)}, lru=None, extra={})
    assert (found["hit_rate"], found["isolated_hit_rate"]) == (0.25, 0.25)


def test_errors_are_counted_and_the_first_kept() -> None:
    tally = Tally("federated")
    for number in range(20):
        tally.add(an_answer(errors=[f"e{number}"], codes={"get -800": 2}))
    assert (tally.errors, len(tally.first_errors)) == (20, 8)
    assert tally.codes == {"get -800": 40}


def test_quantiles_are_of_nearest_rank() -> None:
    assert quantile([], 0.5) is None
    assert quantile([3, 1, 2], 0.5) == 2
    assert quantile(range(100), 0.99) == 98
    assert quantile([5], 0.99) == 5
