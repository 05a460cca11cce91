"""What a leader's pages change at a follower, and what the follower tells: without IO."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from federation.config import Limits
from federation.counters import counters
from federation.following.copying import Copying
from federation.following.leader import page
from federation.following.outgoing import Outgoing
from federation.peers.feed import BLOCKS_PER_MESSAGE, Feed
from local_group.holdings import CHANGED, OWN, UNKNOWN, Change, Held, Holdings
from local_group.journal import Entry
from local_group.ledger import own
from local_group.names import name_of
from moonmesh.v1 import group_pb2

FP, OTHER, PRIVATE = b"f" * 16, b"o" * 16, b"p" * 16
ONE, TWO = b"1" * 16, b"2" * 16


def of(key: str) -> tuple[bytes, int]:
    return FP, name_of(FP, key)


def names(*keys: str) -> set[int]:
    return {name_of(FP, key) for key in keys}


def foreign(key: str, digest: bytes = ONE) -> Entry:
    return Entry(FP, name_of(FP, key), 8, digest, "west", 3, 1)


class Pair:
    """A leader's holdings and a follower's, with a stream between them that is one message a step."""

    def __init__(self, changed_max: int = 1000) -> None:
        self.clock = itertools.count()
        self.leader = self._holdings(self._moved)
        self.follower = self._holdings(lambda change: None)
        self.outgoing = Outgoing()
        self.changed_max = changed_max
        self.feed: Feed | None = None
        self.connect()

    @staticmethod
    def _holdings(moved: object) -> Holdings:
        return Holdings(
            blocks_max=10_000,
            hop_limit=1,
            on_change=moved,  # type: ignore[arg-type]
            on_amended=moved,  # type: ignore[arg-type]
            on_hidden=moved,  # type: ignore[arg-type]
        )

    def _moved(self, change: Change) -> None:
        if self.feed is not None:
            self.feed.take(change)

    def connect(self) -> None:
        """A new stream."""
        self.feed = Feed(self.leader, [FP, OTHER], self.changed_max, everything=True)
        self.copying = Copying(
            self.follower, self.outgoing.__contains__, [FP, OTHER, PRIVATE], Limits()
        )

    def put(self, where: Holdings, entry: Entry) -> None:
        now = float(next(self.clock))
        if entry.origin == OWN:
            where.report(entry.fingerprint, entry.name, entry.size, entry.digest, now)
        else:
            where.admit(*entry[:5], entry.epoch, entry.hops, now)

    def write(self, *entries: Entry) -> None:
        """Engines at the follower write."""
        for entry in entries:
            self.put(self.follower, entry)
        self.outgoing.add(entries)
        self.copying.wrote(entries)

    def apply(self, message: group_pb2.FollowPage) -> None:
        raw = message.SerializeToString()
        step = self.copying.take(group_pb2.FollowPage.FromString(raw))
        for fingerprint, name in step.gone:
            self.follower.withdraw(fingerprint, name)
        for e, rival in step.news:
            held = Held(e.size, e.digest, e.origin, e.epoch, e.hops, 0.0, rival)
            self.follower.restore(e.fingerprint, e.name, held)

    def pass_one(self) -> bool:
        assert self.feed is not None
        message = self.feed.next()
        if message is not None:
            self.apply(page(1, message))
        return message is not None

    def tell(self, blocks_max: int = 100) -> list[Entry]:
        """One report of the follower, and the leader's answer."""
        if not len(self.outgoing):
            self.copying.listed = True  # as a follower does first
            self.outgoing.add(self.copying.lacking(blocks_max))
        batch = self.outgoing.batch(blocks_max, 1 << 20)
        for entry in batch:
            self.put(self.leader, entry)
        self.outgoing.told(batch)
        return batch

    def settle(self) -> None:
        while self.pass_one() or self.tell():
            pass

    @staticmethod
    def content(holdings: Holdings) -> dict[tuple[bytes, int], tuple[bytes, str, bytes | None]]:
        return {(fp, name): (h.digest, h.origin, h.rival) for fp, name, h in holdings.items()}


