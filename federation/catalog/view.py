"""What this group believes a peer holds; sans-IO.

Views are hints: a wrong one costs a wasted round trip, never wrong bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import numpy as np

from federation.catalog.log import Position
from federation.catalog.overlay import CHANGES_PER_STEP, MERGE_AT, Merge, Overlay
from federation.catalog.prints import REMAINDER_BITS, Found, Hashes, Prints, prints_of
from federation.catalog.snapshot import Snapshot


class News(NamedTuple):
    """A peer's answer, checked: what brings a view up to `position`."""

    position: Position
    snapshot: Snapshot | None
    """What replaces all that the view had."""
    added: Prints
    """Sorted, like `removed`, and with as many bits as the prints of the view."""
    removed: Prints


class Misses:
    """Hashes that an owner did not have although its catalog has them, each for a while."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._until: OrderedDict[int, float] = OrderedDict()
        self._by_print: dict[int, int] = {}
        self._bits = 64

    def __len__(self) -> int:
        return len(self._until)

    def add(self, key_hash: int, now: float) -> None:
        """One more."""
        self._until[key_hash] = now + self._seconds
        self._until.move_to_end(key_hash)
        self._by_print[key_hash >> (64 - self._bits)] = key_hash
        while len(self._until) > self._most:
            self._drop(next(iter(self._until)))

    def among(self, hashes: set[int], now: float) -> list[int]:
        """Those of `hashes` that are not to be asked for."""
        refuted = []
        for key_hash in self._until.keys() & hashes:
            if now < self._until[key_hash]:
                refuted.append(key_hash)
            else:
                self._drop(key_hash)
        return refuted

    def announced(self, added: Prints) -> None:
        """The owner says anew that it has blocks with these prints."""
        if self._until:
            for name in self._by_print.keys() & set(added.tolist()):
                self._drop(self._by_print[name])

    def use(self, bits: int) -> None:
        """Prints have so many bits from now on."""
        self._bits = bits
        self._by_print = {key_hash >> (64 - bits): key_hash for key_hash in self._until}

    def _drop(self, key_hash: int) -> None:
        del self._until[key_hash]
        name = key_hash >> (64 - self._bits)
        if self._by_print.get(name) == key_hash:
            del self._by_print[name]


class CatalogView:
    """What one peer is believed to hold in one namespace.

    A snapshot under changes. Once they are many, each `apply` also merges a slice or more of them, so that no
    single one takes long: see `federation.catalog.overlay`.

    Args:
        blocks_max: prints kept. Of a peer that has more, those with the lowest hashes.
        misses_max: refuted hashes remembered.
        miss_seconds: for how long a refuted hash is not asked for again.
    """

    def __init__(
        self, *, blocks_max: int, misses_max: int = 65536, miss_seconds: float = 10.0
    ) -> None:
        self.blocks_max = blocks_max
        """Prints kept at most."""
        self._snapshot = Snapshot.empty()
        self._merging = Overlay.empty()
        self._changes = Overlay.empty()
        self._merge: Merge | None = None
        self._count = 0
        self.misses = Misses(misses_max, miss_seconds)
        """What is not to be asked for, although it is in the catalog."""
        self.misses.use(self._snapshot.bits)
        self.position: Position | None = None
        """Where the view stands; None before the first snapshot."""
        self.confirmed_at: float | None = None
        """When the owner last said that nothing newer exists (monotonic seconds)."""
        self.false_positives = 0
        """Blocks that this view promised and the owner did not have."""
        self.left_out = 0
        """Changes that were not believed because the view was full."""
        self.merges = 0
        """Times that changes have become part of a new snapshot."""

    def __len__(self) -> int:
        return self._count

    @property
    def bits(self) -> int:
        """Of the prints that changes have to come in."""
        return self._snapshot.bits

    @property
    def nbytes(self) -> int:
        """Bytes of memory that what is believed takes, without a merge under way."""
        return self._snapshot.nbytes + self._merging.nbytes + self._changes.nbytes

    def apply(self, news: News, now: float) -> None:
        """Brings the view to the answer's position."""
        if news.snapshot is not None:
            self._snapshot = news.snapshot
            self._merging = self._changes = Overlay.empty()
            self._merge = None
            self._count = len(news.snapshot)
            self.misses.use(news.snapshot.bits)
        self._change(news.removed, held=False)
        self._change(news.added, held=True)
        self.misses.announced(news.added)
        self._work(1 + (len(news.removed) + len(news.added)) // CHANGES_PER_STEP)
        self.position = news.position
        self.confirmed_at = now

    def refute(self, key_hash: int, now: float) -> None:
        """The owner did not have a block that this view promised."""
        self.false_positives += 1
        self.misses.add(key_hash, now)

    def holds(self, hashes: Hashes) -> Found:
        """Which of the hashes the peer is believed to hold, refuted or not. Faster where they are sorted."""
        return self._holds(prints_of(hashes, self.bits))

    def has(self, key_hash: int, now: float) -> bool:
        """Whether the peer is believed to hold the block."""
        found = self.holds(np.array([key_hash], dtype=np.uint64))
        return bool(found[0]) and not self.misses.among({key_hash}, now)

    def age(self, now: float) -> float | None:
        """Seconds since the view was known to be current; None before the first snapshot."""
        return None if self.confirmed_at is None else now - self.confirmed_at

    def _holds(self, prints: Prints) -> Found:
        found = self._snapshot.holds(prints)
        self._merging.override(prints, found)
        self._changes.override(prints, found)
        return found

    def _change(self, prints: Prints, *, held: bool) -> None:
        # Of a snapshot that was cut the rest is not known, whatever is said of it.
        known = int(np.searchsorted(prints, np.uint64(self._snapshot.buckets << REMAINDER_BITS)))
        self.left_out += len(prints) - known
        prints = prints[:known]
        prints = prints[self._holds(prints) != held]
        if held and len(prints) > (room := self.blocks_max - self._count):
            self.left_out += len(prints) - room
            prints = prints[:room]
        self._changes = self._changes.changed(prints, held)
        self._count += len(prints) if held else -len(prints)

    def _work(self, steps: int) -> None:
        if self._merge is None:
            if len(self._changes) < MERGE_AT:
                return
            self._merging, self._changes = self._changes, Overlay.empty()
            self._merge = Merge(self._snapshot, self._merging, self.blocks_max)
        for _ in range(steps):
            merged = self._merge.step()
            if merged is not None:
                self._snapshot = merged
                self.merges += 1
                self._merging = Overlay.empty()
                self._merge = None
                return
