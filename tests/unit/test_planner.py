"""The planner: the leading run, shared out by what peers deliver, and pulled as far as that is cheaper."""

from __future__ import annotations

import numpy as np
import pytest

from federation.catalog.view import CatalogView
from federation.transfer.planner import (
    BLOCK_BYTES_GUESSED,
    STRETCHES_MAX,
    TRIAL_BYTES,
    TRY_AGAIN_SECONDS,
    Plan,
    Planner,
    Run,
    share_out,
)
from federation.transfer.speed import SURE_PULLS, Speeds
from tests.support.catalogs import spread, view_of

MIB = 1 << 20
CHAIN = spread(*range(100))


class Bench:
    """Peers that have numbers of `CHAIN`, in blocks of a MiB."""

    def __init__(self, size: int = MIB) -> None:
        self.size = size
        self.speeds = Speeds(rate_max=1e9)
        self.block_seconds: float | None = None
        self.planner = Planner(self.speeds, lambda fingerprint: self.block_seconds)
        self.views: list[tuple[str, CatalogView]] = []

    def peer(self, name: str, blocks: range, rate: float = 0.0, first: float = 0.0) -> None:
        view = view_of(CHAIN[i] for i in blocks)
        self.views.append((name, view))
        if rate:
            view.came(self.size)
            self.pulled(name, rate, first)

    def pulled(self, name: str, rate: float, first: float = 0.0, at: float = 0.0) -> None:
        for _ in range(SURE_PULLS + 1):
            timed = self.speeds.begin(name, at)
            timed.came(MIB, at + first + MIB / rate)
            timed.came(9 * MIB, at + first + 10 * MIB / rate)
            timed.done()

    def plan(self, now: float = 0.0, **options: bool) -> Plan:
        return self.planner.plan(b"", CHAIN, self.views, now, **options)


def counts(plan: Plan) -> dict[str, int]:
    return {run.peer: len(run.indices) for run in plan.runs}


def test_a_run_that_one_peer_has_is_one_request() -> None:
    bench = Bench()
    bench.peer("a", range(60))
    bench.peer("b", range(40, 90))
    plan = bench.plan()
    assert plan.located == 90
    assert {run.peer for run in plan.runs} == {"a", "b"}
    assert sorted(i for run in plan.runs for i in run.indices) == list(range(90))
    assert (plan.decision, plan.left) == ("pull", 0)


def test_what_several_have_is_split_by_what_they_deliver() -> None:
    bench = Bench()
    bench.peer("slow", range(100), rate=1e7)
    bench.peer("fast", range(100), rate=3e7)
    plan = bench.plan()
    assert counts(plan) == {"fast": 75, "slow": 25}
    fast, slow = plan.runs
    assert fast.peer == "fast"
    assert all(abs(sum(i < end for i in slow.indices) - end / 4) <= 1 for end in range(100)), (
        "in turns: the run grows by what both deliver"
    )
    assert plan.pull_seconds == pytest.approx(100 * MIB / 4e7, rel=0.05)


def test_a_peer_that_answers_late_is_given_what_comes_later() -> None:
    bench = Bench()
    bench.peer("near", range(100), rate=1e7)
    bench.peer("far", range(100), rate=1e7, first=2.0)
    near, far = bench.plan().runs
    assert (near.peer, far.peer) == ("near", "far")
    assert len(near.indices) - len(far.indices) == pytest.approx(2.0 * 1e7 / MIB, abs=1.5)
    assert far.indices[0] >= 18, "by then the other has delivered what comes before"


def test_a_small_run_is_not_split() -> None:
    bench = Bench(size=10_000)
    bench.peer("slow", range(100), rate=1e7)
    bench.peer("fast", range(100), rate=3e7)
    assert counts(bench.plan()) == {"fast": 100}, "a MB is asked of one"


def test_of_peers_that_are_no_faster_the_first_is_asked() -> None:
    bench = Bench(size=10_000)
    for name in "abc":
        bench.peer(name, range(100), rate=1e7)
    assert counts(bench.plan()) == {"a": 100}
    unknown = Bench()
    unknown.peer("x", range(1))
    unknown.peer("y", range(1))
    assert counts(unknown.plan()) == {"x": 1}


def test_a_peer_of_which_nothing_is_known_is_tried() -> None:
    bench = Bench(size=10_000)
    bench.peer("known", range(100), rate=1e7)
    bench.peer("new", range(100))
    assert counts(bench.plan()) == {"new": 100}
    bench.pulled("new", rate=1e6)
    assert counts(bench.plan()) == {"known": 100}


