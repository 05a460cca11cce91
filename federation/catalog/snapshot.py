"""A set of prints in little more than two bytes each, that is looked up in but never changed.

The leading bits of a print are its bucket; its last sixteen are kept, sorted, side by side with those of its
bucket, and for each bucket it is kept where they begin. See decision 011.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from federation.catalog.prints import (
    REMAINDER_BITS,
    Found,
    Hashes,
    Prints,
    bits_for,
    distinct,
    prints_of,
)

SPARE_PART = 16
"""A part of so many of the remainders may be room that turned out not to be needed, rather than copy them."""
_SHIFT = np.uint64(REMAINDER_BITS)


class Snapshot:
    """Made by `SnapshotBuilder`, or `Snapshot.of`.

    Args:
        offsets: where each bucket begins among `remainders`, and two more: see below.
        longest: remainders in one bucket, at most.

    Attributes:
        bits: of a print.
        buckets: those that are kept. Fewer than there are where the snapshot was cut; what would be in one of
            the others is not known.
    """

    __slots__ = ("_longest", "_offsets", "_remainders", "bits", "buckets")

    def __init__(
        self,
        bits: int,
        offsets: npt.NDArray[np.uint32],
        remainders: npt.NDArray[np.uint16],
        longest: int,
    ) -> None:
        self.bits = bits
        # One bucket more, always empty, stands for all that are not kept; and one remainder more, so that
        # an empty bucket at the end can be looked into.
        self.buckets = len(offsets) - 2
        self._offsets = offsets
        self._remainders = remainders
        self._longest = longest

    @classmethod
    def of(cls, hashes: Hashes, bits: int | None = None) -> Snapshot:
        """The prints of hashes, which may be in any order.

        Args:
            bits: of a print; as many as the number of hashes needs, if not given.
        """
        bits = bits_for(len(hashes)) if bits is None else bits
        prints = distinct(np.sort(prints_of(hashes, bits)))
        builder = SnapshotBuilder(bits, len(prints))
        builder.take(prints)
        return builder.build()

    @classmethod
    def empty(cls) -> Snapshot:
        """Nothing."""
        return cls.of(np.empty(0, dtype=np.uint64))

    def __len__(self) -> int:
        return int(self._offsets[-1])

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        kept = self._remainders if self._remainders.base is None else self._remainders.base
        return self._offsets.nbytes + kept.nbytes

    def contains(self, hashes: Hashes) -> Found:
        """Which of the hashes have a print that is in here. Faster where they are sorted."""
        return self.holds(prints_of(hashes, self.bits))

    def holds(self, prints: Prints) -> Found:
        """Which of the prints are in here."""
        # 32-bit numbers, and few new arrays: half the time of the obvious way.
        buckets = (prints >> _SHIFT).astype(np.int32)
        if self.is_cut:
            np.minimum(buckets, self.buckets, out=buckets)
        wanted = prints.astype(np.uint16)
        at = self._offsets.take(buckets).view(np.int32)
        buckets += 1
        size = self._offsets.take(buckets).view(np.int32)
        size -= at
        some = size > 0
        # Halves all buckets at once, to the last remainder of each that is not above what is looked for. The
        # longest decides how often: 65,536 remainders at most, so 16 times, whatever a peer sends.
        longest = self._longest
        while longest > 1:
            if longest == 2:
                # Nearly all have one left: the longest is twice as long as most.
                rest = np.flatnonzero(size > 1)
                at[rest] += self._remainders.take(at[rest] + 1) <= wanted[rest]
                break
            half = size >> 1
            right = self._remainders.take(at + half) <= wanted
            size -= half
            half *= right
            at += half
            longest -= longest >> 1
        found: Found = self._remainders.take(at) == wanted
        found &= some
        return found

    def has(self, name: int) -> bool:
        """Whether one print is in here: a few microseconds."""
        bucket = min(name >> REMAINDER_BITS, self.buckets)
        start, end = int(self._offsets[bucket]), int(self._offsets[bucket + 1])
        wanted = np.uint16(name & ((1 << REMAINDER_BITS) - 1))
        at = start + int(self._remainders[start:end].searchsorted(wanted))
        return at < end and bool(self._remainders[at] == wanted)

    def prints(self, first: int, end: int) -> Prints:
        """Those in the buckets from `first` to before `end`, sorted."""
        offsets = self._offsets[first : end + 1]
        buckets = np.arange(first, end, dtype=np.uint64) << _SHIFT
        out: Prints = buckets.repeat(np.diff(offsets))
        out |= self._remainders[int(offsets[0]) : int(offsets[-1])]
        return out

    def cut(self, blocks_max: int) -> Snapshot:
        """Its lowest buckets, with so many prints at most; one bucket at least."""
        kept = int(np.searchsorted(self._offsets[: self.buckets + 1], blocks_max, side="right")) - 1
        kept = max(1, kept)
        offsets = self._offsets[: kept + 2].copy()
        offsets[-1] = offsets[-2]
        remainders = self._remainders[: int(offsets[-1]) + 1].copy()
        remainders[-1] = 0
        return Snapshot(self.bits, offsets, remainders, self._longest)

    @property
    def is_cut(self) -> bool:
        """Whether some of the buckets that there are are not kept."""
        return self.buckets < 1 << (self.bits - REMAINDER_BITS)

    def slice_end(self, first: int, blocks: int) -> int:
        """A bucket before which there are so many prints from `first` on, or a bucketful more; and not many
        more buckets than that, so that either bounds what `prints` takes."""
        wanted = np.uint32(int(self._offsets[first]) + blocks)
        end = int(np.searchsorted(self._offsets[: self.buckets + 1], wanted))
        return max(first + 1, min(end, first + blocks, self.buckets))


class SnapshotBuilder:
    """Makes a snapshot of sorted prints that come in pieces.

    Takes its memory when it is made: two bytes for each of `blocks_max` and four for each of the buckets.
    (What is not written to, the system gives only in name.)

    Args:
        bits: of a print.
        blocks_max: prints that are kept. What lies behind is left out and counted.
        buckets_max: buckets that are kept; all, if not given. The same.
    """

    def __init__(self, bits: int, blocks_max: int, buckets_max: int | None = None) -> None:
        buckets = 1 << (bits - REMAINDER_BITS)
        if buckets_max is not None:
            buckets = min(buckets, max(1, buckets_max))
        self._bits = bits
        self._blocks_max = blocks_max
        self._buckets = buckets
        self._offsets = np.zeros(buckets + 2, dtype=np.uint32)
        self._remainders = np.empty(blocks_max + 1, dtype=np.uint16)
        self._count = 0
        self._next = 0
        self._longest = 0
        self._cut: int | None = None
        self.left_out = 0

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        """Whether all that could still come would be left out."""
        return self._cut is not None

    def take(self, prints: Prints) -> None:
        """More prints, sorted.

        Raises:
            ValueError: they are not above all that came before.
        """
        if not len(prints):
            return
        if int(prints[0]) < self._next:
            raise ValueError("prints that are not above those before")
        self._next = int(prints[-1]) + 1
        given = len(prints)
        if self._cut is not None:
            self.left_out += given
            return
        if self._next > self._buckets << REMAINDER_BITS:
            self._cut = self._buckets
        if given > self._blocks_max - self._count:
            # Whole buckets only: what is known of a bucket is all of it.
            room = self._blocks_max - self._count
            cut = int(prints[room]) >> REMAINDER_BITS
            self._cut = cut if self._cut is None else min(self._cut, cut)
        if self._cut is not None:
            prints = prints[: np.searchsorted(prints, np.uint64(self._cut << REMAINDER_BITS))]
            self.left_out += given - len(prints)
        if len(prints):
            self._put(prints)

    def _put(self, prints: Prints) -> None:
        buckets = (prints >> _SHIFT).astype(np.intp)
        first, last = int(buckets[0]), int(buckets[-1])
        buckets -= first
        counts = self._offsets[first + 1 : last + 2]
        counts += np.bincount(buckets).astype(np.uint32)
        self._longest = max(self._longest, int(counts.max()))
        end = self._count + len(prints)
        self._remainders[self._count : end] = prints.astype(np.uint16)
        self._count = end

    def build(self) -> Snapshot:
        """The snapshot; nothing more can be taken."""
        offsets = self._offsets
        buckets = self._buckets
        if self._cut is not None and self._cut < buckets:
            # Part of the last bucket may be here, from a piece before; it goes with the rest of it.
            buckets = self._cut
            partial = int(offsets[buckets + 1])
            self._count -= partial
            self.left_out += partial
            offsets = offsets[: buckets + 2].copy()
            offsets[-1] = 0
        np.cumsum(offsets, dtype=np.uint32, out=offsets)
        remainders = self._remainders[: self._count + 1]
        remainders[self._count] = 0
        if len(self._remainders) - len(remainders) > len(remainders) // SPARE_PART:
            remainders = remainders.copy()
        return Snapshot(self._bits, offsets, remainders, self._longest)
