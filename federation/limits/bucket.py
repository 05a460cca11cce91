"""A token bucket: a rate over time, with a burst; sans-IO."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from federation.limits.shared import Count

_ROUNDING = 1e-6
"""Tokens: who waits for as long as he was told is not refused for the last bit of a float."""


class TokenBucket:
    """Holds at most `burst` tokens and gains `rate` a second.

    What is known beforehand is taken with `take`. What is known only afterwards is charged with
    `charge` and may leave a debt, which is paid before anything more is let in: the mean rate holds.

    Args:
        rate: tokens a second.
        burst: tokens at most, and at the start.
    """

    def __init__(self, rate: float, burst: float) -> None:
        if rate <= 0 or burst <= 0:
            raise ValueError("a bucket needs a rate and a burst above 0")
        self._rate = rate
        self._burst = burst
        self._level = burst
        self._at: float | None = None
        self._count: Count | None = None
        self._elsewhere = 0

    def __repr__(self) -> str:
        return f"TokenBucket({self._level:.3g} of {self._burst:.3g}, {self._rate:.3g}/s)"

    def share(self, count: Count) -> None:
        """Other processes take from it as well: what they took is missing here too."""
        self._count = count
        self._elsewhere = count.elsewhere()

    def level(self, now: float) -> float:
        """Tokens at `now`; negative while there is a debt."""
        self._refill(now)
        return self._level

    def has(self, n: float, now: float) -> bool:
        """Whether `n` can be taken at `now`; more than the burst is let in by a full bucket."""
        return self.level(now) >= min(n, self._burst) - _ROUNDING

    def take(self, n: float, now: float) -> bool:
        """Takes `n` if they are there, else nothing."""
        if not self.has(n, now):
            return False
        self._spend(n)
        return True

    def charge(self, n: float, now: float) -> float:
        """Takes `n` whether they are there or not; seconds until the debt is paid, 0 without one."""
        self._refill(now)
        self._spend(n)
        return max(0.0, -self._level / self._rate)

    def wait(self, n: float, now: float) -> float:
        """Seconds until `has(n)`, if nothing else is taken meanwhile."""
        return max(0.0, (min(n, self._burst) - self.level(now)) / self._rate)

    def _spend(self, n: float) -> None:
        self._level -= n
        if self._count is not None:
            self._count.add(int(n))

    def _refill(self, now: float) -> None:
        if self._at is None:
            self._at = now
        elif now > self._at:  # a clock that goes back neither gives tokens nor takes them
            self._level = min(self._burst, self._level + self._rate * (now - self._at))
            self._at = now
        if self._count is not None:
            spent, self._elsewhere = self._elsewhere, self._count.elsewhere()
            self._level -= max(0, self._elsewhere - spent)
