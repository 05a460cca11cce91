"""What a gateway offers arrives in its serving process, whatever happens on the way."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from federation.counters import counters
from federation.peers.feed import (
    BLOCKS_PER_MESSAGE,
    WITHDRAWN_AT_ONCE,
    Feed,
    Replica,
)
from local_group.holdings import Change, Held, Holdings
from local_group.names import name_of
from moonmesh.v1 import serving_pb2

FP, OTHER, PRIVATE = b"f" * 16, b"o" * 16, b"p" * 16
DIGEST, RIVAL = b"d" * 16, b"r" * 16


class Pair:
    """A gateway's holdings with a feed, and a replica at its end."""

    def __init__(self, changed_max: int = 1000, blocks_max: int = 10_000) -> None:
        self.blocks_max = blocks_max
        self.truth = Holdings(
            blocks_max=10_000,
            hop_limit=1,
            on_change=lambda change: self.feed.take(change),
            on_amended=lambda change: self.feed.take(change),
        )
        self.feed = Feed(self.truth, [FP, OTHER], changed_max)
        self.new_replica()

    def new_replica(self) -> None:
        self.changes: list[Change] = []
        self.replica = Replica(
            blocks_max=self.blocks_max, hop_limit=1, on_change=self.changes.append
        )
        self.copy = self.replica.holdings
        self.feed.restart()

    def pass_one(self) -> serving_pb2.ToServing | None:
        message = self.feed.next()
        if message is not None:
            raw = message.SerializeToString()
            self.replica.apply(serving_pb2.ToServing.FromString(raw))
        return message

    def settle(self) -> int:
        """Messages that were needed."""
        count = 0
        while self.pass_one() is not None:
            count += 1
        while self.replica.withdraw_some():
            pass
        assert not self.feed.pending
        return count

    def offered(self) -> dict[tuple[bytes, int], Held]:
        return {
            (fp, name): held
            for fp, name, held in self.truth.items()
            if fp != PRIVATE and held.hops < 1
        }

    def copied(self) -> dict[tuple[bytes, int], Held]:
        return {(fp, name): held for fp, name, held in self.copy.items()}


def test_a_snapshot_brings_what_peers_may_have_and_nothing_else() -> None:
    pair = Pair()
    pair.truth.report(FP, "own", 5, DIGEST, 1.25)
    pair.truth.report(PRIVATE, "private", 5, DIGEST, 1.0)
    pair.truth.admit(FP, "pulled", 5, DIGEST, "west", 3, 1, 1.0)
    pair.pass_one()
    assert pair.replica.complete is False
    pair.settle()
    assert [pair.replica.complete] == [True]
    assert pair.copied() == {(FP, name_of(FP, "own")): Held(5, DIGEST, "", 0, 0, 1.25)}


def test_a_block_that_came_and_went_costs_one_line() -> None:
    pair = Pair()
    pair.settle()
    for _ in range(50):
        pair.truth.report(FP, "k", 5, DIGEST, 1.0)
        pair.truth.withdraw(FP, "k")
    assert pair.settle() == 1
    assert pair.copied() == {}
    assert pair.changes == []


def test_a_second_digest_arrives_too() -> None:
    pair = Pair()
    pair.truth.report(FP, "k", 5, DIGEST, 1.0)
    pair.settle()
    pair.truth.report(FP, "k", 9, RIVAL, 2.0)
    pair.settle()
    held = pair.copy.get(FP, "k")
    assert held is not None
    assert (held.digest, held.rival, held.size) == (DIGEST, RIVAL, 9)


def test_a_long_snapshot_goes_in_small_messages_and_changes_overtake_nothing() -> None:
    pair = Pair()
    for i in range(3 * BLOCKS_PER_MESSAGE):
        pair.truth.report(FP, f"k{i}", 5, DIGEST, 1.0)
    pair.pass_one()
    pair.pass_one()
    pair.truth.withdraw(FP, "k0")
    pair.truth.report(FP, "late", 5, DIGEST, 2.0)
    assert pair.settle() >= 3
    assert pair.copied() == pair.offered()


def test_more_changes_than_may_wait_become_a_snapshot() -> None:
    pair = Pair(changed_max=10)
    pair.truth.report(FP, "stays", 5, DIGEST, 1.0)
    pair.truth.report(FP, "goes", 5, DIGEST, 1.0)
    pair.settle()
    pair.changes.clear()
    pair.truth.withdraw(FP, "goes")
    for i in range(10):
        pair.truth.report(FP, f"k{i}", 5, DIGEST, 1.0)
    assert pair.feed.snapshots == 1
    pair.settle()
    assert pair.feed.snapshots == 2
    assert pair.copied() == pair.offered()
    assert Change(FP, name_of(FP, "stays"), False) not in pair.changes, (
        "what stays is not withdrawn meanwhile"
    )


def test_at_the_limit_of_changes_there_is_no_snapshot() -> None:
    pair = Pair(changed_max=10)
    pair.settle()
    for i in range(10):
        pair.truth.report(FP, f"k{i}", 5, DIGEST, 1.0)
    pair.settle()
    assert pair.feed.snapshots == 1


def test_changes_in_two_namespaces_by_turns_go_in_full_messages() -> None:
    pair = Pair(changed_max=4 * BLOCKS_PER_MESSAGE)
    pair.settle()
    for i in range(2 * BLOCKS_PER_MESSAGE):
        pair.truth.report(FP, f"k{i}", 5, DIGEST, 1.0)
        pair.truth.report(OTHER, f"k{i}", 5, DIGEST, 1.0)
    told = [message.blocks.fingerprint for _ in range(4) if (message := pair.pass_one())]
    assert told == [FP, OTHER, FP, OTHER]
    assert pair.settle() == 0
    assert (pair.copied(), pair.feed.snapshots) == (pair.offered(), 1)


