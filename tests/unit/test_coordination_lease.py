"""The two sides of a lease, and a term on top of it."""

from __future__ import annotations

import asyncio
import math

import pytest

from local_group.coordination.base import Term, check_entry, check_valid, keep
from local_group.coordination.lease import MARGIN, Lease, Patience, clock
from local_group.process_errors import CoordinationError, CoordinationGone, Fenced


def test_a_lease_ends_early_and_for_good() -> None:
    lease = Lease(10.0, 100.0)
    assert lease.deadline == pytest.approx(110 - 10 * MARGIN)
    assert lease.holds(108.9)
    assert not lease.holds(109.1)
    assert not lease.holds(105.0), "time went back, and the lease came back with it"


def test_a_renewal_counts_from_when_it_was_asked_for() -> None:
    lease = Lease(10.0, 100.0)
    lease.renewed(104.0, 108.0)
    assert lease.deadline == pytest.approx(113.0)
    lease.renewed(101.0, 109.0)  # an older one, late
    assert lease.deadline == pytest.approx(113.0)


def test_a_renewal_that_comes_too_late_changes_nothing() -> None:
    lease = Lease(10.0, 100.0)
    lease.renewed(108.0, 109.5)  # a process that was frozen reads the answer first
    assert not lease.holds(109.6)


def test_a_lease_without_an_end() -> None:
    lease = Lease(math.inf, 100.0)
    assert lease.holds(1e12)
    lease.end()
    assert not lease.holds(100.0)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan])
def test_no_lease_of_no_time(seconds: float) -> None:
    with pytest.raises(ValueError, match="a lease of"):
        Lease(seconds, 0.0)


def test_patience_starts_anew_with_each_stamp() -> None:
    patience = Patience()
    assert patience.until(1, 10.0, 100.0) == 110.0
    assert patience.until(1, 10.0, 105.0) == 110.0
    assert patience.until(2, 10.0, 106.0) == 116.0
    assert patience.until(3, 0.0, 107.0) == 107.0


def test_the_clock_counts_sleep() -> None:
    assert clock() <= clock()


def test_a_term_that_is_over() -> None:
    term = Term(3, 7, Lease(10.0, 100.0))
    assert term.valid(101.0)
    term.end()
    assert not term.valid(101.0)
    assert term.lost.is_set()
    with pytest.raises(Fenced, match="epoch 3 is over"):
        check_valid(term)


async def test_a_term_is_kept_while_it_is_renewed() -> None:
    lease = Lease(0.3, clock())
    term = Term(1, 1, lease)
    renewals = 0

    async def renew() -> bool:
        nonlocal renewals
        renewals += 1
        if renewals == 2:
            raise CoordinationGone("for a moment")
        return renewals < 6

    await asyncio.wait_for(keep(term, lease, renew), 5)
    assert renewals == 6
    assert term.lost.is_set()


async def test_a_term_that_nobody_renews_ends_by_itself() -> None:
    began = clock()
    lease = Lease(0.3, began)
    term = Term(1, 1, lease)

    async def hangs() -> bool:
        await asyncio.Event().wait()
        return True

    await asyncio.wait_for(keep(term, lease, hangs), 5)
    assert not term.valid()
    assert clock() - began >= 0.27


async def test_a_defect_of_a_renewal_ends_the_term() -> None:
    lease = Lease(0.3, clock())
    term = Term(1, 1, lease)

    async def broken() -> bool:
        raise RuntimeError("a defect")

    with pytest.raises(RuntimeError):
        await keep(term, lease, broken)
    assert term.lost.is_set()


@pytest.mark.parametrize("key", ["", "/a", "A", "a b", "a\n", "k" * 129, "é"])
def test_keys_that_are_refused(key: str) -> None:
    with pytest.raises(CoordinationError, match="is not a key"):
        check_entry(key)


def test_entries_that_are_allowed() -> None:
    check_entry("a/b-c_d.e", b"x" * (16 << 10))
    with pytest.raises(CoordinationError, match="above 16384"):
        check_entry("a", b"x" * ((16 << 10) + 1))
