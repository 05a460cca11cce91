"""All hashes that are offered in one namespace, each as often as there are keys with it: sorted arrays.

Like a view (see `federation.catalog.overlay`), a large array under small changes that are merged into a new
one a slice at a time; but of whole hashes, and counted: 8 bytes a block, and 8 more while it is merged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from federation.catalog.prints import Hashes, Prints, distinct, merge, prints_of

Counts = npt.NDArray[np.int64]
"""How many there are, or how many more."""

MERGE_AT: Final = 65_536
"""Changed hashes with which merging begins; or with this part of all, if that is more:"""
MERGE_PART: Final = 64
SLICE_HASHES: Final = 65_536
"""Hashes that are merged in one step: a ms."""
CHANGES_PER_STEP: Final = 256
"""For so many changes one more step is made in one go."""

_LAST = (1 << 64) - 1


class Deltas(NamedTuple):
    """How often hashes are there more than an array says; none of them zero."""

    hashes: Hashes
    """Sorted and distinct."""
    counts: Counts

    @classmethod
    def none(cls) -> Deltas:
        """No changes."""
        return cls(np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64))

    def plus(self, hashes: Hashes, counts: Counts) -> Deltas:
        """With more of them, sorted and distinct."""
        at = np.searchsorted(self.hashes, hashes)
        known = np.zeros(len(hashes), dtype=np.bool_)
        if len(self.hashes):
            known = self.hashes.take(at, mode="clip") == hashes
        sums = self.counts.copy()
        sums[at[known]] += counts[known]
        fresh = ~known
        both = np.insert(self.hashes, at[fresh], hashes[fresh])
        sums = np.insert(sums, at[fresh], counts[fresh])
        some = sums != 0
        return Deltas(both[some], sums[some])

    def between(self, first: Hashes, last: Hashes) -> Counts:
        """Sums of the counts of hashes from `first` to `last`, of each pair."""
        total = np.zeros(len(self.counts) + 1, dtype=np.int64)
        np.cumsum(self.counts, out=total[1:])
        low = np.searchsorted(self.hashes, first)
        high = np.searchsorted(self.hashes, last, side="right")
        return total[high] - total[low]

    def part(self, first: int, last: int) -> Deltas:
        """Those of hashes from `first` to `last`."""
        low = int(np.searchsorted(self.hashes, np.uint64(first)))
        high = int(np.searchsorted(self.hashes, np.uint64(last), side="right"))
        return Deltas(self.hashes[low:high], self.counts[low:high])

    def applied(self, ordered: Hashes) -> Hashes:
        """To hashes in ascending order."""
        if not len(self.hashes):
            return ordered
        fewer = self.counts < 0
        if fewer.any():
            times = -self.counts[fewer]
            first = np.searchsorted(ordered, self.hashes[fewer])
            nth = np.arange(int(times.sum())) - np.repeat(np.cumsum(times) - times, times)
            kept = np.ones(len(ordered), dtype=np.bool_)
            kept[np.repeat(first, times) + nth] = False
            ordered = ordered[kept]
        return merge(ordered, np.repeat(self.hashes[~fewer], self.counts[~fewer]))


class Frozen(NamedTuple):
    """All hashes as they were at one moment."""

    array: Hashes
    layers: tuple[Deltas, Deltas]

    def prints(self, bits: int) -> Iterator[Prints]:
        """Their prints, sorted, in pieces of about `SLICE_HASHES`, each made when it is asked for."""
        begin, at = 0, 0
        mask = (1 << (64 - bits)) - 1
        while True:
            last = _LAST
            if at + SLICE_HASHES < len(self.array):
                last = int(self.array[at + SLICE_HASHES]) | mask  # never in the midst of one print
            end = int(np.searchsorted(self.array, np.uint64(last), side="right"))
            hashes = self.array[at:end]
            for layer in self.layers:
                hashes = layer.part(begin, last).applied(hashes)
            yield distinct(prints_of(hashes, bits))
            if last == _LAST:
                return
            begin, at = last + 1, end


class Bag:
    """Counted hashes."""

    def __init__(self) -> None:
        self._array: Hashes = np.empty(0, dtype=np.uint64)
        self._merging = Deltas.none()
        self._changes = Deltas.none()
        self._next: Hashes | None = None
        self._merged = 0
        self._filled = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        layers = sum(part.nbytes for layer in self._layers for part in layer)
        return self._array.nbytes + layers + (0 if self._next is None else self._next.nbytes)

    @property
    def _layers(self) -> tuple[Deltas, Deltas]:
        return self._merging, self._changes

    def change(self, hashes: Hashes, more: Counts) -> None:
        """Hashes that came (+1) and went (-1), in the order in which they did.

        One that goes without being there is ignored. Merges a slice as well, where merging is due.
        """
        if not len(hashes):
            return
        order = np.argsort(hashes, kind="stable")
        ordered, steps = hashes[order], more[order]
        starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
        names = ordered[starts]
        running = np.cumsum(steps)
        before = running[starts] - steps[starts]
        lowest = np.minimum.reduceat(running, starts) - before
        # A count that would have gone below zero stood still there instead.
        ignored = np.minimum(0, self.between(names, names) + lowest)
        change = np.add.reduceat(steps, starts) - ignored
        some = change != 0
        self._changes = self._changes.plus(names[some], change[some])
        self._count += int(change.sum())
        for _ in range(1 + len(hashes) // CHANGES_PER_STEP):
            if not self._work():
                break

    def between(self, first: Hashes, last: Hashes) -> Counts:
        """How many there are from `first` to `last`, of each pair."""
        low = np.searchsorted(self._array, first)
        high = np.searchsorted(self._array, last, side="right")
        found: Counts = (high - low).astype(np.int64)
        for layer in self._layers:
            if len(layer.hashes):
                found += layer.between(first, last)
        return found

    def holds(self, prints: Prints, bits: int) -> npt.NDArray[np.bool_]:
        """Which prints some hash has."""
        rest = np.uint64(64 - bits)
        first = prints << rest
        return self.between(first, first | np.uint64((1 << int(rest)) - 1)) > 0

    def freeze(self) -> Frozen:
        """All of them as they are now; costs nothing, and what comes does not change it."""
        return Frozen(self._array, self._layers)

    def _work(self) -> bool:
        """Merges a slice, where there is something to merge; whether there is more."""
        if self._next is None:
            if len(self._changes.hashes) < max(MERGE_AT, len(self._array) // MERGE_PART):
                return False
            self._merging, self._changes = self._changes, Deltas.none()
            total = len(self._array) + int(self._merging.counts.sum())
            self._next = np.empty(total, dtype=np.uint64)
            self._merged = self._filled = 0
        # A slice of the array, with what changes in it.
        at = self._merged
        first = int(self._array[at - 1]) + 1 if at else 0
        end = len(self._array)
        last = int(self._array[at + SLICE_HASHES]) if at + SLICE_HASHES < end else _LAST
        end = int(np.searchsorted(self._array, np.uint64(last), side="right"))
        if end == len(self._array):
            last = _LAST
        part = self._merging.part(first, last).applied(self._array[at:end])
        self._next[self._filled : self._filled + len(part)] = part
        self._filled += len(part)
        self._merged = end
        if end == len(self._array):
            self._array, self._next = self._next, None
            self._merging = Deltas.none()
            return False
        return True
