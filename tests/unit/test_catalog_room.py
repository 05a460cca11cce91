"""Views of all peers share one memory fairly: a peer that claims all there is takes nobody's share."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from federation.catalog.answers import Answers
from federation.catalog.log import HoldingsLog, Position
from federation.catalog.room import BYTES_PER_BLOCK, LEAST_BLOCKS, Room, fair
from federation.catalog.snapshot import Snapshot
from federation.catalog.view import CatalogView, News
from federation.catalog.wire import Assembler
from moonmesh.v1 import peer_pb2
from tests.support.catalogs import LOG, NONE, news, spread, view_of

MIB = 1 << 20


def told(log: HoldingsLog) -> News:
    """All of it, as a subscriber reads it."""
    assembler = Assembler(1 << 20, None)
    for raw in Answers(log, 65_536).since(None):
        answer = assembler.feed(peer_pb2.CatalogPage.FromString(raw))
    assert answer is not None
    return answer


@given(st.integers(0, 1000), st.dictionaries(st.integers(0, 9), st.integers(0, 1000)))
def test_shares_are_fair(total: int, wanted: dict[int, int]) -> None:
    shares = fair(total, wanted)
    assert shares.keys() == wanted.keys()
    assert sum(shares.values()) == min(total, sum(wanted.values()))
    for name, share in shares.items():
        assert share <= wanted[name]
        if (
            share < wanted[name]
        ):  # who has less than it wants has no less than anybody else, but for a rest
            assert all(share >= other - 1 for other in shares.values())


def test_who_claims_more_than_there_can_be_takes_nothing_from_modest_peers() -> None:
    room = Room(100 * MIB)
    everything = 100 * MIB // BYTES_PER_BLOCK
    for peer in ("a", "b"):
        assert room.want(peer, b"x", 1_000_000)
    assert room.want("evil", b"x", 10**11)
    for peer in ("a", "b"):
        assert room.blocks(peer, b"x") == 1_250_000 + LEAST_BLOCKS
    assert room.blocks("evil", b"x") == everything - 2 * (1_250_000 + LEAST_BLOCKS)
    # Nor with many namespaces.
    for n in range(50):
        room.want("evil", bytes([n]), 10**11)
    room.want("a", b"x", 10**10)
    assert room.blocks("b", b"x") == 1_250_000 + LEAST_BLOCKS
    assert room.blocks("a", b"x") >= everything // 3
    for n in range(50):
        room.leave("evil", bytes([n]))
    assert room.leave("evil", b"x")
    assert room.blocks("a", b"x") == everything - room.blocks("b", b"x")


def test_small_changes_are_within_what_there_is_room_for() -> None:
    room = Room(100 * MIB)
    assert room.want("a", b"x", 1_000_000)
    assert not room.want("a", b"x", 1_100_000)
    assert not room.want("a", b"x", 600_000)
    assert room.want("a", b"x", 1_200_000)
    assert room.blocks("a", b"x") == 1_500_000 + LEAST_BLOCKS
    assert room.want("a", b"x", 0)
    assert not room.leave("b", b"x")


def test_a_view_that_has_to_give_room_up_keeps_its_lowest_hashes() -> None:
    rng = np.random.default_rng(1)
    hashes = rng.integers(0, 1 << 64, 50_000, dtype=np.uint64)
    view = view_of(hashes.tolist(), blocks_max=60_000)
    more = rng.integers(0, 1 << 64, 3000, dtype=np.uint64)
    view.apply(news(view, 2, added=more.tolist(), removed=hashes[:1500].tolist()), 1.0)
    before = view.holds(np.sort(np.concatenate([hashes, more])))
    whole = len(view)
    assert not view.is_cut
    view.limit(20_000)
    assert view.is_cut
    ordered = np.sort(np.concatenate([hashes, more]))
    after = view.holds(ordered)
    kept = int(np.flatnonzero(after)[-1]) + 1
    assert (after[:kept] == before[:kept]).all(), "what is below is as it was"
    assert not after[kept:].any()
    assert 19_000 < len(view) < 21_000 < whole
    # Changes above are not believed, those below are, as far as there is room; also by the next merge.
    known = ordered[:kept][after[:kept]]
    gone, come = known[:4000].tolist(), spread(*range(6000))
    view.apply(news(view, 3, added=come, removed=gone), 2.0)
    for n in range(4, 40):
        view.apply(news(view, n), 2.0)
    assert view.merges
    end = int(ordered[kept])
    assert view.holds(np.array([each for each in come if each < end // 2], dtype=np.uint64)).all()
    assert not view.holds(np.array([each for each in come if each > end], dtype=np.uint64)).any()
    assert view.holds(known[:4000]).mean() < 0.01
    assert view.holds(known[4000:]).all()
    assert len(view) <= 20_000
    # And a limit that is no less changes nothing.
    held = len(view)
    view.limit(1 << 30)
    assert len(view) == held


def test_one_bucket_is_kept_whatever_the_limit() -> None:
    snapshot = Snapshot.of(np.array(spread(*range(20_000)), dtype=np.uint64))
    assert snapshot.cut(0).buckets == 1
    assert not snapshot.is_cut
    assert snapshot.cut(0).is_cut
    view = view_of(spread(*range(1000)), blocks_max=2000)
    view.limit(0)
    view.limit(0)
    assert len(view) < 20


def test_a_small_view_has_no_more_memory_for_changes_than_for_its_blocks() -> None:
    """Whatever a peer sends: each change to a view that is full of changes."""
    log = HoldingsLog(bytes(16), 1 << 18)
    rng = np.random.default_rng(2)
    blocks = 200_000
    log.extend(rng.integers(0, 1 << 64, blocks, dtype=np.uint64))
    view = CatalogView(blocks_max=blocks)
    view.apply(told(log), 0.0)
    worst = 0
    for n in range(60):
        held = view._snapshot.prints(0, view._snapshot.buckets)
        gone = np.unique(rng.choice(held, 6000))
        view.apply(News(Position(LOG, n), None, NONE, gone), 0.0)
        merge = view._merge
        making = (
            0 if merge is None else 2 * merge._builder._blocks_max + merge._builder._offsets.nbytes
        )
        worst = max(worst, view.nbytes + making)
    assert worst <= BYTES_PER_BLOCK * blocks
