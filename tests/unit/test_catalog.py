"""Catalogs: a subscriber ends up with what the owner offers, whatever came in between."""

from __future__ import annotations

import numpy as np
import pytest

from federation.catalog import coverage, gaps
from federation.catalog.answers import Answers
from federation.catalog.coverage import ENOUGH_VIEWS, cover, locate
from federation.catalog.log import CHANGES_MAX, HoldingsLog, Position
from federation.catalog.prints import BITS_MIN, bits_for, still_fit
from federation.catalog.snapshot import Snapshot, SnapshotBuilder
from federation.catalog.view import CatalogView, News
from federation.catalog.wire import Assembler, CatalogError
from moonmesh.v1 import peer_pb2
from tests.support.catalogs import LOG, NONE, hashes_of, news, spread, view_of, whole


def over_the_wire(
    answers: Answers, view: CatalogView, blocks_max: int = 1 << 20
) -> tuple[News, Assembler]:
    assembler = Assembler(blocks_max, None if view.position is None else view.bits)
    for raw in answers.since(view.position):
        page = peer_pb2.CatalogPage.FromString(raw)
        out = assembler.feed(page)
        if out is not None:
            assert page.last or assembler.left_out
            return out, assembler
    raise AssertionError("no last page")


def random_hashes(number: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 64, number, dtype=np.uint64)


# The log


def test_who_is_below_the_floor_or_of_another_log_gets_a_snapshot() -> None:
    log = HoldingsLog(LOG, 2)
    hashes = spread(*range(5))
    for key_hash in hashes:
        log.add(key_hash)
    assert log.floor == 3
    for after in (Position(LOG, 2), Position(b"m" * 16, 5), Position(LOG, 6), None):
        assert not log.reaches(after)
    assert log.reaches(Position(LOG, 3))
    changes = log.changes(Position(LOG, 3))
    assert changes.position == Position(LOG, 5)
    assert changes.added.tolist() == sorted(h >> (64 - BITS_MIN) for h in hashes[3:])
    assert not len(changes.removed)


def test_what_came_and_went_costs_no_bytes_twice() -> None:
    log = HoldingsLog(LOG, 100)
    (key_hash,) = spread(1)
    for _ in range(10):
        log.add(key_hash)
        log.remove(key_hash)
    changes = log.changes(Position(LOG, 0))
    assert (len(changes.added), len(changes.removed)) == (0, 1)
    assert changes.position == Position(LOG, 20)


def test_a_block_that_looks_like_one_that_went_is_still_found() -> None:
    log, view = HoldingsLog(LOG, 100), CatalogView(blocks_max=100)
    (gone,) = spread(1)
    alike = gone ^ 1
    log.add(gone)
    log.add(alike)
    answers = Answers(log, 10)
    view.apply(over_the_wire(answers, view)[0], 0.0)
    log.remove(gone)
    view.apply(over_the_wire(answers, view)[0], 0.0)
    assert view.has(alike, 0.0)
    log.remove(alike)
    view.apply(over_the_wire(answers, view)[0], 0.0)
    assert not view.has(alike, 0.0)


def test_removing_what_is_not_there_changes_nothing() -> None:
    log = HoldingsLog(LOG, 100)
    (key_hash,) = spread(1)
    log.remove(key_hash)
    log.add(key_hash)
    assert len(log) == 1
    assert len(log.changes(Position(LOG, 0)).added) == 1


def test_a_snapshot_is_made_once_for_all_who_ask_until_the_ring_has_moved_on() -> None:
    log = HoldingsLog(LOG, 8)
    answers = Answers(log, 10)
    hashes = spread(*range(20))
    log.extend(hashes_of(hashes[:10]))
    first = list(answers.since(None))
    log.add(hashes[10])
    again = list(answers.since(None))
    assert all(a is b for a, b in zip(first, again, strict=True))
    for key_hash in hashes[11:13]:
        log.add(key_hash)
    view = CatalogView(blocks_max=100)
    out, _ = over_the_wire(answers, view)
    assert out.position == log.position
    view.apply(out, 0.0)
    assert len(view) == 13


