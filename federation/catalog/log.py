"""What this group offers in one namespace: a set of key hashes with a ring of changes; sans-IO."""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

import numpy as np

from federation.catalog.bag import Bag, Counts, Frozen
from federation.catalog.gaps import bytes_max
from federation.catalog.prints import Hashes, Prints, bits_for, distinct, prints_of, still_fit

SETTLE_AT: Final = 1024
"""Changes that are gathered before they are sorted in; or fewer, where somebody asks."""
CHANGES_MAX: Final = 262_144
"""Changes in one answer; who lacks more gets a snapshot."""


class Position(NamedTuple):
    """A place in a log. Two compare only within one `log_id`."""

    log_id: bytes
    n: int
    """Changes since the log began."""


class Whole(NamedTuple):
    """All that is offered at a position."""

    position: Position
    bits: int
    """Of a print."""
    blocks: int
    """Prints at most."""
    hashes: Frozen


class Changes(NamedTuple):
    """What is otherwise at `position` than where a subscriber stands; prints are sorted."""

    position: Position
    bits: int
    added: Prints
    """Held. The subscriber may know of some."""
    removed: Prints
    """Not held; it may not have known of some."""


class HoldingsLog:
    """Key hashes offered in one namespace.

    Subscribers are told of prints, of which one may stand for more than one block. What they are told of a
    print is whether any block with it is held now. So they never believe a held block to be absent, whatever
    goes that looks like it.

    Args:
        log_id: 16 bytes, drawn anew with each log.
        entries_max: changes kept, `CHANGES_MAX` at most; who is further behind gets a snapshot.
    """

    def __init__(self, log_id: bytes, entries_max: int) -> None:
        self.entries_max = min(entries_max, CHANGES_MAX)
        self._log_id = log_id
        self._n = 0
        self._bag = Bag()
        self._bits = bits_for(0)
        self._bits_since = 0
        self._ring = np.empty(self.entries_max, dtype=np.uint64)
        self._hashes = array("Q")
        self._more = array("q")

    def __len__(self) -> int:
        self._settle()
        return len(self._bag)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._bag.nbytes + self._ring.nbytes

    @property
    def position(self) -> Position:
        """Where the log stands."""
        return Position(self._log_id, self._n)

    @property
    def floor(self) -> int:
        """The oldest `n` from which changes can still be told."""
        self._settle()
        return max(self._bits_since, self._n - self.entries_max)

    def add(self, key_hash: int) -> None:
        """One more key with this hash is offered."""
        self._append(key_hash, 1)

    def remove(self, key_hash: int) -> None:
        """One key with this hash is no longer offered."""
        self._append(key_hash, -1)

    def extend(self, hashes: Hashes) -> None:
        """One more key with each of these is offered."""
        self._settle()
        self._n += len(hashes)
        self._take(hashes, np.ones(len(hashes), dtype=np.int64))

    def reaches(self, after: Position | None) -> bool:
        """Whether a subscriber at `after` can be told changes; else it needs all."""
        return (
            after is not None and after.log_id == self._log_id and self.floor <= after.n <= self._n
        )

    def bytes_since(self, after: Position | None) -> int:
        """Bytes on the wire of what a subscriber at `after` misses, about; costs nothing."""
        if after is not None and self.reaches(after):
            return bytes_max(self._n - after.n)
        return 2 * len(self)

    def changes(self, after: Position) -> Changes:
        """What a subscriber at `after` misses. Only where the log reaches back so far."""
        self._settle()
        places = np.arange(after.n, self._n) % self.entries_max
        # Only what is true now matters, so a block that came and went is told of once.
        named = distinct(np.sort(prints_of(self._ring[places], self._bits)))
        held = self._bag.holds(named, self._bits)
        return Changes(self.position, self._bits, named[held], named[~held])

    def whole(self) -> Whole:
        """All there is; costs nothing yet, and what comes does not change it."""
        self._settle()
        return Whole(self.position, self._bits, len(self._bag), self._bag.freeze())

    def _append(self, key_hash: int, more: int) -> None:
        self._hashes.append(key_hash)
        self._more.append(more)
        self._n += 1
        if len(self._hashes) >= SETTLE_AT:
            self._settle()

    def _settle(self) -> None:
        if self._hashes:
            hashes = np.array(self._hashes, dtype=np.uint64)
            more = np.array(self._more, dtype=np.int64)
            self._hashes, self._more = array("Q"), array("q")
            self._take(hashes, more)

    def _take(self, hashes: Hashes, more: Counts) -> None:
        """The last changes, which are counted already."""
        self._bag.change(hashes, more)
        kept = hashes[-self.entries_max :]
        self._ring[np.arange(self._n - len(kept), self._n) % self.entries_max] = kept
        if not still_fit(self._bits, len(self._bag)):
            self._bits = bits_for(len(self._bag))
            self._bits_since = self._n