def test_of_a_dear_chain_only_what_is_cheaper_to_pull_is_pulled() -> None:
    bench = Bench()
    bench.block_seconds = 0.1
    bench.peer("fast", range(30), rate=1e8)
    bench.peer("slow", range(100), rate=1e6)
    plan = bench.plan()
    assert plan.located == 100
    assert plan.decision == "pull a part"
    assert plan.left == pytest.approx(70, abs=1)
    assert plan.recompute_seconds == pytest.approx(10.0)
    assert plan.pull_seconds is not None
    assert plan.pull_seconds > 10.0
    assert bench.plan(whatever_it_takes=True).left == 0
    bench.block_seconds = 2.0
    assert bench.plan().left == 0


def test_where_nothing_is_cheaper_to_pull_nothing_is_and_where_nothing_is_known_all_is() -> None:
    bench = Bench()
    bench.peer("slow", range(100), rate=1e6)
    assert bench.plan().left == 0, "the namespace does not say"
    bench.block_seconds = 0.1
    plan = bench.plan()
    assert (plan.runs, plan.left, plan.decision) == ([], 100, "recompute")
    assert plan.attributes()["moonmesh.pull_ms"] == pytest.approx(100 * MIB / 1e3, rel=0.01)
    assert plan.attributes()["moonmesh.recompute_ms"] == pytest.approx(10_000)
    unsure = Bench()
    unsure.block_seconds = 1e-6
    unsure.peer("new", range(100))
    plan = unsure.plan()
    assert (plan.left, plan.pull_seconds, plan.decision) == (0, None, "pull")


def test_a_slow_peer_is_tried_again_now_and_then_with_a_few_blocks() -> None:
    bench = Bench()
    bench.block_seconds = 0.1
    bench.peer("slow", range(100), rate=1e6)
    for at in (10.0, TRY_AGAIN_SECONDS):
        assert bench.plan(at).trial == 0, "it has been measured just now"
    at = TRY_AGAIN_SECONDS + 50 * MIB / 1e6
    plan = bench.plan(at)
    assert (plan.trial, plan.left, plan.decision) == (TRIAL_BYTES // MIB, 96, "trial")
    assert plan.runs == [Run("slow", list(range(4)))]
    assert bench.plan(at + 1).trial == 0, "whatever came of it"
    for n in range(3):
        bench.pulled("slow", rate=1e8, at=at + n * TRY_AGAIN_SECONDS)
    assert bench.plan(at + 3 * TRY_AGAIN_SECONDS).left == 0


def test_a_chain_in_many_pieces_is_planned_whole() -> None:
    rng = np.random.default_rng(1)
    held = rng.integers(1, 16, 8000).astype(np.uint64)
    who, done = share_out(held, [(0.0, 1.0 + n, True) for n in range(4)], 2)
    assert all(int(bits) >> n & 1 for bits, n in zip(held, who.tolist(), strict=True))
    late = held[4 * STRETCHES_MAX :], who[4 * STRETCHES_MAX :]
    assert all(
        not bits & 1 or n == 0 for bits, n in zip(*map(np.ndarray.tolist, late), strict=True)
    )
    assert (done > 0).all()


def test_a_block_whose_size_nobody_knows_is_taken_as_a_small_one() -> None:
    bench = Bench()
    bench.peer("a", range(100))
    bench.peer("b", range(100))
    plan = bench.plan()
    assert (sum(counts(plan).values()), len(plan.runs)) == (
        100,
        min(2, 100 * BLOCK_BYTES_GUESSED // MIB),
    )


def test_where_nobody_has_the_first_block_there_is_nothing_to_plan() -> None:
    bench = Bench()
    assert bench.plan().decision == "nobody has it"
    bench.peer("a", range(1, 50))
    plan = bench.plan()
    assert (plan.runs, plan.located) == ([], 0)


def test_a_line_is_dear_beside_a_much_faster_one_or_beside_computing() -> None:
    bench = Bench()
    for name, rate in (("near", 1e9), ("far", 1e7), ("new", 0.0)):
        bench.peer(name, range(100), rate=rate)
    dear = [bench.planner.dear(b"", name, MIB, 0.0) for name in ("near", "far", "new")]
    assert dear == [False, True, False]
    alone = Bench()
    alone.peer("far", range(100), rate=1e7)
    assert not alone.planner.dear(b"", "far", MIB, 0.0), "there is none beside it"
    alone.block_seconds = 0.15
    assert not alone.planner.dear(b"", "far", MIB, 0.9), "it is looked at each second"
    assert alone.planner.dear(b"", "far", MIB, 1.0)
    alone.block_seconds = 0.5
    assert not alone.planner.dear(b"", "far", MIB, 2.0)
    fast = Bench()
    for name, rate in (("near", 1e9), ("there", 1.2e8)):
        fast.peer(name, range(100), rate=rate)
    assert not fast.planner.dear(b"", "there", MIB, 0.0), "eight times slower, and fast enough"
