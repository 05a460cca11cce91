"""Holdings: what is attributed, what is offered, what a listing corrects."""

from __future__ import annotations

import numpy as np
import pytest

from local_group import holdings as module
from local_group.holdings import CHANGED, HOPS_MAX, OWN, UNKNOWN, Change, Held, Holdings
from local_group.names import name_of

FP = b"f" * 16
DIGEST = b"d" * 16
OTHER = b"e" * 16


def make(blocks_max: int = 100, hop_limit: int = 1) -> tuple[Holdings, list[Change]]:
    changes: list[Change] = []
    return Holdings(blocks_max=blocks_max, hop_limit=hop_limit, on_change=changes.append), changes


def change(fingerprint: bytes, key: str, added: bool, attested: bool = True) -> Change:
    return Change(fingerprint, name_of(fingerprint, key), added, attested)


def list_keys(holdings: Holdings, *keys: str, began_at: float) -> tuple[int, set[int]]:
    """A listing that has these keys: how many blocks are withdrawn, and what is found."""
    listed = np.array(sorted(name_of(FP, key) for key in keys), dtype=np.uint64)
    steps = list(holdings.compare(FP, listed, began_at))
    return sum(gone for gone, _ in steps), {name for _, new in steps for name in new.tolist()}


def test_an_own_block_is_offered_and_a_pulled_one_is_not() -> None:
    holdings, changes = make()
    assert holdings.report(FP, "own", 5, DIGEST, 1.0)
    assert holdings.admit(FP, "foreign", 5, DIGEST, "west", 7, 1, 1.0)
    assert holdings.exportable(FP, "own") is not None
    assert holdings.exportable(FP, "foreign") is None
    assert holdings.get(FP, "foreign") == Held(5, DIGEST, "west", 7, 1, 1.0)
    assert changes == [change(FP, "own", True)]


def test_a_pulled_block_is_offered_where_the_hop_limit_says_so() -> None:
    holdings, changes = make(hop_limit=2)
    holdings.admit(FP, "foreign", 5, DIGEST, "west", 7, 1, 1.0)
    assert changes == [change(FP, "foreign", True)]


def test_writing_back_a_pulled_block_does_not_make_it_our_own() -> None:
    holdings, _ = make()
    holdings.admit(FP, "k", 5, DIGEST, "west", 7, 1, 1.0)
    assert not holdings.report(FP, "k", 5, DIGEST, 2.0)
    held = holdings.get(FP, "k")
    assert held is not None
    assert held.origin == "west"


def test_a_second_digest_for_one_key_is_kept_beside_the_first() -> None:
    holdings, changes = make()
    holdings.report(FP, "k", 5, DIGEST, 1.0)
    assert not holdings.report(FP, "k", 6, OTHER, 2.0)
    held = holdings.get(FP, "k")
    assert held is not None
    assert (held.digest, held.rival) == (DIGEST, OTHER)
    assert holdings.conflicts == 1
    assert changes == [change(FP, "k", True)]


def test_a_listing_withdraws_what_is_gone_and_spares_what_came_after_it_began() -> None:
    holdings, _ = make()
    holdings.report(FP, "kept", 5, DIGEST, 1.0)
    holdings.report(FP, "gone", 5, DIGEST, 1.0)
    holdings.report(FP, "late", 5, DIGEST, 3.0)
    gone, found = list_keys(holdings, "kept", "new", began_at=2.0)
    assert (gone, found) == (1, {name_of(FP, "new")})
    assert {name for _, name, _ in holdings.items()} == {name_of(FP, k) for k in ("kept", "late")}


def test_at_the_limit_further_blocks_are_refused_and_counted() -> None:
    holdings, _ = make(blocks_max=2)
    assert holdings.report(FP, "a", 1, DIGEST, 1.0)
    assert holdings.report(FP, "b", 1, DIGEST, 1.0)
    assert not holdings.report(FP, "c", 1, DIGEST, 1.0)
    assert holdings.refused == 1
    assert len(holdings) == 2
    holdings.withdraw(FP, "a")
    assert holdings.report(FP, "c", 1, DIGEST, 1.0)


