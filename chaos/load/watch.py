"""How long this process's threads waited for a core: what a deadline on a busy machine is measured by."""

from __future__ import annotations

import threading
import time
from collections import deque

STEP_S = 0.002
NOTABLE_S = 0.0005
KEPT = 8192


class ControlThread:
    """A thread that does nothing but sleep, and sees how late it is woken.

    A call that crosses threads (the caller, a worker, the caller again) can be delayed more than once
    while it lasts, so what counts is the sum of the delays within its time, not the longest.
    """

    def __init__(self) -> None:
        self.worst = 0.0
        """The longest delay so far, in seconds."""
        self._late: deque[tuple[float, float]] = deque(maxlen=KEPT)  # (due, woken)
        self._due = time.monotonic() + STEP_S
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.is_set():
            time.sleep(max(0.0, self._due - time.monotonic()))
            now = time.monotonic()
            if now - self._due > NOTABLE_S:
                self._late.append((self._due, now))
                self.worst = max(self.worst, now - self._due)
            self._due = now + STEP_S

    def delay(self, begin: float, end: float) -> float:
        """Seconds within [begin, end] (monotonic) in which it should have run and did not."""
        spans = [*list(self._late), (self._due, time.monotonic())]  # the last: what is under way
        return sum(max(0.0, min(woken, end) - max(due, begin)) for due, woken in spans)

    def close(self) -> None:
        """Ends the thread."""
        self._end.set()
        self._thread.join(1.0)