def test_all_that_the_leader_holds_arrives_with_its_origin() -> None:
    pair = Pair()
    blocks = [own(FP, f"k{i}", 8, ONE) for i in range(3 * BLOCKS_PER_MESSAGE)]
    for entry in (*blocks, foreign("pulled"), own(OTHER, "o", 8, TWO), own(PRIVATE, "p", 8, ONE)):
        pair.put(pair.leader, entry)
    pair.settle()
    held = pair.content(pair.follower)
    assert len(held) == len(blocks) + 2, "what nobody may have is not told"
    assert held[of("pulled")] == (ONE, "west", None)
    assert pair.follower.get(FP, "pulled") == Held(8, ONE, "west", 3, 1, 0.0)
    assert pair.copying.complete
    assert pair.copying.blocks == len(held)


def test_changes_follow_the_snapshot() -> None:
    pair = Pair()
    pair.put(pair.leader, own(FP, "a", 8, ONE))
    pair.put(pair.leader, foreign("pulled"))
    pair.settle()
    pair.leader.withdraw(FP, "a")
    pair.leader.withdraw(FP, "pulled")
    pair.put(pair.leader, own(FP, "b", 8, ONE))
    pair.leader.report(FP, "b", 8, TWO, 9.0)  # an engine says otherwise
    pair.settle()
    assert pair.content(pair.follower) == {of("b"): (ONE, OWN, TWO)}


def test_a_snapshot_does_not_take_away_what_the_leader_has_not_been_told() -> None:
    pair = Pair()
    pair.put(pair.leader, own(FP, "a", 8, ONE))
    assert pair.pass_one()  # the snapshot has begun
    pair.write(own(FP, "mine", 8, ONE))
    while pair.pass_one():
        pass
    assert set(pair.follower.after(FP, -1, 99)) == names("a", "mine")
    assert pair.tell() == [own(FP, "mine", 8, ONE)]
    assert set(pair.leader.after(FP, -1, 99)) == names("a", "mine")
    pair.settle()
    assert pair.content(pair.follower) == pair.content(pair.leader)


def test_what_is_written_while_a_snapshot_comes_is_told_once() -> None:
    pair = Pair()
    assert pair.pass_one()  # the snapshot has begun
    pair.write(own(FP, "mine", 8, ONE))
    while pair.pass_one():
        pass
    assert pair.tell() == [own(FP, "mine", 8, ONE)]
    assert pair.tell() == []


def test_what_a_new_leader_was_never_told_it_is_told() -> None:
    """A leader dies: what it alone had been told is known to whom it had told it, or on its own disk."""
    pair = Pair()
    for key in ("known to both", "lost"):
        pair.put(pair.follower, own(FP, key, 8, ONE))
    pair.put(pair.follower, foreign("pulled here"))
    pair.put(pair.leader, own(FP, "known to both", 8, ONE))
    assert pair.copying.lacking(10) == [], "not before the snapshot is whole"
    pair.settle()
    assert set(pair.leader.after(FP, -1, 99)) == names("known to both", "lost")
    assert set(pair.follower.after(FP, -1, 99)) == names("known to both", "lost", "pulled here")
    assert pair.copying.lacking(10) == []


def test_what_is_gone_by_then_is_not_told() -> None:
    pair = Pair()
    for index in range(5):
        pair.put(pair.follower, own(FP, f"k{index}", 8, ONE))
    while pair.pass_one():
        pass
    listed = np.array([name_of(FP, "k3")], dtype=np.uint64)
    assert sum(gone for gone, _ in pair.follower.compare(FP, listed, 1e9)) == 4
    assert pair.copying.lacking(2) == [], "not before Mooncake is listed"
    pair.copying.listed = True
    assert pair.copying.lacking(2) == [own(FP, "k3", 8, ONE)]


