"""Whether the serving process answers, and what it says of itself; sans-IO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from federation.counters import COUNTER_NAMES, counters
from federation.peers.details import check_report, read_details
from federation.trust.handshakes import RefusalLog
from moonmesh.v1 import serving_pb2

RESERVE_TICKS = 8
"""Ticks for which one serves before the next is loaded in reserve: a start is not slowed down by it, and
one that dies again and again does not cost twice."""
RESERVE_TICKS_MAX = 2400
"""Longest pause, in ticks of serving, before a reserve that ended is replaced."""


LEAD_SECONDS = 0.02
"""From a tick to the round of hellos after it: what was heard comes with the answer to its ping, so the
round knows of it. A peer whose newest statement a hello does not know of answers with it."""


def next_tick(now: float, greeted_at: float, seconds: float) -> float:
    """Seconds until the next tick: one each `seconds`, in step with rounds as far as an interval has a whole
    number of them.

    Args:
        greeted_at: a round of hellos, the last one known.
    """
    wait = seconds - (now + LEAD_SECONDS - greeted_at) % seconds
    return wait if wait >= seconds / 2 else wait + seconds


class ReserveClock:
    """When a reserve is to be prepared, in ticks for which a process has served.

    A reserve that ends again and again is replaced after pauses that double; one that has lasted for
    the longest of them ends the doubling.
    """

    def __init__(self) -> None:
        self._next = RESERVE_TICKS
        self._pause = RESERVE_TICKS

    def due(self, served: int) -> bool:
        """Whether to prepare one now, where none is there; said once for each that is to be prepared."""
        if served < self._next:
            return False
        if served - self._next >= RESERVE_TICKS_MAX:
            self._pause = RESERVE_TICKS
        self._next = served + self._pause
        self._pause = min(2 * self._pause, RESERVE_TICKS_MAX)
        return True


class Watch:
    """Counts the ticks without an answer.

    Ticks of the watcher and not seconds: a gateway that was itself stopped, or starved of CPU, finds
    that much time has passed, and must not kill a process that could not know.
    """

    def __init__(self) -> None:
        self._answered = False
        self._silent = 0

    def tick(self) -> int:
        """One tick is over; how many there were since the last answer, this one included."""
        self._silent = 0 if self._answered else self._silent + 1
        self._answered = False
        return self._silent

    def pong(self) -> None:
        """It has answered."""
        self._answered = True


class Absorber:
    """Adds what one process reports to the gateway's own counters and refusals.

    It reports totals since it began; what they have grown by is added, so that they outlive it.
    """

    def __init__(self, refusals: RefusalLog) -> None:
        self._refusals = refusals
        self._counters: dict[str, int] = {}
        self._refused: dict[tuple[str, str], int] = {}
        self.store_well = True
        """Its Mooncake client's breaker is closed."""
        self.details: Mapping[str, Any] = {}
        """For `status`; of the last report that had some."""
        self.pulls = 0
        """Open now; it is told by a process that faces peers, and only shown."""

    def absorb(self, report: serving_pb2.ServingReport) -> None:
        """Takes a report.

        Raises:
            ValueError: it is none that a serving process makes.
        """
        check_report(report)
        details = read_details(report.details_json) if report.details_json else self.details
        if len(self._counters.keys() | report.counters.keys()) > COUNTER_NAMES:
            raise ValueError("it has had more counters than there can be")
        for name, total in report.counters.items():
            grown = total - self._counters.get(name, 0)
            if grown > 0:
                counters.add(name, grown)
                self._counters[name] = total
        refused = {(each.who, each.reason): each for each in report.refused}
        for (who, reason), each in reversed(refused.items()):  # the latest comes first in a report
            before = self._refused.get((who, reason), 0)
            # Below what it was: the entry was dropped for others, and began anew.
            grown = each.count - before if each.count >= before else each.count
            if grown:
                self._refusals.record(who, reason, each.last_at, grown)
        self._refused = {key: each.count for key, each in refused.items()}
        self.store_well = report.store_well
        self.details = details
        self.pulls = report.pulls
