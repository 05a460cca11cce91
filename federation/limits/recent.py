"""What happened in the last while, for people who look now; sans-IO."""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

RECENT_SECONDS = 60.0
"""What is told happened in the last minute for certain, and two minutes ago at most."""

T = TypeVar("T")


class Recent(Generic[T]):
    """Counts of the current minute and the one before: two counters, however much happens."""

    def __init__(self) -> None:
        self._began = float("-inf")
        self._current: Counter[T] = Counter()
        self._before: Counter[T] = Counter()

    def add(self, what: T, now: float) -> None:
        """It has happened."""
        self._turn(now)
        self._current[what] += 1

    def counts(self, now: float) -> Counter[T]:
        """How often each thing happened lately."""
        self._turn(now)
        return self._current + self._before

    def _turn(self, now: float) -> None:
        passed = now - self._began
        if passed >= RECENT_SECONDS:
            self._before = self._current if passed < 2 * RECENT_SECONDS else Counter()
            self._current = Counter()
            self._began = now
