"""Catalogs against sets: whatever comes and goes in whatever order, what is held is found."""

from __future__ import annotations

from collections import Counter
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from federation.catalog import bag, gaps, overlay
from federation.catalog.answers import Answers
from federation.catalog.coverage import ENOUGH_VIEWS, cover, locate
from federation.catalog.log import HoldingsLog
from federation.catalog.prints import BITS_MIN, distinct, prints_of
from federation.catalog.snapshot import Snapshot, SnapshotBuilder
from federation.catalog.view import CatalogView
from federation.catalog.wire import Assembler
from moonmesh.v1 import peer_pb2
from tests.support.catalogs import LOG, hashes_of, spread, view_of

# Of 64 hashes the first 32 come in pairs with one print; the last lie at both ends of all that there are.
ALIKE = [h ^ twin for h in spread(*range(16)) for twin in (0, 1)]
HASHES = [*ALIKE, *spread(*range(100, 128)), 0, 1, (1 << 64) - 1, (1 << 64) - 2]
steps = st.lists(
    st.tuples(st.integers(0, 63), st.booleans(), st.sampled_from(["", "", "follow", "lag"])),
    max_size=120,
)
words = st.integers(0, (1 << 64) - 1)


def follow(answers: Answers, view: CatalogView) -> None:
    assembler = Assembler(1000, None if view.position is None else view.bits)
    out = None
    for raw in answers.since(view.position):
        assert out is None, "a page after the last"
        out = assembler.feed(peer_pb2.CatalogPage.FromString(raw))
    assert out is not None
    view.apply(out, 1.0)


@settings(max_examples=150, deadline=None)
@given(steps, st.integers(1, 30), st.integers(1, 9), st.integers(1, 40))
def test_who_follows_finds_all_that_is_held_and_what_looks_like_it_alone(
    steps: list[tuple[int, bool, str]], ring: int, page: int, merge_at: int
) -> None:
    """Two subscribers, of whom one lags; merging goes on all the while, in slices of a few blocks."""
    with (
        mock.patch.multiple(overlay, SLICE_BLOCKS=300),
        mock.patch("federation.catalog.view.MERGE_AT", merge_at),
        mock.patch.multiple(bag, SLICE_HASHES=3, MERGE_AT=merge_at),
        mock.patch("federation.catalog.log.SETTLE_AT", 5),
    ):
        log = HoldingsLog(LOG, ring)
        answers = Answers(log, page)
        views = [CatalogView(blocks_max=1000), CatalogView(blocks_max=1000)]
        counts: Counter[int] = Counter()
        for place, add, then in steps:
            key_hash = HASHES[place]
            if add:
                log.add(key_hash)
                counts[key_hash] += 1
            else:
                log.remove(key_hash)
                counts[key_hash] -= counts[key_hash] > 0
            assert len(log) == counts.total()
            if then:
                follow(answers, views[then == "lag"])
        for view in views:
            while view.position != log.position:
                follow(answers, view)
            held = {h >> (64 - view.bits) for h, count in counts.items() if count}
            found = view.holds(hashes_of(HASHES)).tolist()
            assert found == [h >> (64 - view.bits) in held for h in HASHES]
            assert len(view) == len(held)


@settings(max_examples=100, deadline=None)
@given(st.lists(words, max_size=200), st.lists(words, max_size=50))
def test_a_snapshot_holds_what_was_put_in(inside: list[int], asked: list[int]) -> None:
    snapshot = Snapshot.of(hashes_of(inside))
    assert snapshot.contains(hashes_of(inside)).all()
    held = {h >> (64 - snapshot.bits) for h in inside}
    assert len(snapshot) == len(held)
    expected = [h >> (64 - snapshot.bits) in held for h in asked]
    assert snapshot.contains(hashes_of(asked)).tolist() == expected
    back = snapshot.prints(0, snapshot.buckets)
    assert back.tolist() == sorted(held)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, (1 << 26) - 1), max_size=300),
    st.integers(0, 200),
    st.integers(1, 1 << 10),
    st.integers(1, 40),
)
def test_a_cut_snapshot_has_whole_buckets_from_the_lowest(
    inside: list[int], room: int, buckets: int, piece: int
) -> None:
    # Close together, so that buckets have many; and in two places far apart.
    some = [p % 1000 * 700 + (p >> 25 << 25) for p in inside]
    prints = distinct(np.sort(hashes_of(some)))
    builder = SnapshotBuilder(26, room, buckets)
    for start in range(0, len(prints), piece):
        builder.take(prints[start : start + piece])
    snapshot = builder.build()
    kept = snapshot.prints(0, snapshot.buckets)
    assert kept.tolist() == prints[: len(kept)].tolist()
    assert len(kept) <= room
    assert builder.left_out == len(prints) - len(kept)
    if builder.left_out:
        assert int(prints[len(kept)]) >> 16 >= snapshot.buckets
    assert snapshot.holds(prints).sum() == len(kept)


@settings(max_examples=150, deadline=None)
@given(st.lists(words, min_size=1, max_size=100), st.integers(BITS_MIN, 40), st.booleans())
def test_gaps_give_back_what_was_encoded(hashes: list[int], bits: int, from_zero: bool) -> None:
    prints = distinct(np.sort(prints_of(hashes_of(hashes), bits)))
    base = 0 if from_zero else int(prints[0])
    width, packed = gaps.encode(prints, base)
    assert gaps.decode(packed, width, base, bits).tolist() == prints.tolist()
    assert len(packed) <= gaps.bytes_max(len(prints))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sets(st.integers(0, 29)), max_size=7),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 29)), max_size=4),
    st.integers(1, 8),
    st.integers(8, 40),
)
def test_a_chain_is_covered_up_to_the_first_block_that_nobody_has(
    held: list[set[int]], refuted: list[tuple[int, int]], first: int, most: int
) -> None:
    chain = spread(*range(30))
    views = [view_of(chain[i] for i in numbers) for numbers in held]
    for peer, place in refuted:
        if peer < len(held):
            views[peer].refute(chain[place], 0.0)
            held[peer].discard(place)
    run = next((i for i in range(30) if not any(i in numbers for numbers in held)), 30)
    with mock.patch.multiple("federation.catalog.coverage", LOOK_FIRST=first, LOOK_MOST=most):
        found = cover(chain, views, 1.0).tolist()
        ends = [next((i for i in range(30) if i not in numbers), 30) for numbers in held]
        assert locate(chain, views, 1.0) == ends
    assert len(found) == run
    for place, bits in enumerate(found):
        holders = {n for n in range(len(held)) if bits >> n & 1}
        assert holders, "somebody has it"
        assert all(place in held[n] for n in holders)
        if len(held) <= ENOUGH_VIEWS and place == 0:
            assert holders == {n for n in range(len(held)) if 0 in held[n]}
