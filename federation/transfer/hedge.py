"""When a peer is later than it ever is, and another one is asked as well; sans-IO."""

from __future__ import annotations

from collections import deque
from typing import Final

from federation.limits.budget import RetryBudget

FIRSTS_KEPT: Final = 128
"""Pulls of one peer by which it is judged how late is late."""
FIRSTS_LEAST: Final = 20
"""Pulls that it takes: before that nobody knows."""
LATE_PERCENT: Final = 95
"""Of its pulls that had begun to come in the time after which a peer is late."""
LATE_SECONDS_MIN: Final = 0.02
"""Nobody is late before: less is a matter of whose turn it is on a processor."""
HEDGES_PERCENT: Final = 5
"""Of the pulls for a first token that may be asked of a second peer as well."""
HEDGES_FEW: Final = 5
"""That may be in any case."""


class Hedges:
    """How long the first block of each peer takes, and whether there is a second request to spare."""

    def __init__(self) -> None:
        self._firsts: dict[str, deque[float]] = {}
        self._budget = RetryBudget(HEDGES_PERCENT, HEDGES_FEW)
        self.made = 0
        """Second requests so far."""

    def begin(self, peer: str) -> float | None:
        """A pull begins; seconds after which it is late, None if nobody knows."""
        self._budget.request()
        firsts = self._firsts.get(peer, ())
        if len(firsts) < FIRSTS_LEAST:
            return None
        late = sorted(firsts)[len(firsts) * LATE_PERCENT // 100]
        return max(LATE_SECONDS_MIN, late)

    def came(self, peer: str, seconds: float) -> None:
        """The first block came, after so long; or nothing did, and that is how long it was waited for."""
        self._firsts.setdefault(peer, deque(maxlen=FIRSTS_KEPT)).append(seconds)

    def take(self) -> bool:
        """Makes a second request, if one may be made."""
        if not self._budget.take():
            return False
        self.made += 1
        return True
