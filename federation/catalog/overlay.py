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
"""Changes over a snapshot with which merging begins."""
CHANGES_PER_STEP: Final = 1024
"""For so many changes one more step is made in one go. Above 256 changes a step, a snapshot of 16 million
blocks is merged before as many changes have come as began it."""


TABLE_SPARSE: Final = 8
"""Places of an overlay's table for each print, at least."""
TABLE_LEAST: Final = 64
"""Prints for which a table has places from the beginning."""


class Overlay:
    """Prints with what is true of them; immutable.

    Most look-ups are of prints that it does not name. A table of which last bits occur tells so in a tenth of
    the time that a search takes. Overlays made from one another share it: one that says too much costs a
    search.
    """

    __slots__ = ("_held", "_prints", "_table")

    def __init__(self, prints: Prints, held: Found, table: Found | None = None) -> None:
        self._prints = prints
        self._held = held
        if table is None or len(table) < TABLE_SPARSE * len(prints):
            size = 2 * TABLE_SPARSE * max(TABLE_LEAST, len(prints))
            table = np.zeros(1 << (size - 1).bit_length(), dtype=np.bool_)
            table[_last_bits(prints, table)] = True
        self._table = table

    @classmethod
    def empty(cls) -> Overlay:
        """No changes."""
        return cls(np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.bool_))

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
        places = np.flatnonzero(self._table.take(_last_bits(prints, self._table)))
        if not len(places):
            return
        prints = prints[places]
        at = np.searchsorted(self._prints, prints)
        named = self._prints.take(at, mode="clip") == prints
        found[places[named]] = self._held[at[named]]

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
        self._table[_last_bits(prints, self._table)] = True
        return Overlay(
            np.insert(self._prints, at[fresh], prints[fresh]),
            np.insert(states, at[fresh], held),
            self._table,
        )

    def part(self, first: int, end: int) -> tuple[Prints, Found]:
        """What it says of prints from `first` to before `end`."""
        low = int(np.searchsorted(self._prints, np.uint64(first)))
        high = int(np.searchsorted(self._prints, np.uint64(end)))
        return self._prints[low:high], self._held[low:high]


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


def _last_bits(prints: Prints, table: Found) -> npt.NDArray[np.int64]:
    places: npt.NDArray[np.int64] = (prints & np.uint64(len(table) - 1)).view(np.int64)
    return places


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
