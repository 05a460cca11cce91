"""Blocks that an engine missed although another group had just written them: what stale views cost."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

FRESH_S: Final = 5.0
"""A block written in the last so many seconds is taken to be still there: no pool is turned over so fast."""


class Written:
    """What engines have written lately, and where; sans-IO.

    Args:
        fresh_s: see `FRESH_S`; what is older is forgotten, so memory is that of a few seconds' writes.
    """

    def __init__(self, fresh_s: float = FRESH_S) -> None:
        self._fresh_s = fresh_s
        self._last: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last)

    def note(self, keys: Sequence[str], group: int, now: float) -> None:
        """The engine of a group has written these, all acknowledged by `now`."""
        for key in keys:
            self._last[key] = (now, group)
            self._last.move_to_end(key)
        while self._last:
            key, (at, _) = next(iter(self._last.items()))
            if now - at <= self._fresh_s:
                break
            del self._last[key]

    def stale(self, missed: Sequence[str], group: int, began: float) -> int:
        """Of what a request missed, the leading run that another group had when it began."""
        for count, key in enumerate(missed):
            at, writer = self._last.get(key, (began, group))
            if writer == group or not began - self._fresh_s <= at < began:
                return count
        return len(missed)
