"""Budgets: retries in proportion to requests, and leased bytes within the time of a lease."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation.limits.budget import LEASE_SLOTS, LeaseBudget, RetryBudget, hops_allowed

MIB = 1 << 20


def test_a_few_retries_in_any_case_and_not_one_more() -> None:
    budget = RetryBudget(10, 3)
    assert [budget.take() for _ in range(4)] == [True, True, True, False]


def test_then_one_for_each_ten_requests() -> None:
    budget = RetryBudget(10, 1)
    assert budget.take()
    for _ in range(9):
        budget.request()
    assert not budget.take()
    budget.request()
    assert budget.take()


def test_credit_is_not_hoarded() -> None:
    budget = RetryBudget(10, 2)
    for _ in range(1000):
        budget.request()
    assert [budget.take() for _ in range(3)] == [True, True, False]


@given(st.integers(0, 100), st.integers(1, 5), st.lists(st.booleans(), max_size=200))
def test_retries_never_exceed_their_share(percent: int, few: int, steps: list[bool]) -> None:
    budget, requests, retries = RetryBudget(percent, few), 0, 0
    for is_retry in steps:
        if not is_retry:
            budget.request()
            requests += 1
        elif budget.take():
            retries += 1
        assert 100 * retries <= percent * requests + 100 * few
        assert 0 <= budget.left <= few


def test_two_percent_of_the_pool_and_not_a_byte_more() -> None:
    budget = LeaseBudget(2, MIB, 10.0)
    budget.resize(1000 * MIB)
    assert budget.allowed == 20 * MIB
    assert budget.take(20 * MIB - 1, 0.0)
    assert budget.take(1, 0.0)
    assert not budget.take(1, 0.0)
    assert budget.leased == 20 * MIB


@pytest.mark.parametrize(
    ("pool", "allowed"),
    [
        (None, 64 * MIB),  # not known yet
        (0, 0),
        (64 * MIB, 8 * MIB),  # an eighth
        (512 * MIB, 64 * MIB),
        (3200 * MIB, 64 * MIB),  # two percent are as much
        (6400 * MIB, 128 * MIB),
    ],
)
def test_a_small_pool_has_a_least_allowance(pool: int | None, allowed: int) -> None:
    budget = LeaseBudget(2, 64 * MIB, 10.0)
    if pool is not None:
        budget.resize(pool)
    assert budget.allowed == allowed


def test_it_is_free_again_once_the_lease_is_over_and_not_before() -> None:
    budget = LeaseBudget(2, 10, 10.0)
    assert budget.take(10, 0.0)
    slot = 10.0 / LEASE_SLOTS
    assert not budget.take(1, 10.0)
    assert budget.wait(1, 10.0) == pytest.approx(slot)
    assert budget.take(1, 10.0 + slot)


def test_a_read_above_the_whole_allowance_goes_alone() -> None:
    """Else a block that is larger than it could never be had."""
    budget = LeaseBudget(2, 10, 10.0)
    assert budget.take(25, 0.0)
    assert not budget.take(1, 5.0)
    assert budget.wait(25, 5.0) > 5.0
    assert budget.take(25, 5.0 + budget.wait(25, 5.0))


def test_a_clock_that_goes_back_frees_nothing() -> None:
    budget = LeaseBudget(2, 10, 10.0)
    assert budget.take(10, 100.0)
    assert not budget.take(1, 0.0)
    assert budget.leased_at(0.0) == 10
    late = LeaseBudget(2, 10, 10.0)
    assert late.leased_at(100.0) == 0
    assert late.take(10, 50.0)
    assert late.leased_at(105.0) == 10, "its lease began at 100 at the earliest"


@given(
    st.lists(st.tuples(st.floats(0, 4), st.integers(1, 60)), max_size=80),
    st.floats(0.1, 20),
)
def test_never_more_than_the_allowance_within_any_lease(
    steps: list[tuple[float, int]], ttl: float
) -> None:
    budget = LeaseBudget(2, 100, ttl)
    now, reads = 0.0, list[tuple[float, int]]()
    for step, size in steps:
        now += step
        wait = budget.wait(size, now)
        if budget.take(size, now):
            assert wait == 0
            reads.append((now, size))
        else:
            assert 0 < wait <= ttl * (1 + 1 / LEASE_SLOTS) + 1e-9
        true = sum(n for at, n in reads if now < at + ttl)
        assert true <= 100
        assert budget.leased_at(now) >= true, "never fewer than are leased"
        assert len(budget._reads) <= LEASE_SLOTS + 2


def test_waiting_as_told_is_enough() -> None:
    budget = LeaseBudget(2, 100, 7.0)
    for now in range(5):
        assert budget.take(20, float(now))
    wait = budget.wait(50, 5.0)
    assert not budget.fits(50, 5.0 + wait - 0.01)
    assert budget.fits(50, 5.0 + wait)


def test_one_hop_and_no_second() -> None:
    assert hops_allowed(0, 1)
    assert not hops_allowed(1, 1)
