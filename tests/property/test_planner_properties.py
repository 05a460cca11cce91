"""Any chain, any holders: each block once, no hole that somebody could fill, and nobody kept waiting."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from federation.transfer.planner import Planner, share_out
from federation.transfer.speed import SURE_PULLS, Speeds
from tests.support.catalogs import spread, view_of

MIB = 1 << 20
costs = st.tuples(st.floats(0, 5), st.floats(1e-6, 2), st.just(True))


@settings(max_examples=300, deadline=None)
@given(st.lists(costs, min_size=1, max_size=8), st.integers(1, 300), st.integers(1, 40))
def test_no_other_holder_would_deliver_a_block_sooner(
    costs: list[tuple[float, float, bool]], count: int, part: int
) -> None:
    held = np.full(count, (1 << len(costs)) - 1, dtype=np.uint64)
    who, done = share_out(held, costs, part)
    for n, (first, each, _) in enumerate(costs):
        own = done[who == n]
        assert np.allclose(own, first + each * np.arange(1, len(own) + 1)), "one after the other"
    asked = sorted(set(who.tolist()))
    assert len(asked) <= max(1, count // part)
    if len(asked) > 1:
        assert (np.diff(done) >= -1e-9).all(), "the run grows with each block that comes"
        for n in asked:
            next_one = costs[n][0] + costs[n][1] * ((who == n).sum() + 1)
            assert done[-1] <= next_one + 1e-6, "in proportion: it could not have taken one more"


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sets(st.integers(0, 39)), st.sampled_from([0.0, 1e5, 1e6, 1e8])), max_size=6
    ),
    st.sampled_from([None, 1e-4, 0.1, 3.0]),
    st.integers(1, 20),
    st.booleans(),
)
def test_each_block_of_the_leading_run_is_planned_once(
    peers: list[tuple[set[int], float]], compute: float | None, kib: int, whatever: bool
) -> None:
    chain = spread(*range(40))
    speeds = Speeds(rate_max=1e9)
    views = []
    for n, (numbers, rate) in enumerate(peers):
        view = view_of(chain[i] for i in numbers)
        views.append((str(n), view))
        for _ in range(SURE_PULLS + 1 if rate else 0):
            view.came(kib * 32 * 1024)
            timed = speeds.begin(str(n), 0.0)
            timed.came(MIB, 0.01 + MIB / rate)
            timed.came(MIB, 0.01 + 2 * MIB / rate)
            timed.done()
    plan = Planner(speeds, lambda _: compute).plan(
        b"", chain, views, 0.0, whatever_it_takes=whatever
    )
    run = next((i for i in range(40) if not any(i in numbers for numbers, _ in peers)), 40)
    planned = sorted(i for each in plan.runs for i in each.indices)
    assert plan.located == run
    assert planned == list(range(run - plan.left)), "no block twice, no hole"
    for each in plan.runs:
        assert each.indices == sorted(each.indices)
        assert set(each.indices) <= peers[int(each.peer)][0], "asked of who has it"
    assert len({each.peer for each in plan.runs}) == len(plan.runs)
    if compute is None or whatever:
        assert plan.left == 0
    elif plan.left and plan.pull_seconds is not None:
        assert plan.pull_seconds > compute * plan.left, "what is left is cheaper to compute"