def test_prints_get_longer_as_blocks_come_and_subscribers_start_anew() -> None:
    log = HoldingsLog(LOG, 1 << 18)
    log.extend(random_hashes(40_000))
    assert log.floor == log.position.n
    assert log.whole().bits == bits_for(40_000) == BITS_MIN + 2


@pytest.mark.parametrize("blocks", [0, 1, 1000, 18 << 10, 10**6, 10**7, 10**8])
def test_the_bits_of_prints_do_for_a_third_less_and_a_third_more(blocks: int) -> None:
    bits = bits_for(blocks)
    assert still_fit(bits, blocks)
    assert still_fit(bits, blocks * 4 // 3)
    assert still_fit(bits, blocks * 2 // 3)


# Bytes


@pytest.mark.parametrize(("number", "bits"), [(1, 26), (1000, 26), (200, 36), (100_000, 32)])
def test_gaps_give_back_what_was_encoded(number: int, bits: int) -> None:
    prints = np.unique(random_hashes(number) >> np.uint64(64 - bits))
    for base in (0, int(prints[0])):
        width, packed = gaps.encode(prints, base)
        assert np.array_equal(gaps.decode(packed, width, base, bits), prints)
        assert len(packed) <= gaps.bytes_max(number)


def test_the_largest_prints_can_be_encoded() -> None:
    prints = hashes_of([0, (1 << 40) - 1])
    width, packed = gaps.encode(prints, 0)
    assert gaps.decode(packed, width, 0, 40).tolist() == prints.tolist()
    assert gaps.encode(NONE, 5) == (2, b"")


def test_a_snapshot_takes_two_bytes_a_block_on_the_wire_and_little_more_in_memory() -> None:
    log = HoldingsLog(LOG, 1 << 18)
    hashes = random_hashes(200_000)
    log.extend(hashes)
    answers = Answers(log, 65_536)
    assert sum(map(len, answers.since(None))) <= 2.01 * len(hashes)
    view = CatalogView(blocks_max=len(hashes))
    view.apply(over_the_wire(answers, view)[0], 0.0)
    assert view.nbytes <= 2.5 * len(hashes)
    assert view.holds(hashes).all()
    absent = random_hashes(1_000_000, seed=2)
    assert view.holds(absent).mean() <= 0.0005
    for key_hash in hashes[:500].tolist():
        log.remove(key_hash)
    changes = list(answers.since(view.position))
    assert sum(map(len, changes)) <= 5 * 500


def test_a_small_catalog_is_small() -> None:
    log = HoldingsLog(LOG, 1 << 18)
    answers = Answers(log, 65_536)
    assert sum(map(len, answers.since(None))) <= 40
    log.extend(random_hashes(100))
    assert sum(map(len, answers.since(None))) <= 50 + 3 * 100
    assert Snapshot.of(random_hashes(100)).nbytes <= 5000


GOOD = peer_pb2.Position(log_id=LOG, n=1)
PRINTS = peer_pb2.Prints(base=1, width=2, gaps=bytes(4))


def page(**fields: object) -> peer_pb2.CatalogPage:
    return peer_pb2.CatalogPage(**({"position": GOOD, "form": 1, "bits": 26} | fields))  # type: ignore[arg-type]


def packed(**fields: object) -> peer_pb2.Prints:
    return peer_pb2.Prints(**({"width": 2, "gaps": bytes(2)} | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (peer_pb2.CatalogPage(form=1, last=True), "log id of 0 bytes"),
        (page(position=peer_pb2.Position(log_id=LOG, n=1 << 63), last=True), "a position"),
        (page(form=2, last=True), "form 2; this version reads form 1"),
        (page(bits=25, snapshot=True), "25 bits"),
        (page(bits=41, snapshot=True), "41 bits"),
        (page(bits=27, last=True), "changes in prints of 27 bits, not 26"),
        (page(added=packed(gaps=bytes(3))), "3 bytes in words of 2"),
        (page(added=packed(width=1)), "words of 1 bytes"),
        (page(added=packed(width=6)), "words of 6 bytes"),
        (page(added=packed(gaps=b"\xff\xff")), "behind which nothing comes"),
        (page(added=packed(base=1 << 26)), "a base above 26 bits"),
        (page(added=packed(width=4, gaps=b"\0\0\0\4")), "a print above 26 bits"),
        (page(snapshot=True, blocks=9, removed=PRINTS), "that removes"),
        (page(snapshot=True, blocks=1, added=PRINTS), "more than the 1 blocks"),
        (page(), "empty page"),
    ],
)
def test_a_page_that_does_not_fit_is_refused(bad: peer_pb2.CatalogPage, says: str) -> None:
    with pytest.raises(CatalogError, match=says):
        Assembler(10, 26).feed(bad)


def test_pages_that_disagree_are_refused() -> None:
    for snapshot in (True, False):
        assembler = Assembler(10, 26)
        assembler.feed(page(snapshot=snapshot, blocks=9, added=PRINTS))
        other = peer_pb2.Position(log_id=LOG, n=2)
        with pytest.raises(CatalogError, match="disagree"):
            assembler.feed(page(snapshot=snapshot, blocks=9, position=other, added=PRINTS))
        with pytest.raises(CatalogError, match="not above those before"):
            assembler.feed(page(snapshot=snapshot, blocks=9, added=PRINTS))


def test_changes_without_end_are_refused() -> None:
    assembler = Assembler(10, 26)
    many = packed(gaps=bytes(2 * CHANGES_MAX))
    assembler.feed(page(removed=many))
    with pytest.raises(CatalogError, match="more than 262144 changes"):
        assembler.feed(page(added=packed()))


def test_changes_for_who_has_nothing_are_refused() -> None:
    with pytest.raises(CatalogError, match="not None"):
        Assembler(10, None).feed(page(last=True))


# Views


def test_a_peer_that_claims_too_much_is_believed_up_to_the_limit() -> None:
    log = HoldingsLog(LOG, 1 << 18)
    hashes = random_hashes(100_000)
    log.extend(hashes)
    view = CatalogView(blocks_max=1000)
    out, assembler = over_the_wire(Answers(log, 400), view, blocks_max=1000)
    view.apply(out, 0.0)
    held = view.holds(hashes)
    assert 900 < len(view) <= 1000
    assert held.sum() - len(view) <= 2
    assert 0 < assembler.left_out <= 400 + 1000, "and not read any further"
    assert np.array_equal(np.sort(hashes)[: held.sum()], np.sort(hashes[held])), "the lowest"
    view.apply(news(view, 2, added=hashes.tolist()), 0.0)
    assert len(view) <= 1000
    assert view.left_out > 0


def test_a_snapshot_that_claims_buckets_for_everything_gets_its_share() -> None:
    claim = page(snapshot=True, blocks=1 << 60, bits=40, added=packed(), last=True)
    out = Assembler(1000, None).feed(claim)
    assert out is not None
    assert out.snapshot is not None
    assert out.snapshot.nbytes < 10_000


def test_a_builder_keeps_whole_buckets() -> None:
    builder = SnapshotBuilder(26, 3)
    bucket = 1 << 16
    builder.take(hashes_of([1, bucket]))
    builder.take(hashes_of([bucket + 1, bucket + 2]))
    snapshot = builder.build()
    assert len(snapshot) == 1
    assert builder.left_out == 3
    assert snapshot.holds(hashes_of([1, bucket, bucket + 1])).tolist() == [True, False, False]


def test_a_view_stands_at_a_limit_and_changes_go_on() -> None:
    view = view_of(spread(1, 2, 3, 4), blocks_max=4)
    one, two, *_, more = spread(1, 2, 3, 4, 77)
    view.apply(news(view, 2, added=[more]), 0.0)
    assert len(view) == 4
    assert not view.has(more, 0.0)
    view.apply(news(view, 3, added=[more], removed=[one]), 0.0)
    assert len(view) == 4
    assert view.has(more, 0.0)
    assert view.has(two, 0.0)


def test_a_refuted_block_is_not_asked_for_again_for_a_while() -> None:
    view = CatalogView(blocks_max=10, misses_max=2, miss_seconds=5.0)
    one, two, three = spread(1, 2, 3)
    view.apply(whole([one, two, three]), 0.0)
    view.refute(one, 10.0)
    assert not view.has(one, 14.9)
    assert cover([one, two], [view], 14.9).tolist() == []
    assert cover([two, one, three], [view], 14.9).tolist() == [1]
    assert view.has(one, 15.0)
    for key_hash in (one, two, three):
        view.refute(key_hash, 20.0)
    assert view.has(one, 20.0), "the oldest of three is forgotten at a limit of two"
    assert not view.has(two, 20.0)
    view.apply(news(view, 4, added=[two]), 20.0)
    assert view.has(two, 20.0), "an owner that announces it again is believed again"
    assert not view.has(three, 20.0)
    view.apply(whole([one, two, three], 5), 20.0)
    assert not view.has(three, 20.0), "a snapshot may have been made before it was refuted"
    assert view.honesty.broken == 4


@pytest.mark.parametrize(
    ("held", "holders"),
    [
        (([0, 1], [0, 1, 2, 3]), [3, 3, 2, 2]),
        (([0, 1], [2, 3]), [1, 1, 2, 2]),
        (([0, 2, 3],), [1]),
        (([1, 2],), []),
        (([0, 1], [0, 1]), [3, 3]),
        (([0], [1], [2]), [1, 2, 4]),
        ((), []),
    ],
)
def test_a_chain_is_covered_up_to_its_first_gap(
    held: tuple[list[int], ...], holders: list[int]
) -> None:
    views = [view_of(spread(*numbers)) for numbers in held]
    assert cover(spread(0, 1, 2, 3), views, 0.0).tolist() == holders


def test_a_long_chain_is_covered_to_its_end() -> None:
    chain = random_hashes(5000).tolist()
    views = [view_of(chain[:3000], 5000), view_of(chain[2000:4500], 5000)]
    found = cover(chain, views, 0.0)
    assert len(found) == 4500
    assert set(found[:2000].tolist()) == {1}
    assert set(found[3000:].tolist()) == {2}
    assert locate(chain, views, 0.0) == [3000, 0]
    assert cover([], views, 0.0).tolist() == []


def test_of_many_views_that_have_a_chain_a_few_are_looked_up() -> None:
    chain = spread(*range(30))
    views = [view_of(chain[:20]) for _ in range(ENOUGH_VIEWS + 2)]
    views[-1] = view_of(chain)
    found = cover(chain, views, 0.0).tolist()
    assert found[:20] == [(1 << ENOUGH_VIEWS) - 1] * 20
    assert found[20:] == [1 << (ENOUGH_VIEWS + 1)] * 10, (
        "what the first lack the others are asked for"
    )


def test_long_chains_are_looked_up_by_two_threads_with_the_same_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chain = [(n * 0x9E3779B97F4A7C15 + 1) % 2**64 for n in range(coverage.TOGETHER_KEYS)]
    ends = [0, 1, 700, len(chain) - 1, len(chain)]
    views = [view_of(chain[:end] + chain[end + 1 :], blocks_max=10_000) for end in ends]
    assert locate(chain, views, 0.0) == ends
    monkeypatch.setattr(coverage, "TOGETHER_KEYS", len(chain) + 1)
    assert locate(chain, views, 0.0) == ends
