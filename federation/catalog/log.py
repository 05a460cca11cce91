"""What this group offers in one namespace: a set of key hashes with a ring of changes; sans-IO."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import NamedTuple


class Position(NamedTuple):
    """A place in a log. Two compare only within one `log_id`."""

    log_id: bytes
    n: int
    """Changes since the log began."""


class Answer(NamedTuple):
    """What brings a subscriber up to `position`."""

    position: Position
    snapshot: bool
    """`added` is all there is; otherwise it is what came, and `removed` what went."""
    added: list[int]
    removed: list[int]


class HoldingsLog:
    """Key hashes offered in one namespace.

    Two keys may share a hash; a count keeps it until the last of them is gone, so that a subscriber
    never believes a held block to be absent.

    Args:
        log_id: 16 bytes, drawn anew with each log.
        entries_max: changes kept; who is further behind gets a snapshot.
    """

    def __init__(self, log_id: bytes, entries_max: int) -> None:
        self._log_id = log_id
        self._n = 0
        self._counts: dict[int, int] = {}
        self._ring: deque[tuple[int, bool]] = deque(maxlen=entries_max)

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def position(self) -> Position:
        """Where the log stands."""
        return Position(self._log_id, self._n)

    @property
    def floor(self) -> int:
        """The oldest `n` from which changes can still be told."""
        return self._n - len(self._ring)

    def add(self, key_hash: int) -> None:
        """One more key with this hash is offered."""
        count = self._counts.get(key_hash, 0)
        self._counts[key_hash] = count + 1
        if count == 0:
            self._append(key_hash, True)

    def remove(self, key_hash: int) -> None:
        """One key with this hash is no longer offered."""
        count = self._counts.get(key_hash, 0)
        if count == 1:
            del self._counts[key_hash]
            self._append(key_hash, False)
        elif count > 1:
            self._counts[key_hash] = count - 1

    def changes_since(self, after: Position | None) -> int:
        """Hashes in `since(after)`, at most; costs nothing."""
        return self._n - after.n if after is not None and self._reaches(after) else len(self)

    def since(self, after: Position | None) -> Answer:
        """What a subscriber at `after` misses: changes if the ring reaches back so far, else all."""
        if after is None or not self._reaches(after):
            return Answer(self.position, True, list(self._counts), [])
        # Only the last word on each hash matters, so a block that came and went costs nothing.
        last = dict(islice(self._ring, after.n - self.floor, None))
        return Answer(
            self.position,
            False,
            [key_hash for key_hash, added in last.items() if added],
            [key_hash for key_hash, added in last.items() if not added],
        )

    def _reaches(self, after: Position) -> bool:
        return after.log_id == self._log_id and self.floor <= after.n <= self._n

    def _append(self, key_hash: int, added: bool) -> None:
        self._ring.append((key_hash, added))
        self._n += 1
