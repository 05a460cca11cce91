"""How late this process's threads are woken: what a deadline on a busy machine is measured against."""

from __future__ import annotations

import threading
import time

STEP = 0.002


class SchedulingDelay:
    """A control thread that does nothing but sleep, and sees how late it wakes up.

    A call cannot return earlier than its thread is scheduled; what this thread was late in the same
    time is the machine's doing, not the call's.
    """

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._worst = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> SchedulingDelay:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def worst(self) -> float:
        """The longest delay so far, in seconds."""
        return self._worst

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            time.sleep(STEP)
            self._worst = max(self._worst, time.monotonic() - began - STEP)
