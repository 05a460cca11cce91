"""Deadlines on a shared machine: how late a thread that wants to run is let run."""

from __future__ import annotations

import threading
import time
from types import TracebackType


class SchedulingDelay:
    """While it is open, a thread asks to be woken every millisecond; `worst` is the longest it was
    late, in seconds. A deadline that was missed by less than that was missed by the machine."""

    def __init__(self) -> None:
        self.worst = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while True:
            asked = time.monotonic() + 0.001
            stopped = self._stop.wait(0.001)
            self.worst = max(self.worst, time.monotonic() - asked)
            if stopped:
                return

    def __enter__(self) -> SchedulingDelay:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()


class Timed:
    """Measures a block and asserts that it kept its deadline.

    `check(deadline)` allows 10 ms, plus twice the scheduling delay seen meanwhile: once for the
    thread that works, once for the one that waits.
    """

    def __init__(self) -> None:
        self._delay = SchedulingDelay()
        self.elapsed = 0.0

    def __enter__(self) -> Timed:
        self._delay.__enter__()
        self._began = time.monotonic()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.elapsed = time.monotonic() - self._began
        self._delay.__exit__(kind, error, trace)

    def check(self, deadline: float, what: str) -> None:
        """Fails if the block took longer than `deadline` seconds and the allowance."""
        allowed = deadline + 0.010 + 2 * self._delay.worst
        assert self.elapsed <= allowed, (
            f"{what} took {self.elapsed * 1e3:.1f} ms; the deadline was {deadline * 1e3:.0f} ms, "
            f"and threads were up to {self._delay.worst * 1e3:.1f} ms late"
        )
