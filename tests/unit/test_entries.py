"""The newest entry of each block: what stands, what is kept of it, and what does not fit."""

from __future__ import annotations

import numpy as np
import pytest

from local_group import sources
from local_group.entries import BLOCK_BYTES_MAX, Entries
from local_group.holdings import OWN, UNKNOWN
from local_group.journal import Entry

FP, OTHER = b"f" * 16, b"o" * 16
NAMES = [3, 1 << 63, (1 << 64) - 1]


def entry(name: int, fingerprint: bytes = FP, size: int = 10, origin: str = OWN) -> Entry:
    return Entry(fingerprint, name, size, b"d" * 16 if size else b"", origin, 0, 0)


def test_the_newest_entry_of_a_block_stands() -> None:
    entries = Entries()
    for made in (entry(3), entry(3, OTHER), entry(3, size=20, origin="west")):
        assert entries.put(made)
    assert len(entries) == 2
    assert entries.get(FP, 3) == entry(3, size=20, origin="west")
    assert sorted(entries) == sorted([entry(3, OTHER), entry(3, size=20, origin="west")])
    entries.drop(FP, 3)
    entries.drop(FP, 3)
    assert (len(entries), entries.get(FP, 3)) == (1, None)


def test_a_block_of_which_nothing_is_known_has_no_digest() -> None:
    entries = Entries()
    entries.put(entry(3, size=0, origin=UNKNOWN))
    assert list(entries) == [entry(3, size=0, origin=UNKNOWN)]


def test_what_is_not_listed_goes() -> None:
    entries = Entries()
    for name in NAMES:
        entries.put(entry(name))
    entries.put(entry(3, OTHER))
    listed = {FP: [3, 7, (1 << 64) - 1]}
    entries.keep(lambda fingerprint: np.array(listed.get(fingerprint, []), dtype=np.uint64))
    assert [(e.fingerprint, e.name) for e in entries] == [(FP, 3), (FP, (1 << 64) - 1)]
    assert len(entries) == 2


def test_a_block_larger_than_a_record_can_say_is_not_taken() -> None:
    entries = Entries()
    assert entries.put(entry(3, size=BLOCK_BYTES_MAX))
    assert not entries.put(entry(3, size=BLOCK_BYTES_MAX + 1))
    assert entries.get(FP, 3) == entry(3, size=BLOCK_BYTES_MAX)


def test_of_more_sources_than_there_are_numbers_nothing_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sources, "SOURCES_MAX", 1)
    entries = Entries()
    assert entries.put(entry(1, origin="west"))
    assert not entries.put(entry(2, origin="east"))
    assert entries.put(entry(2, origin="west"))
