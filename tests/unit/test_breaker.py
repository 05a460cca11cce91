"""The breaker's table of states, with a clock that is an argument."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_group.breaker import Breaker, BreakerLimits, BreakerState

LIMITS = BreakerLimits(failures=3, window=6, open_s=1.0, open_max_s=8.0, jitter=0.0, probe_s=5.0)


def opened(limits: BreakerLimits = LIMITS) -> Breaker:
    breaker = Breaker(limits, random.Random(1))
    for _ in range(limits.failures):
        breaker.failure(0.0)
    assert breaker.state(0.0) is BreakerState.OPEN
    return breaker


def test_closed_lets_all_pass_and_opens_at_the_limit() -> None:
    changes: list[BreakerState] = []
    breaker = Breaker(LIMITS, random.Random(1), changes.append)
    breaker.failure(0.0)
    breaker.failure(0.0)
    assert breaker.allow(0.0)
    assert changes == []
    breaker.failure(0.0)
    assert not breaker.allow(0.0)
    assert changes == [BreakerState.OPEN]
    assert breaker.opened == 1


def test_successes_between_failures_do_not_hide_them() -> None:
    breaker = Breaker(LIMITS, random.Random(1))
    for _ in range(2):
        breaker.failure(0.0)
        breaker.success(0.0)
    breaker.failure(0.0)
    assert breaker.state(0.0) is BreakerState.OPEN


def test_failures_that_left_the_window_are_forgotten() -> None:
    breaker = Breaker(LIMITS, random.Random(1))
    for _ in range(5):
        breaker.failure(0.0)
        for _ in range(5):
            breaker.success(0.0)
    assert breaker.state(0.0) is BreakerState.CLOSED


def test_half_open_lets_one_probe_pass() -> None:
    breaker = opened()
    assert not breaker.allow(0.99)
    assert breaker.retry_in(0.25) == pytest.approx(0.75)
    assert breaker.state(1.0) is BreakerState.HALF_OPEN
    assert breaker.allow(1.0)
    assert not breaker.allow(1.1), "one probe at a time"
    breaker.success(1.2)
    assert breaker.state(1.2) is BreakerState.CLOSED
    assert breaker.retry_in(1.2) == 0.0


def test_failed_probes_double_the_time_up_to_the_limit() -> None:
    breaker = opened()
    now = 0.0
    for seconds in (1.0, 2.0, 4.0, 8.0, 8.0):
        assert not breaker.allow(now + seconds - 0.01)
        now += seconds
        assert breaker.allow(now)
        breaker.failure(now)


def test_a_probe_without_a_verdict_frees_its_place() -> None:
    breaker = opened()
    assert breaker.allow(1.0)
    breaker.release(1.1)
    assert breaker.allow(1.1)
    assert not breaker.allow(6.0)
    assert breaker.allow(6.2), "a probe that is never heard of holds nobody back for ever"


def test_verdicts_of_older_calls_do_not_close_or_prolong() -> None:
    breaker = opened()
    breaker.success(0.5)
    assert breaker.state(0.5) is BreakerState.OPEN
    breaker.failure(0.5)
    assert breaker.state(1.0) is BreakerState.HALF_OPEN


def test_back_off_starts_anew_after_a_calm_in_proportion() -> None:
    limits = BreakerLimits(
        failures=1, window=2, open_s=1.0, open_max_s=8.0, jitter=0.0, calm_times=5.0
    )
    breaker = Breaker(limits, random.Random(1))
    breaker.failure(0.0)
    assert breaker.allow(1.0)
    breaker.success(1.0)
    breaker.failure(2.0)
    assert breaker.state(3.5) is BreakerState.OPEN, "it flaps: 2 s now"
    assert breaker.allow(4.0)
    breaker.success(4.0)
    breaker.failure(13.9)
    assert breaker.state(17.8) is BreakerState.OPEN, "9.9 s were not five times 2 s: 4 s now"
    assert breaker.allow(17.9)
    breaker.success(18.0)
    breaker.failure(38.0)
    assert breaker.state(39.0) is BreakerState.HALF_OPEN, "20 s were calm: 1 s again"


@given(st.floats(0, 1, exclude_max=True), st.floats(0, 1), st.integers(0, 100))
def test_time_open_is_within_its_limits(draw: float, jitter: float, openings: int) -> None:
    class Rng:
        def random(self) -> float:
            return draw

    limits = BreakerLimits(failures=1, window=1, open_s=1.0, open_max_s=8.0, jitter=jitter)
    breaker = Breaker(limits, Rng())
    now = 0.0
    breaker.failure(now)
    for _ in range(openings):
        now += breaker.retry_in(now) + 1e-6
        assert breaker.allow(now)
        breaker.failure(now)
    assert (1.0 - jitter) * 1.0 - 1e-6 <= breaker.retry_in(now) <= 8.0


@pytest.mark.parametrize(
    "bad",
    [
        {"failures": 0},
        {"failures": 7, "window": 6},
        {"open_s": 0.0},
        {"open_s": 2.0, "open_max_s": 1.0},
        {"jitter": 1.5},
    ],
)
def test_limits_are_checked(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="<"):
        BreakerLimits(**bad)  # type: ignore[arg-type]


def test_a_verdict_of_a_call_from_before_the_opening_says_nothing() -> None:
    """Many calls are under way when it opens; their late ends must not hold up the recovery."""
    breaker = Breaker(BreakerLimits(failures=1, open_s=1.0, jitter=0.0), random.Random(1))
    breaker.failure(10.0, began=9.0)
    assert breaker.allow(11.0), "the probe"
    for _ in range(5):
        breaker.failure(11.1, began=9.5)
        breaker.success(11.1, began=9.5)
    assert breaker.state(11.2) is BreakerState.HALF_OPEN
    breaker.success(11.2, began=11.0)
    assert breaker.state(11.2) is BreakerState.CLOSED


def test_what_was_let_in_before_the_opening_does_not_make_room_for_a_second_probe() -> None:
    breaker = Breaker(BreakerLimits(failures=1, open_s=1.0, jitter=0.0), random.Random(1))
    breaker.failure(10.0)
    assert breaker.allow(11.0), "the probe"
    breaker.release(11.1, began=10.0)
    assert not breaker.allow(11.1)
    breaker.release(11.1, began=11.0)
    assert breaker.allow(11.1)