def test_ours_is_the_later_word_until_it_is_told() -> None:
    pair = Pair()
    pair.put(pair.leader, own(FP, "evicted", 8, ONE))
    pair.put(pair.leader, own(FP, "disputed", 8, ONE))
    pair.settle()
    pair.leader.withdraw(FP, "evicted")
    pair.leader.report(FP, "disputed", 8, ONE, 9.0)
    pair.follower.withdraw(FP, "evicted")
    pair.follower.withdraw(FP, "disputed")
    pair.write(own(FP, "evicted", 8, TWO), own(FP, "disputed", 8, TWO))  # put anew, here
    while pair.pass_one():
        pass
    assert pair.content(pair.follower)[of("evicted")] == (TWO, OWN, None)
    pair.settle()
    assert pair.content(pair.leader) == {
        of("evicted"): (TWO, OWN, None),
        of("disputed"): (ONE, OWN, TWO),
    }
    assert pair.content(pair.follower) == pair.content(pair.leader)


def test_what_was_pulled_here_does_not_become_our_own() -> None:
    pair = Pair()
    pair.put(pair.follower, foreign("a"))
    pair.put(pair.leader, own(FP, "a", 8, ONE))
    pair.settle()
    assert pair.content(pair.follower)[of("a")] == (ONE, "west", None)
    pair.put(pair.follower, own(FP, "b", 8, ONE))
    pair.put(pair.leader, foreign("b"))
    pair.settle()
    assert pair.content(pair.follower)[of("b")] == (ONE, "west", None)


def test_of_what_nobody_attested_a_follower_is_told_what_may_not_be_offered() -> None:
    pair = Pair()
    for key in ("listed", "doubted here", "pulled"):
        pair.leader.find(FP, key, OWN, 1.0)
    pair.leader.find(FP, "doubted", UNKNOWN, 1.0)
    pair.put(pair.leader, own(FP, "replaced", 8, ONE))
    pair.put(pair.follower, own(FP, "replaced", 8, ONE))
    pair.put(pair.follower, own(FP, "attested", 8, ONE))
    pair.leader.find(FP, "attested", UNKNOWN, 1.0)
    pair.follower.find(FP, "doubted here", UNKNOWN, 1.0)
    pair.put(pair.follower, foreign("pulled"))
    pair.leader.withhold(FP, "replaced", 2.0)
    while pair.pass_one():
        pass
    assert {name: origin for (_, name), (_, origin, _) in pair.content(pair.follower).items()} == {
        name_of(FP, "doubted"): UNKNOWN,
        name_of(FP, "doubted here"): UNKNOWN,
        name_of(FP, "replaced"): CHANGED,
        name_of(FP, "attested"): OWN,
        name_of(FP, "pulled"): "west",
    }
    pair.put(pair.leader, own(FP, "replaced", 8, TWO))  # it is told no other way
    pair.put(pair.leader, own(FP, "doubted", 8, TWO))
    pair.settle()
    assert pair.content(pair.follower)[of("replaced")][1] == CHANGED
    assert pair.content(pair.follower)[of("doubted")] == (TWO, OWN, None)
    assert pair.content(pair.leader)[of("attested")] == (ONE, OWN, None), "its follower knew"


def test_a_page_that_breaks_a_limit_is_not_taken() -> None:
    pair = Pair()
    before = counters.snapshot().get("moonmesh_follow_implausible_total", 0)
    message = group_pb2.FollowPage(epoch=1)
    message.blocks.fingerprint = FP
    good = {"name": name_of(FP, "k"), "size": 8, "digest": ONE}
    bad = (
        {"size": 0},
        {"digest": b""},
        {"digest": b"", "size": 0, "origin": "west", "hops": 1},
        {"size": 1 << 40},
        {"digest": b"short"},
        {"rival": b"short"},
        {"origin": "w" * 32, "hops": 1},
        {"origin": "west", "hops": 0},
        {"origin": "west", "hops": 1 << 16},
        {"hops": 1},
        {"origin": "west", "hops": 1, "epoch": 1 << 63},
    )
    for change in bad:
        message.blocks.offered.add(**{**good, **change})  # type: ignore[arg-type]
    message.blocks.offered.add(**good)  # type: ignore[arg-type]
    pair.apply(message)
    assert pair.content(pair.follower) == {of("k"): (ONE, OWN, None)}
    after = counters.snapshot()["moonmesh_follow_implausible_total"]
    assert after - before == len(bad)
    message.blocks.fingerprint = b"x" * 16  # a namespace that is not shared
    pair.apply(message)
    assert list(pair.follower.namespaces()) == [(FP, 1)]


