"""Whether this process itself stood still: what it then waited for too long is nobody else's fault."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

TICK_SECONDS = 0.02
"""Between two beats: fine enough for deadlines of 50 ms, and too few to be felt."""
LATE_SECONDS = 0.02
"""A beat that is later than this is a stall; less is a busy host."""
STALLS_MAX = 64
"""Stalls remembered; the oldest goes first."""


class Stalls:
    """Times in which a control thread of this process did not run. Sans-IO; not thread-safe.

    A stall begins at the last beat before it. One that is not over yet, or of which the thread has not
    told yet, counts too: who asks may be the first to run again.

    Args:
        now: the first beat.
    """

    def __init__(self, now: float) -> None:
        self._last = now
        self._stalls: deque[tuple[float, float]] = deque(maxlen=STALLS_MAX)

    def beat(self, now: float) -> None:
        """The control thread runs."""
        if self._is_late(now):
            self._stalls.append((self._last, now))
        self._last = now

    def resume(self, now: float) -> None:
        """Nobody has looked until now, and there was nothing to look at."""
        self._last = now

    def lost(self, began: float, ended: float) -> float:
        """Seconds between `began` and `ended` (now, at the latest) in which the process stood still."""
        found = sum(
            max(0.0, min(ended, until) - max(began, since)) for since, until in self._stalls
        )
        if self._is_late(ended):
            found += ended - max(began, self._last)
        return found

    def _is_late(self, now: float) -> bool:
        return now - self._last > TICK_SECONDS + LATE_SECONDS


class Watch:
    """A daemon thread that beats for `Stalls` while there is something to watch. Thread-safe.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._stalls = Stalls(clock())
        self._stopped = False
        self._sleeps = False
        self._wanted = threading.Event()

    def start(self, idle: Callable[[], bool]) -> None:
        """Begins.

        Args:
            idle: whether nothing is under way that may have to be excused.
        """
        threading.Thread(target=self._run, args=(idle,), name="store-watch", daemon=True).start()

    def lost(self, began: float, ended: float) -> float:
        """As `Stalls.lost`."""
        with self._lock:
            return self._stalls.lost(began, ended)

    def wake(self) -> None:
        """Something begins. Nearly free while the thread beats."""
        if self._sleeps:
            with self._lock:
                self._stalls.resume(self._clock())
            self._wanted.set()

    def stop(self) -> None:
        """Ends the thread, after its next beat."""
        self._stopped = True
        self._wanted.set()

    def _run(self, idle: Callable[[], bool]) -> None:
        while not self._stopped:
            time.sleep(TICK_SECONDS)  # cheaper than to wait for an event
            with self._lock:
                self._stalls.beat(self._clock())
            # Told first: what begins from here on wakes it.
            self._sleeps = True
            if idle():
                self._wanted.wait()
            self._sleeps = False
            self._wanted.clear()
