"""Catalogs: a subscriber ends up with what the owner offers, whatever came in between."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federation.catalog.log import Answer, HoldingsLog, Position
from federation.catalog.view import CatalogView, Run, plan
from federation.catalog.wire import Assembler, CatalogError, pages
from moonmesh.v1 import peer_pb2

LOG = b"l" * 16
steps = st.lists(st.tuples(st.integers(0, 20), st.booleans(), st.booleans()), max_size=80)


def over_the_wire(answer: Answer, entries_max: int = 3) -> Answer:
    assembler = Assembler(1000)
    out = None
    for page in pages(answer, entries_max):
        assert out is None, "a page after the last"
        out = assembler.feed(peer_pb2.CatalogPage.FromString(page.SerializeToString()))
    assert out is not None
    return out


@settings(max_examples=200, deadline=None)
@given(steps, st.integers(1, 30))
def test_a_view_that_follows_equals_the_log(
    steps: list[tuple[int, bool, bool]], entries_max: int
) -> None:
    log = HoldingsLog(LOG, entries_max)
    view = CatalogView(blocks_max=100)
    counts: dict[int, int] = {}
    for key_hash, add, follow in steps:
        if add:
            log.add(key_hash)
            counts[key_hash] = counts.get(key_hash, 0) + 1
        elif counts.get(key_hash, 0):
            log.remove(key_hash)
            counts[key_hash] -= 1
        if follow:
            view.apply(over_the_wire(log.since(view.position)), 1.0)
    view.apply(over_the_wire(log.since(view.position)), 1.0)
    held = {key_hash for key_hash, count in counts.items() if count}
    assert {key_hash for key_hash in range(21) if view.has(key_hash, 1.0)} == held
    assert len(view) == len(log) == len(held)
    assert view.position == log.position


def test_who_is_below_the_floor_or_of_another_log_gets_a_snapshot() -> None:
    log = HoldingsLog(LOG, 2)
    for key_hash in range(5):
        log.add(key_hash)
    assert log.floor == 3
    assert log.since(Position(LOG, 2)).snapshot
    assert log.since(Position(b"m" * 16, 5)).snapshot
    assert log.since(Position(LOG, 6)).snapshot
    assert log.since(None).snapshot
    assert log.since(Position(LOG, 3)) == Answer(Position(LOG, 5), False, [3, 4], [])


def test_what_came_and_went_costs_no_bytes_twice() -> None:
    log = HoldingsLog(LOG, 100)
    for _ in range(10):
        log.add(1)
        log.remove(1)
    assert log.since(Position(LOG, 0)) == Answer(Position(LOG, 20), False, [], [1])


GOOD = peer_pb2.Position(log_id=LOG, n=1)


@pytest.mark.parametrize(
    ("page", "says"),
    [
        (peer_pb2.CatalogPage(last=True), "log id of 0 bytes"),
        (peer_pb2.CatalogPage(position=GOOD, added=b"1234567", last=True), "7 bytes of hashes"),
        (peer_pb2.CatalogPage(position=GOOD, snapshot=True, removed=bytes(8)), "that removes"),
        (peer_pb2.CatalogPage(position=GOOD), "empty page"),
        (
            peer_pb2.CatalogPage(position=peer_pb2.Position(log_id=LOG, n=1 << 63), last=True),
            "a position",
        ),
    ],
)
def test_a_page_that_does_not_fit_is_refused(page: peer_pb2.CatalogPage, says: str) -> None:
    with pytest.raises(CatalogError, match=says):
        Assembler(10).feed(page)


def test_pages_that_disagree_are_refused() -> None:
    assembler = Assembler(10)
    assembler.feed(peer_pb2.CatalogPage(position=GOOD, added=bytes(8)))
    other = peer_pb2.Position(log_id=LOG, n=2)
    with pytest.raises(CatalogError, match="disagree"):
        assembler.feed(peer_pb2.CatalogPage(position=other, added=bytes(8)))


def test_a_peer_that_claims_too_much_is_believed_up_to_the_limit() -> None:
    assembler = Assembler(4)
    answer = Answer(Position(LOG, 9), True, list(range(9)), [])
    out = None
    for page in pages(answer, 2):
        out = assembler.feed(page)
    assert out is not None
    assert out.added == [0, 1, 2, 3]
    assert assembler.left_out == 5
    view = CatalogView(blocks_max=4)
    view.apply(Answer(Position(LOG, 9), True, list(range(9)), []), 0.0)
    view.apply(Answer(Position(LOG, 10), False, [77], []), 0.0)
    assert len(view) == 4
    assert not view.has(77, 0.0)


def test_a_refuted_block_is_not_asked_for_again_for_a_while() -> None:
    view = CatalogView(blocks_max=10, misses_max=2, miss_seconds=5.0)
    view.apply(Answer(Position(LOG, 3), True, [1, 2, 3], []), 0.0)
    view.refute(1, 10.0)
    assert not view.has(1, 14.9)
    assert view.has(1, 15.0)
    for key_hash in (1, 2, 3):
        view.refute(key_hash, 20.0)
    assert view.has(1, 20.0), "the oldest of three is forgotten at a limit of two"
    assert not view.has(2, 20.0)
    view.apply(Answer(Position(LOG, 4), False, [2], []), 20.0)
    assert view.has(2, 20.0), "an owner that announces it again is believed again"
    assert view.false_positives == 4


def views(**held: list[int]) -> list[tuple[str, CatalogView]]:
    out = []
    for peer, hashes in held.items():
        view = CatalogView(blocks_max=100)
        view.apply(Answer(Position(LOG, 1), True, hashes, []), 0.0)
        out.append((peer, view))
    return out


@pytest.mark.parametrize(
    ("held", "runs"),
    [
        ({"a": [0, 1], "b": [0, 1, 2, 3]}, [Run("b", [0, 1, 2, 3])]),
        ({"a": [0, 1], "b": [2, 3]}, [Run("a", [0, 1]), Run("b", [2, 3])]),
        ({"a": [0, 2, 3]}, [Run("a", [0])]),
        ({"a": [1, 2]}, []),
        ({"a": [0, 1], "b": [0, 1]}, [Run("a", [0, 1])]),
        ({}, []),
    ],
)
def test_a_chain_is_planned_up_to_its_first_gap(
    held: dict[str, list[int]], runs: list[Run]
) -> None:
    assert plan([0, 1, 2, 3], views(**held), 0.0) == runs
