"""What the subscribers of one log are sent, made once for all that ask for it; sans-IO."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from federation.catalog.log import HoldingsLog, Position
from federation.catalog.wire import pages

PAGE_ENTRIES: Final = 65_536
"""Prints in a page where nothing else is said: 128 KiB of a snapshot, made in a ms."""
KEPT_FOR_PART: Final = 4
"""A snapshot is sent again until the ring has moved on by this part of it: who gets it then still has most of
the ring to catch up in."""


class _Pages:
    """Encoded pages, made as somebody gets that far and kept for who comes after: two bytes a block."""

    def __init__(self, position: Position, source: Iterator[bytes]) -> None:
        self.position = position
        self._source = source
        self._made: list[bytes] = []

    def __iter__(self) -> Iterator[bytes]:
        at = 0
        while True:
            if at == len(self._made):
                page = next(self._source, None)
                if page is None:
                    return
                self._made.append(page)
            yield self._made[at]
            at += 1


class Answers:
    """Answers from one log.

    Args:
        entries_max: prints in a page.
    """

    def __init__(self, log: HoldingsLog, entries_max: int) -> None:
        self._log = log
        self._entries_max = entries_max
        self._snapshot: _Pages | None = None
        self._changes: tuple[Position, _Pages] | None = None

    def since(self, after: Position | None) -> Iterator[bytes]:
        """Encoded pages that bring a subscriber up to date, or nearly: changes if the log reaches back so
        far, else all. Each is made when it is asked for, in a few ms."""
        if after is not None and self._log.reaches(after):
            if (
                self._changes is None
                or self._changes[0] != after
                or self._is_late(self._changes[1])
            ):
                made = pages(self._log.changes(after), self._entries_max)
                found = _Pages(self._log.position, (p.SerializeToString() for p in made))
                self._changes = (after, found)
            return iter(self._changes[1])
        if self._snapshot is None or not self._serves(self._snapshot):
            made = pages(self._log.whole(), self._entries_max)
            self._snapshot = _Pages(self._log.position, (p.SerializeToString() for p in made))
        return iter(self._snapshot)

    def _is_late(self, made: _Pages) -> bool:
        return made.position != self._log.position

    def _serves(self, made: _Pages) -> bool:
        behind = self._log.position.n - made.position.n
        if behind and len(self._log) <= self._entries_max:
            return False  # one page is soon made anew
        return self._log.reaches(made.position) and KEPT_FOR_PART * behind <= self._log.entries_max