def test_the_last_entry_of_the_journal_stands() -> None:
    holdings, _ = make()
    holdings.restore(FP, "k", Held(5, DIGEST, OWN, 0, 0, 0.0))
    holdings.restore(FP, "k", Held(5, DIGEST, "west", 3, 1, 0.0))
    assert holdings.exportable(FP, "k") is None
    assert len(holdings) == 1


def test_what_peers_may_not_have_is_told_apart() -> None:
    offered: list[Change] = []
    hidden: list[Change] = []
    held = Holdings(blocks_max=9, hop_limit=1, on_change=offered.append, on_hidden=hidden.append)
    held.report(FP, "own", 8, DIGEST, 0.0)
    held.admit(FP, "pulled", 8, DIGEST, "west", 3, 1, 0.0)
    for key in ("own", "pulled"):
        held.withdraw(FP, key)
    assert offered == [change(FP, "own", True), change(FP, "own", False)]
    assert hidden == [change(FP, "pulled", True), change(FP, "pulled", False)]


def test_what_a_listing_finds_is_offered_only_where_the_namespace_allows_it() -> None:
    changes: list[Change] = []
    allowed = b"a" * 16
    held = Holdings(
        blocks_max=9, hop_limit=1, on_change=changes.append, unattested_ok=lambda fp: fp == allowed
    )
    assert held.find(FP, "k", OWN, 1.0)
    assert held.find(allowed, "k", OWN, 1.0)
    assert not held.find(allowed, "k", OWN, 2.0)
    assert held.find(allowed, "doubtful", UNKNOWN, 1.0)
    assert held.exportable(FP, "k") is None
    assert held.exportable(allowed, "k") == Held(0, b"", OWN, 0, 0, 1.0)
    assert held.exportable(allowed, "doubtful") is None
    assert held.unattested == 3
    assert changes == [change(allowed, "k", True, attested=False)]


def test_a_report_attests_what_a_listing_found() -> None:
    holdings, changes = make()
    holdings.find(FP, "k", OWN, 1.0)
    holdings.find(FP, "doubtful", UNKNOWN, 1.0)
    assert changes == []
    for key in ("k", "doubtful"):
        assert holdings.report(FP, key, 5, DIGEST, 2.0)
        assert holdings.exportable(FP, key) == Held(5, DIGEST, OWN, 0, 0, 2.0)
    assert changes == [change(FP, "k", True), change(FP, "doubtful", True)]
    assert holdings.unattested == 0
    assert holdings.conflicts == 0


def test_a_block_whose_bytes_were_replaced_is_offered_to_nobody_whatever_is_reported() -> None:
    holdings, changes = make()
    holdings.report(FP, "k", 5, DIGEST, 1.0)
    assert holdings.withhold(FP, "k", 2.0)
    assert not holdings.withhold(FP, "k", 2.0)
    assert not holdings.withhold(FP, "other", 2.0)
    assert not holdings.report(FP, "k", 5, OTHER, 3.0)
    assert not holdings.find(FP, "k", OWN, 3.0)
    assert holdings.get(FP, "k") == Held(0, b"", CHANGED, 0, HOPS_MAX, 2.0)
    assert holdings.exportable(FP, "k") is None
    assert changes == [change(FP, "k", True), change(FP, "k", False)]
    list_keys(holdings, began_at=9.0)
    assert holdings.report(FP, "k", 5, OTHER, 10.0), "it is another block now"


def test_what_went_while_a_listing_was_made_is_not_found_by_it() -> None:
    holdings, _ = make()
    holdings.report(FP, "k", 5, DIGEST, 1.0)
    holdings.listing_begins()
    holdings.withdraw(FP, "k")
    assert not holdings.findable(FP, "k")
    assert holdings.findable(FP, "other")
    holdings.listing_ends()
    assert holdings.findable(FP, "k")


def test_when_too_much_goes_while_a_listing_is_made_it_finds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "GONE_MAX", 2)
    holdings, _ = make()
    for key in "abc":
        holdings.report(FP, key, 5, DIGEST, 1.0)
    holdings.listing_begins()
    for key in "ab":
        holdings.withdraw(FP, key)
    assert holdings.findable(FP, "other")
    holdings.withdraw(FP, "c")
    assert not holdings.findable(FP, "other")
