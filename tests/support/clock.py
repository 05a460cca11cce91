"""How late this process's threads are woken: what a deadline on a busy machine is measured against."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

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


SLACK = 0.010
"""What a call may take beyond its deadline, in seconds."""
STALL = 0.150
"""What one call in ten may: a shared machine stalls a thread now and then, and not the one beside it."""


class Punctuality:
    """Times calls that have a deadline, beside a control thread."""

    def __init__(self) -> None:
        self._noise = SchedulingDelay()
        self._seconds: list[float] = []

    def __enter__(self) -> Punctuality:
        self._noise.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._noise.__exit__()

    def call(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Calls, and keeps the time that it took."""
        began = time.monotonic()
        try:
            return function(*arguments, **named)
        finally:
            self._seconds.append(time.monotonic() - began)

    def check(self, deadline: float) -> None:
        """AssertionError unless the calls kept their deadline of so many seconds."""
        worst = self._noise.worst()
        late = [s for s in self._seconds if s > deadline + SLACK + worst]
        said = f"deadline {deadline} s, machine {worst:.4f} s late, calls took {self._seconds}"
        assert len(late) <= max(1, len(self._seconds) // 10), said
        assert max(self._seconds) < deadline + STALL + worst, said