def test_what_a_snapshot_lacks_is_withdrawn_in_slices() -> None:
    withdrawn: list[Change] = []
    blocks = 4 * WITHDRAWN_AT_ONCE + 1
    replica = Replica(blocks_max=blocks, hop_limit=1, on_change=withdrawn.append)
    for i in range(blocks):
        replica.holdings.restore(FP, f"k{i}", Held(5, DIGEST, "", 0, 0, 1.0))
    withdrawn.clear()

    def apply(**what: object) -> None:
        replica.apply(serving_pb2.ToServing(**what))  # type: ignore[arg-type]

    apply(snapshot_begin=serving_pb2.SnapshotBegin())
    assert not replica.withdraw_some(), "it may name them yet"
    apply(snapshot_end=serving_pb2.SnapshotEnd())
    slices = [len(withdrawn)]
    more = True
    while more:
        before = len(withdrawn)
        more = replica.withdraw_some()
        slices.append(len(withdrawn) - before)
        assert replica.complete is not more
    assert max(slices) == WITHDRAWN_AT_ONCE
    assert (sum(slices), len(replica.holdings)) == (blocks, 0)


def test_what_is_offered_between_two_slices_stays() -> None:
    pair = Pair()
    blocks = 3 * WITHDRAWN_AT_ONCE
    for i in range(blocks):
        pair.truth.report(FP, f"k{i}", 5, DIGEST, 1.0)
    pair.settle()
    pair.feed.restart()
    for i in range(blocks):
        pair.truth.withdraw(FP, f"k{i}")
    while (message := pair.pass_one()) is not None:
        last = message.WhichOneof("what")
        if last == "snapshot_end":
            break
    assert last == "snapshot_end"
    assert pair.replica.withdraw_some()
    stays = pair.copy.after(FP, -1, 1)[0]
    pair.truth.report(FP, stays, 5, DIGEST, 1.0)
    pair.settle()
    assert pair.copied() == pair.offered() == {(FP, stays): Held(5, DIGEST, "", 0, 0, 1.0)}


_OPS = st.lists(
    st.tuples(
        st.sampled_from(["report", "rival", "admit", "withdraw", "pass", "restart", "reconcile"]),
        st.sampled_from([FP, OTHER, PRIVATE]),
        st.integers(0, 6),
    ),
    max_size=80,
)


@given(_OPS)
def test_the_replica_ends_as_the_truth_whatever_happens_in_between(
    ops: list[tuple[str, bytes, int]],
) -> None:
    pair = Pair(changed_max=4)
    for now, (what, fingerprint, n) in enumerate(ops):
        key = f"k{n}"
        if what == "report":
            pair.truth.report(fingerprint, key, n + 1, DIGEST, float(now))
        elif what == "rival":
            pair.truth.report(fingerprint, key, n + 2, RIVAL, float(now))
        elif what == "admit":
            pair.truth.admit(fingerprint, key, 5, DIGEST, "west", 2, 1, float(now))
        elif what == "withdraw":
            pair.truth.withdraw(fingerprint, key)
        elif what == "reconcile":
            kept = sorted(name_of(fingerprint, f"k{i}") for i in range(3))
            for _ in pair.truth.compare(fingerprint, np.array(kept, dtype=np.uint64), float(now)):
                pass
        elif what == "restart":
            pair.new_replica()
        else:
            pair.pass_one()
    pair.settle()
    assert pair.copied() == pair.offered()


def test_what_does_not_fit_is_left_out_and_counted() -> None:
    before = counters.snapshot().get("moonmesh_serving_left_out_total", 0)
    pair = Pair(blocks_max=50)
    for i in range(60):
        pair.truth.report(FP, f"k{i}", 5, DIGEST, 1.0)
    pair.settle()
    assert len(pair.copy) == 50
    assert counters.snapshot()["moonmesh_serving_left_out_total"] == before + 10


def test_a_snapshot_names_what_lies_between_its_parts_and_behind_them() -> None:
    pair = Pair()
    for i in range(3 * BLOCKS_PER_MESSAGE):
        pair.truth.report(FP, f"k{i}", 5, DIGEST, 1.0)
        pair.truth.report(OTHER, f"k{i}", 5, DIGEST, 1.0)
    pair.settle()
    pair.feed.restart()
    for i in range(0, 3 * BLOCKS_PER_MESSAGE, 3):
        pair.truth.withdraw(FP, f"k{i}")
    for i in range(3 * BLOCKS_PER_MESSAGE):
        pair.truth.withdraw(OTHER, f"k{i}")
    pair.settle()
    assert pair.copied() == pair.offered()
    assert len(pair.copy) == 2 * BLOCKS_PER_MESSAGE


def test_a_new_snapshot_fits_where_an_old_one_filled_all_room() -> None:
    pair = Pair(blocks_max=10)
    for i in range(10):
        pair.truth.report(FP, f"old-{i}", 5, DIGEST, 1.0)
    pair.settle()
    pair.feed.restart()
    for i in range(10):
        pair.truth.withdraw(FP, f"old-{i}")
        pair.truth.report(FP, f"new-{i}", 5, DIGEST, 1.0)
    pair.settle()
    assert pair.copied() == pair.offered()
    assert len(pair.copy) == 10
