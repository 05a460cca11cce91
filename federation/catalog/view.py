"""What this group believes a peer holds; sans-IO.

Views are hints: a wrong one costs a wasted round trip, never wrong bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import numpy as np

from federation.catalog.honesty import Honesty
from federation.catalog.log import Position
from federation.catalog.overlay import (
    CHANGES_PER_STEP,
    MERGE_AT,
    MERGE_LEAST,
    MERGE_PART,
    Merge,
    Overlay,
)
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
        self, *, blocks_max: int, misses_max: int = 8192, miss_seconds: float = 10.0
    ) -> None:
        self.blocks_max = blocks_max
        """Prints kept at most."""
        self._snapshot = Snapshot.empty()
        self._merging = self._changes = Overlay.empty(self._snapshot.bits)
        self._merge: Merge | None = None
        self._count = 0
        self.misses = Misses(misses_max, miss_seconds)
        """What is not to be asked for, although it is in the catalog."""
        self.misses.use(self._snapshot.bits)
        self.position: Position | None = None
        """Where the view stands; None before the first snapshot."""
        self.confirmed_at: float | None = None
        """When the owner last said that nothing newer exists (monotonic seconds)."""
        self.trouble = ""
        """Why the owner's latest answer could not be had; empty if it could, or nothing was asked yet."""
        self.honesty = Honesty()
        """How far the owner has kept what this view promised."""
        self.arrived_bytes = 0
        """Bytes of the blocks that came."""
        self.largest = 0
        """Bytes of the largest of them."""
        self.left_out = 0
        """Changes that were not believed because the view was full."""
        self._left_out_now = False
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

    @property
    def is_cut(self) -> bool:
        """Whether blocks of the peer are left out for want of room: its chains look shorter than they are."""
        return self._snapshot.is_cut or self._left_out_now

    def limit(self, blocks_max: int) -> None:
        """There is room for so many blocks from now on. What is too much goes, from the highest hashes on;
        what was left out before is not there before the next snapshot."""
        self.blocks_max = blocks_max
        if max(len(self._snapshot), self._count) <= blocks_max or self._snapshot.buckets == 1:
            return
        snapshot = self._snapshot.cut(blocks_max)
        if snapshot.buckets == self._snapshot.buckets:
            return  # what is too much are changes alone, and few
        end = snapshot.buckets << REMAINDER_BITS
        self._snapshot = snapshot
        self._merging, self._changes = self._merging.below(end), self._changes.below(end)
        self._merge = Merge(snapshot, self._merging, blocks_max) if len(self._merging) else None
        named = np.union1d(self._merging.part(0, end)[0], self._changes.part(0, end)[0])
        self._count = (
            len(snapshot) + int(self.believes(named).sum()) - int(snapshot.holds(named).sum())
        )

    def apply(self, news: News, now: float) -> None:
        """Brings the view to the answer's position."""
        if news.snapshot is not None:
            self._snapshot = news.snapshot
            self._merging = self._changes = Overlay.empty(news.snapshot.bits)
            self._merge = None
            self._count = len(news.snapshot)
            self._left_out_now = False
            self.misses.use(news.snapshot.bits)
        self._change(news.removed, held=False)
        self._change(news.added, held=True)
        self.misses.announced(news.added)
        self._work(1 + (len(news.removed) + len(news.added)) // CHANGES_PER_STEP)
        self.position = news.position
        self.confirmed_at = now

    def refute(self, key_hash: int, now: float, room: int | None = None) -> None:
        """The owner did not have a block that this view promised.

        Args:
            room: bytes that the asker had for it. An owner does not send what is larger: that it did not is
                held against it only where there was as much room as any of its blocks took.
        """
        judged = room is None or 0 < self.largest <= room
        self.honesty.breach(key_hash, now, judged=judged)
        self.misses.add(key_hash, now)

    def came(self, size: int) -> None:
        """A block that this view promised came, of so many bytes."""
        self.honesty.keep()
        self.arrived_bytes += size
        self.largest = max(self.largest, size)

    @property
    def mean_size(self) -> float | None:
        """Bytes of a block of this peer and namespace, by those that came; None if none did."""
        kept = self.honesty.kept
        return self.arrived_bytes / kept if kept else None

    def judge(self, now: float) -> int:
        """Broken promises that turn out to stand: see `Honesty.judge`."""
        return self.honesty.judge(now, self.confirmed_at, self.holds)

    def holds(self, hashes: Hashes) -> Found:
        """Which of the hashes the peer is believed to hold, refuted or not. Faster where they are sorted."""
        return self.believes(prints_of(hashes, self.bits))

    def believes(self, prints: Prints) -> Found:
        """The same of prints, of `bits` bits."""
        found = self._snapshot.holds(prints)
        self._merging.override(prints, found)
        self._changes.override(prints, found)
        return found

    def has(self, key_hash: int, now: float) -> bool:
        """Whether the peer is believed to hold the block."""
        name = key_hash >> (64 - self.bits)
        held = self._changes.says(name)
        if held is None:
            held = self._merging.says(name)
        if held is None:
            held = self._snapshot.has(name)
        return held and not (len(self.misses) and self.misses.among({key_hash}, now))

    def age(self, now: float) -> float | None:
        """Seconds since the view was known to be current; None before the first snapshot."""
        return None if self.confirmed_at is None else now - self.confirmed_at

    def _change(self, prints: Prints, *, held: bool) -> None:
        # Of a snapshot that was cut the rest is not known, whatever is said of it.
        known = int(np.searchsorted(prints, np.uint64(self._snapshot.buckets << REMAINDER_BITS)))
        self.left_out += len(prints) - known
        prints = prints[:known]
        prints = prints[self.believes(prints) != held]
        if held and len(prints) > (room := self.blocks_max - self._count):
            self.left_out += len(prints) - room
            self._left_out_now = True
            prints = prints[: max(0, room)]
        self._changes = self._changes.changed(prints, held)
        self._count += len(prints) if held else -len(prints)

    def _work(self, steps: int) -> None:
        if self._merge is None:
            part = len(self._snapshot) // MERGE_PART
            if len(self._changes) < min(MERGE_AT, max(MERGE_LEAST, part)):
                return
            self._merging, self._changes = self._changes, Overlay.empty(self.bits)
            self._merge = Merge(self._snapshot, self._merging, self.blocks_max)
        for _ in range(steps):
            merged = self._merge.step()
            if merged is not None:
                self._snapshot = merged
                self.merges += 1
                self._merging = Overlay.empty(self.bits)
                self._merge = None
                return
