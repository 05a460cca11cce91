"""Virtual time: what happens next, happens now."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Clock:
    """Actions at times; time passes only by running them.

    Attributes:
        now: seconds since the world began.
    """

    __slots__ = ("_heap", "_order", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._order = 0

    def __len__(self) -> int:
        """Actions that are still to come."""
        return len(self._heap)

    def at(self, when: float, action: Callable[..., object], *arguments: Any) -> None:
        """Calls `action` at `when`, or now if that has passed; equal times in the order of calls."""
        self._order += 1
        now = self.now
        heapq.heappush(self._heap, (when if when > now else now, self._order, action, arguments))

    def run(self, until: float) -> None:
        """Runs all that is due up to `until`, and what comes of it; then it is `until`.

        What an action raises ends the run there: `now` is the time of that action.
        """
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, action, arguments = heapq.heappop(heap)
            action(*arguments)
        self.now = max(self.now, until)
