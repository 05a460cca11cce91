"""The compact table does what a dict does, and the holdings on it what holdings on dicts did."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from local_group import sources, table
from local_group.foreign import Foreign
from local_group.holdings import CHANGED, HOPS_MAX, OWN, UNKNOWN, Change, Held, Holdings
from local_group.journal import Entry
from local_group.names import NAME_MAX
from local_group.table import Table

SIZE = 3
# Close together, far apart, and at both ends.
NAMES = st.one_of(
    st.integers(0, 40),
    st.integers(NAME_MAX - 5, NAME_MAX),
    st.integers(0, 400).map(lambda n: n << 54),
)
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["put", "put", "put", "pop", "get"]), NAMES, st.binary(min_size=3, max_size=3)),
    max_size=400,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "LEAF_MAX", 8)
    monkeypatch.setattr(table, "_LEAF_MERGE", 6)
    monkeypatch.setattr(table, "STEP", 2)


@settings(max_examples=150, deadline=None)
@given(ACTIONS, NAMES, st.integers(1, 20), NAMES)
def test_a_table_is_a_sorted_dict(
    actions: list[tuple[str, int, bytes]], first: int, count: int, last: int
) -> None:
    made, model = Table(SIZE), dict[int, bytes]()
    for action, name, record in actions:
        if action == "put":
            assert made.put(name, record) is (name not in model)
            model[name] = record
        elif action == "pop":
            assert made.pop(name) == model.pop(name, None)
        else:
            assert made.get(name) == model.get(name)
    assert len(made) == len(model)
    assert dict(made.items()) == model
    ordered = sorted(model)
    assert [name for name, _ in made.items()] == ordered
    assert list(made.run_by_run()) == list(made.items())
    assert made.last() == (ordered[-1] if ordered else None)
    for after in (-1, first):
        assert made.after(after, count) == [name for name in ordered if name > after][:count]
    first, last = sorted((first, last))
    names, until = made.between(first, last, count)
    assert names.tolist() == [name for name in ordered if first <= name <= until]
    assert first <= until <= last
    seen: list[int] = []
    at = 0
    while at <= NAME_MAX:
        names, until = made.between(at, NAME_MAX, count)
        seen += names.tolist()
        assert until >= at
        at = until + 1
    assert seen == ordered


def test_a_run_is_split_when_it_is_full_and_neighbours_that_are_few_become_one() -> None:
    made = Table(SIZE)
    for name in range(1000):
        made.put(name, b"abc")
    full = made.nbytes
    for name in range(0, 1000, 2):
        made.pop(name)
    for name in range(1, 990, 2):
        made.pop(name)
    assert [name for name, _ in made.items()] == list(range(991, 1000, 2))
    assert made.nbytes < full / 50, "what has gone takes up no room"


class Model:
    """Holdings as they would be without a thought for memory."""

    def __init__(self, blocks_max: int) -> None:
        self.blocks: dict[tuple[bytes, int], Held] = {}
        self.blocks_max = blocks_max

    def report(self, block: tuple[bytes, int], size: int, digest: bytes, now: float) -> None:
        known = self.blocks.get(block)
        if known is None:
            self.add(block, Held(size, digest, OWN, 0, 0, now))
        elif known.origin == CHANGED:
            pass
        elif not known.digest:
            self.blocks[block] = Held(size, digest, OWN, 0, 0, now)
        elif known.digest != digest:
            self.blocks[block] = known._replace(rival=digest, size=max(size, known.size))

    def add(self, block: tuple[bytes, int], held: Held) -> None:
        if block not in self.blocks and len(self.blocks) < self.blocks_max:
            self.blocks[block] = held

    def compare(self, fingerprint: bytes, listed: set[int], began_at: float) -> set[int]:
        mine = {name for fp, name in self.blocks if fp == fingerprint}
        for name in mine - listed:
            if self.blocks[(fingerprint, name)].since < began_at:
                del self.blocks[(fingerprint, name)]
        return listed - mine


class Step(NamedTuple):
    what: str
    fingerprint: bytes
    name: int
    number: int


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(["report", "admit", "find", "doubt", "withhold", "withdraw", "list"]),
        st.sampled_from([b"f" * 16, b"g" * 16]),
        st.integers(0, 30).map(lambda n: n << 59),
        st.integers(0, 3),
    ),
    max_size=150,
)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_holdings_are_what_they_would_be_in_dicts(steps: list[Step]) -> None:
    offered: set[tuple[bytes, int]] = set()

    def changed(change: Change) -> None:
        block = (change.fingerprint, change.name)
        assert (block in offered) is not change.added, "each change is one"
        (offered.add if change.added else offered.discard)(block)

    ok = b"g" * 16
    held = Holdings(
        blocks_max=20, hop_limit=1, on_change=changed, unattested_ok=lambda fp: fp == ok
    )
    model = Model(20)
    for now, (what, fp, name, number) in enumerate(steps):
        block, digest = (fp, name), bytes([number]) * 16
        if what == "report":
            held.report(fp, name, number + 1, digest, now)
            model.report(block, number + 1, digest, now)
        elif what == "admit":
            held.admit(fp, name, 5, digest, f"group{number}", number, 1, now)
            model.add(block, Held(5, digest, f"group{number}", number, 1, now))
        elif what in ("find", "doubt"):
            origin, hops = (OWN, 0) if what == "find" else (UNKNOWN, HOPS_MAX)
            held.find(fp, name, origin, now)
            model.add(block, Held(0, b"", origin, 0, hops, now))
        elif what == "withhold":
            held.withhold(fp, name, now)
            if block in model.blocks and model.blocks[block].origin != CHANGED:
                model.blocks[block] = Held(0, b"", CHANGED, 0, HOPS_MAX, now)
        elif what == "withdraw":
            assert held.withdraw(fp, name) is (model.blocks.pop(block, None) is not None)
        else:
            listed = {n << 59 for n in range(0, 31, number + 1)}
            array = np.array(sorted(listed), dtype=np.uint64)
            found = {n for _, new in held.compare(fp, array, now - 3) for n in new.tolist()}
            assert found == model.compare(fp, listed, now - 3)
        assert {(f, n): h for f, n, h in held.items()} == model.blocks
    assert len(held) == len(model.blocks)
    assert held.unattested == sum(not h.digest for h in model.blocks.values())
    assert held.origins() == {h.origin for h in model.blocks.values()}
    assert offered == {
        b for b, h in model.blocks.items() if h.hops < 1 and (h.digest or b[0] == ok)
    }


def test_with_too_many_sources_a_block_is_refused_and_room_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sources, "SOURCES_MAX", 2)
    held = Holdings(blocks_max=9, hop_limit=1, on_change=lambda _: None)
    for epoch in (1, 2, 3):
        held.admit(b"f" * 16, epoch, 5, b"d" * 16, "west", epoch, 1, 0.0)
    assert (len(held), held.refused) == (2, 1)
    held.withdraw(b"f" * 16, 1)
    assert held.admit(b"f" * 16, 3, 5, b"d" * 16, "west", 3, 1, 0.0)


def test_a_block_that_is_too_large_for_a_record_is_refused() -> None:
    held = Holdings(blocks_max=9, hop_limit=1, on_change=lambda _: None)
    assert held.report(b"f" * 16, 1, (1 << 32) - 1, b"d" * 16, 0.0)
    assert not held.report(b"f" * 16, 2, 1 << 32, b"d" * 16, 0.0)


def test_peers_blocks_are_remembered_by_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = Foreign(3)
    entries = [Entry(b"f" * 16, n, 5, b"d" * 16, "west", n, 1) for n in range(7)]
    for entry in entries[:6]:
        foreign.remember(entry)
    assert list(foreign) == entries[:6]
    foreign.remember(entries[0])
    assert foreign.get(b"f" * 16, 0) == entries[0], "it is remembered anew"
    assert list(foreign) == [*entries[3:6], entries[0]]
    foreign.forget(b"f" * 16, 4)
    assert foreign.get(b"f" * 16, 4) is None
    assert len(foreign) == 3
    monkeypatch.setattr(sources, "SOURCES_MAX", 1)
    foreign.remember(entries[6])
    assert foreign.get(b"f" * 16, 6) == entries[6], "too many sources begin a generation, too"