def test_reports_are_of_one_namespace_and_fit() -> None:
    outgoing = Outgoing()
    first = [own(FP, f"k{i}", 8, ONE) for i in range(5)]
    outgoing.add([*first, own(OTHER, "o", 8, ONE), own(FP, "late", 8, ONE)])
    assert outgoing.batch(3, 1 << 20) == first[:3]
    assert outgoing.batch(100, 1 << 20) == first
    assert outgoing.batch(100, 64 + 2 * 64) == first[:2]
    assert outgoing.batch(100, 1) == first[:1], "one at least, or it would be told never"
    outgoing.told(first)
    assert outgoing.batch(100, 1 << 20) == [own(OTHER, "o", 8, ONE)]


def test_the_oldest_give_way_and_are_counted() -> None:
    outgoing = Outgoing(blocks_max=3)
    outgoing.add(own(FP, f"k{i}", 8, ONE) for i in range(5))
    assert outgoing.batch(9, 1 << 20) == [own(FP, f"k{i}", 8, ONE) for i in (2, 3, 4)]
    assert (len(outgoing), outgoing.dropped) == (3, 2)
    assert of("k1") not in outgoing
    assert of("k2") in outgoing


def test_what_is_written_while_it_is_told_is_told_again() -> None:
    outgoing = Outgoing()
    outgoing.add([own(FP, "a", 8, ONE)])
    batch = outgoing.batch(9, 1 << 20)
    outgoing.add([own(FP, "a", 8, TWO)])
    outgoing.told(batch)
    assert outgoing.batch(9, 1 << 20) == [own(FP, "a", 8, TWO)]


KEYS = st.sampled_from(["a", "b", "c", "d"])
ACTIONS = st.one_of(
    st.tuples(st.just("write here"), KEYS, st.sampled_from([ONE, TWO])),
    st.tuples(st.just("write there"), KEYS, st.sampled_from([ONE, TWO])),
    st.tuples(st.just("withdrawn there"), KEYS, st.just(ONE)),
    st.tuples(st.sampled_from(["pass", "tell", "reconnect"]), st.just(""), st.just(ONE)),
)


@given(st.lists(ACTIONS, max_size=60), st.integers(1, 3))
def test_both_hold_the_same_in_the_end(
    actions: list[tuple[str, str, bytes]], changed_max: int
) -> None:
    """Whatever is written, withdrawn, cut and delayed; and nothing that was written here is lost."""
    pair = Pair(changed_max)
    for action, key, digest in actions:
        if action == "write here":
            pair.write(own(FP, key, 8, digest))
        elif action == "write there":
            pair.put(pair.leader, own(FP, key, 8, digest))
        elif action == "withdrawn there":
            pair.leader.withdraw(FP, key)
        elif action == "pass":
            pair.pass_one()
        elif action == "tell":
            pair.tell(2)
        else:
            pair.connect()
    waiting = {entry.name for entry in pair.outgoing.batch(99, 1 << 20)}
    pair.settle()
    assert waiting <= set(pair.leader.after(FP, -1, 99))
    assert set(pair.content(pair.leader)) == set(pair.content(pair.follower))
    for name, (digest, _, rival) in pair.content(pair.leader).items():
        there, _, other = pair.content(pair.follower)[name]
        # Of two digests one may be known at one of them alone. Who serves the block compares its bytes.
        assert {digest, rival} & {there, other} - {None}
