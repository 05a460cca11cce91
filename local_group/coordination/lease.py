"""How long a leader may lead, and when another may claim: arithmetic of one lease, without IO.

Both sides count on their own clock, and neither compares its clock with the other's. The leader counts
from the moment BEFORE it asked for the lease, and stops `MARGIN` of it early; who waits counts from the
moment AFTER it saw that the lease was given, and waits all of it. So the leader has stopped when another
begins, as long as no clock runs more than `MARGIN` faster than another.
"""

from __future__ import annotations

import math
import time

MARGIN = 0.1
"""Of a lease: by how much its holder stops early, for clocks that do not run alike."""
RENEWALS = 3
"""Renewals in a lease: two may fail."""


def clock() -> float:
    """Seconds that also pass while the machine sleeps, unlike those of `time.monotonic`: a leader
    whose host was suspended has to know how long it was away."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """The leader's side. Once it has ended it never holds again, whatever answer comes late.

    Args:
        seconds: how long it lasts; `math.inf` for one that ends with its process.
        sent: when it was asked for, as `clock` tells it; before the question went out.
    """

    def __init__(self, seconds: float, sent: float) -> None:
        if not seconds > 0:
            raise ValueError(f"a lease of {seconds} s")
        self._seconds = seconds
        self._sent = sent
        self._over = False

    @property
    def deadline(self) -> float:
        """When it ends, unless it is renewed."""
        return self._sent + self._seconds * (1 - MARGIN)

    @property
    def renew_at(self) -> float:
        """When to ask for its renewal."""
        return self._sent + self._seconds / RENEWALS

    def holds(self, now: float) -> bool:
        """Does it still hold?"""
        if now >= self.deadline:
            self._over = True
        return not self._over

    def renewed(self, sent: float, now: float) -> None:
        """A renewal that was asked for at `sent` was granted. Too late, it changes nothing."""
        if self.holds(now):
            self._sent = max(self._sent, sent)

    def end(self) -> None:
        """Give it up."""
        self._over = True


class Patience:
    """The side of those who wait: when may one claim what another holds?

    A lease is known by its stamp, which each renewal changes. A claim names the stamp that it has
    waited for, and is refused if that is not the last one.
    """

    def __init__(self) -> None:
        self._stamp = -1
        self._since = math.inf

    def until(self, stamp: int, seconds: float, now: float) -> float:
        """When to claim, if the stamp is still this one then.

        Args:
            stamp: what is seen now.
            seconds: of the lease that it stands for; 0 if nobody holds one.
            now: AFTER the stamp was seen.
        """
        if stamp != self._stamp:
            self._stamp, self._since = stamp, now
        return self._since + seconds
