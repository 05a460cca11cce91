"""Which blocks of peers the admission policy wants in the local pool, and when."""

from __future__ import annotations

from federation.transfer.copies import Copies
from federation.transfer.policy import REMEMBERED_POOLS, AdmissionPolicy


def test_a_policy_says_when() -> None:
    always, never = AdmissionPolicy("always"), AdmissionPolicy("never")
    assert always.landed()
    assert [always.given(1) for _ in range(3)] == [False] * 3
    assert not never.landed()
    assert [never.given(1) for _ in range(3)] == [False] * 3
    second = AdmissionPolicy("second-hit")
    assert not second.landed()
    # Once admitted it begins anew: it comes from a peer again only if it is gone here.
    assert [second.given(1) for _ in range(5)] == [False, True, False, True, False]
    assert [second.given(1, dear=True), second.given(1)] == [True, False]
    assert not always.given(1, dear=True)
    assert not never.given(1, dear=True)


def test_first_hits_are_remembered_up_to_a_limit() -> None:
    policy = AdmissionPolicy("second-hit", remembered=100)
    for key_hash in range(1000):
        assert not policy.given(key_hash)
        assert len(policy) <= 200
    assert policy.given(999)
    assert policy.given(900)  # of the half before
    assert not policy.given(0)  # long ago: as if it were the first time


def test_a_second_hit_counts_while_a_part_of_the_pool_was_written() -> None:
    written = 0.0
    policy = AdmissionPolicy("second-hit", lambda: written)
    half = REMEMBERED_POOLS
    for later, admitted in ((0.99 * half, True), (1.99 * half, True), (2.0 * half, False)):
        written, first = written + 100, int(written)
        assert not policy.given(first)
        begun = written
        assert not policy.given(first + 1)  # begins no half of its own: nothing was written
        written = begun + half - 1e-9
        assert not policy.given(first + 2)
        written = begun + later
        assert policy.given(first) is admitted, later


def test_what_a_pool_has_seen_is_told_in_pools() -> None:
    copies = Copies(25)
    assert copies.turnover(1000) == 0.0, "nobody knows how large it is"
    copies.pool_is(500)
    assert (copies.turnover(1000), copies.quota) == (2.0, 125)
