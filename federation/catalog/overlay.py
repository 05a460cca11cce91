"""Changes over a snapshot, and their merging into a new one, a slice at a time.

An overlay says of each print that it names whether it is held, whatever the snapshot says. The owner tells of
a print, not of a block: it is gone when the last block with it is (see `federation.catalog.log`). So removing
one of two blocks that cannot be told apart leaves the other one found.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from federation.catalog.prints import REMAINDER_BITS, Found, Prints, merge
from federation.catalog.snapshot import Snapshot, SnapshotBuilder

SLICE_BLOCKS: Final = 65_536
"""Blocks of the snapshot that are merged in one step: 1-2 ms."""
MERGE_AT: Final = 65_536
"""Changes over a snapshot with which merging begins; or, if that is less, with this part of the blocks, so
that what lies over a small snapshot takes no more memory than the snapshot:"""
MERGE_PART: Final = 32
MERGE_LEAST: Final = 2048
"""Changes with which merging begins at the earliest."""
CHANGES_PER_STEP: Final = 1024
"""For so many changes one more step is made in one go. Above 256 changes a step, a snapshot of 16 million
blocks is merged before as many changes have come as began it."""


TABLE_SPARSE: Final = 8
"""Places of an overlay's table for each print, at least."""
TABLE_LEAST: Final = 64
"""Prints for which a table has places from the beginning."""


class Overlay:
    """Prints with what is true of them; immutable.

    Most look-ups are of prints that it does not name. A table of which leading bits occur tells so in a tenth
    of the time that a search takes, most of all where the prints that are looked up are sorted. Overlays made
    from one another share it: one that says too much costs a search.

    Args:
        bits: of the prints.
    """

    __slots__ = ("_held", "_prints", "_table", "bits")

    def __init__(self, bits: int, prints: Prints, held: Found, table: Found | None = None) -> None:
        self.bits = bits
        self._prints = prints
        self._held = held
        if table is None or len(table) < TABLE_SPARSE * len(prints):
            size = 2 * TABLE_SPARSE * max(TABLE_LEAST, len(prints))
            table = np.zeros(1 << (size - 1).bit_length(), dtype=np.bool_)
            table[self._places(prints, table)] = True
        self._table = table

    @classmethod
    def empty(cls, bits: int) -> Overlay:
        """No changes."""
        return cls(bits, np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.bool_))

    def __len__(self) -> int:
        return len(self._prints)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._prints.nbytes + self._held.nbytes + self._table.nbytes

    def override(self, prints: Prints, found: Found) -> None:
        """Corrects what the snapshot said of prints, in place."""
        if not len(self._prints):
            return
        places = np.flatnonzero(self._table.take(self._places(prints, self._table)))
        if not len(places):
            return
        prints = prints[places]
        at = np.searchsorted(self._prints, prints)
        named = self._prints.take(at, mode="clip") == prints
        found[places[named]] = self._held[at[named]]

    def says(self, name: int) -> bool | None:
        """Whether one print is held; None if it is not named here."""
        if not len(self._prints) or not self._table[name >> self._shift(self._table)]:
            return None
        at = int(self._prints.searchsorted(np.uint64(name)))
        if at == len(self._prints) or int(self._prints[at]) != name:
            return None
        return bool(self._held[at])

    def changed(self, prints: Prints, held: bool) -> Overlay:
        """With changes that came later: all of the sorted prints are held, or none of them."""
        if not len(prints):
            return self
        at = np.searchsorted(self._prints, prints)
        known = np.zeros(len(prints), dtype=np.bool_)
        if len(self._prints):
            known = self._prints.take(at, mode="clip") == prints
        states = self._held.copy()
        states[at[known]] = held
        fresh = ~known
        self._table[self._places(prints, self._table)] = True
        return Overlay(
            self.bits,
            np.insert(self._prints, at[fresh], prints[fresh]),
            np.insert(states, at[fresh], held),
            self._table,
        )

    def below(self, end: int) -> Overlay:
        """What it says of prints below `end`."""
        return Overlay(self.bits, *self.part(0, end))

    def part(self, first: int, end: int) -> tuple[Prints, Found]:
        """What it says of prints from `first` to before `end`."""
        low = int(np.searchsorted(self._prints, np.uint64(first)))
        high = int(np.searchsorted(self._prints, np.uint64(end)))
        return self._prints[low:high], self._held[low:high]

    def _places(self, prints: Prints, table: Found) -> npt.NDArray[np.int64]:
        places: npt.NDArray[np.int64] = (prints >> np.uint64(self._shift(table))).view(np.int64)
        return places

    def _shift(self, table: Found) -> int:
        return max(0, self.bits - len(table).bit_length() + 1)


class Merge:
    """A snapshot under an overlay on its way to becoming one snapshot.

    Args:
        blocks_max: see `SnapshotBuilder`.
    """

    def __init__(self, snapshot: Snapshot, overlay: Overlay, blocks_max: int) -> None:
        room = min(len(snapshot) + len(overlay), blocks_max)
        self._snapshot = snapshot
        self._overlay = overlay
        self._builder = SnapshotBuilder(snapshot.bits, room, snapshot.buckets)
        self._at = 0

    def step(self) -> Snapshot | None:
        """One more slice; after the last, and as a step of its own, the new snapshot."""
        if self._at == self._snapshot.buckets:
            return self._builder.build()
        first, end = self._at, self._snapshot.slice_end(self._at, SLICE_BLOCKS)
        named, held = self._overlay.part(first << REMAINDER_BITS, end << REMAINDER_BITS)
        self._builder.take(_applied(self._snapshot.prints(first, end), named, held))
        self._at = end
        return None

    @property
    def left_out(self) -> int:
        """Prints for which there was no room."""
        return self._builder.left_out


def _applied(prints: Prints, named: Prints, held: Found) -> Prints:
    if not len(named):
        return prints
    if len(prints):
        at = np.searchsorted(prints, named)
        here = prints.take(at, mode="clip") == named
        kept = np.ones(len(prints), dtype=np.bool_)
        kept[at[here]] = False
        prints = prints[kept]
    return merge(prints, named[held])
