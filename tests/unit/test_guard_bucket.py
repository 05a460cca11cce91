"""Token buckets: at the limit, one over it, refill over time, and a clock that goes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation.limits.bucket import TokenBucket


def test_the_burst_passes_and_one_more_does_not() -> None:
    bucket = TokenBucket(10, 5)
    assert [bucket.take(1, 0.0) for _ in range(6)] == [True] * 5 + [False]


def test_it_refills_at_its_rate_and_never_above_its_burst() -> None:
    bucket = TokenBucket(10, 5)
    assert bucket.take(5, 100.0)
    assert not bucket.take(1, 100.09)
    assert bucket.wait(1, 100.09) == pytest.approx(0.01)
    assert bucket.take(1, 100.1)
    assert bucket.level(1000.0) == 5


@given(st.floats(0.1, 1e9), st.floats(0, 1e9), st.floats(0, 1e6))
def test_waiting_as_told_is_enough(rate: float, debt: float, now: float) -> None:
    bucket = TokenBucket(rate, rate)
    bucket.level(now)
    until = now + bucket.charge(rate + debt, now)
    # A moment is told to some microseconds this far from the start of the clock.
    assert bucket.has(0, until + 1e-9 * max(1.0, until))


def test_a_refused_take_takes_nothing() -> None:
    bucket = TokenBucket(10, 5)
    assert bucket.take(3, 0.0)
    assert not bucket.take(3, 0.0)
    assert bucket.take(2, 0.0)


def test_what_is_charged_may_leave_a_debt_that_holds_the_next_back() -> None:
    bucket = TokenBucket(10, 5)
    assert bucket.charge(5, 0.0) == 0.0
    assert bucket.has(0, 0.0)
    assert bucket.charge(20, 0.0) == pytest.approx(2.0)
    assert not bucket.has(0, 1.99)
    assert bucket.has(0, 2.0)


def test_more_than_the_burst_is_let_in_by_a_full_bucket_alone_and_paid_for_after() -> None:
    bucket = TokenBucket(10, 5)
    assert bucket.take(25, 0.0)
    assert bucket.wait(25, 0.0) == pytest.approx(2.5)
    assert not bucket.take(25, 2.4)
    assert bucket.take(25, 2.5)


def test_a_clock_that_goes_back_neither_gives_nor_takes() -> None:
    bucket = TokenBucket(10, 5)
    assert bucket.take(3, 50.0)
    assert bucket.level(10.0) == 2
    assert bucket.level(50.0) == 2
    assert bucket.level(50.1) == pytest.approx(3)


@pytest.mark.parametrize(("rate", "burst"), [(0, 1), (-1, 1), (1, 0)])
def test_a_bucket_without_a_rate_or_a_burst_is_a_defect(rate: float, burst: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        TokenBucket(rate, burst)


STEPS = st.lists(
    st.tuples(st.floats(-5, 5), st.integers(0, 30), st.booleans()), min_size=1, max_size=60
)


@given(STEPS)
def test_the_mean_rate_holds_whatever_is_asked(steps: list[tuple[float, int, bool]]) -> None:
    rate, burst = 7.0, 20.0
    bucket, now, taken, debt = TokenBucket(rate, burst), 0.0, 0.0, 0.0
    bucket.level(now)
    latest = now
    for step, n, known in steps:
        now += step
        latest = max(latest, now)
        if known:
            taken += n if bucket.take(n, now) else 0
        elif bucket.has(0, now):  # as a guard does it: nothing more begins in debt
            bucket.charge(n, now)
            taken += n
        debt = max(0.0, -bucket.level(now))
        assert taken <= burst + rate * latest + debt + 1e-6
        assert bucket.level(now) <= burst
        assert debt <= 30  # never more than one call's
