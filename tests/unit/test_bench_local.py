from __future__ import annotations

from random import Random

import pytest

from federation.bench.local import AGAIN, FEDERATED, PLAIN, figures, targets
from federation.bench.paired import Way, ratio, run_paired, spread


def test_each_round_has_each_way_once_in_drawn_order() -> None:
    seen: list[tuple[str, int]] = []
    ended: list[int] = []

    def way(name: str) -> Way:
        def once(number: int) -> float:
            seen.append((name, number))
            return float(number)

        return once

    found = run_paired(
        {"a": way("a"), "b": way("b")},
        40,
        Random(3),
        first=-2,
        after=ended.append,
    )
    assert found == {"a": [float(n) for n in range(-2, 38)], "b": [float(n) for n in range(-2, 38)]}
    assert ended == list(range(-2, 38))
    rounds = [tuple(name for name, number in seen if number == n) for n in ended]
    assert set(rounds) == {("a", "b"), ("b", "a")}


def test_it_ends_early_with_what_there_is() -> None:
    calls = iter([False, False, True])
    found = run_paired({"a": lambda n: 1.0}, 10, Random(1), stopped=lambda: next(calls))
    assert found == {"a": [1.0, 1.0]}


def test_a_spread_is_how_far_the_same_thing_differs_from_itself() -> None:
    even = [1.0] * 1000
    assert spread(even, even, 0.99) == 1.0
    late = even[:]
    late[110:120] = [3.0] * 10  # in one part of ten
    assert spread(even, late, 0.99) == spread(late, even, 0.99) == 3.0
    assert spread(even[:99], even, 0.99) is None  # too little to say
    assert ratio([], even, 0.5) is None


@pytest.mark.parametrize(("ours", "met"), [(1.02, True), (1.04, False)])
def test_the_targets_are_of_medians_and_the_slowest_hundredth(ours: float, met: bool) -> None:
    plain = [1.0] * 1000
    ms = {"get": {FEDERATED: [ours] * 1000, PLAIN: plain, AGAIN: plain}}
    found = {t.name: t for t in targets(ms)}
    assert found["get: p50 over plain"].met is met
    assert found["get: p99 over plain, within its spread"].met is False  # the same is 1.0 always
    assert found["put: p50 over plain"].met is None  # not measured
    assert figures(ms)["get"]["ratio_p50"] == pytest.approx(ours)
