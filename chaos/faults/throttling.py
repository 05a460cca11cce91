"""A process that may run for a part of the time, as a CPU quota has it, without a cgroup."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import TracebackType


class Throttled:
    """Stops a process and lets it run in turn, between `with` and its end.

    By a thread of its own: the runner's loop has other things to do, and slices are short.

    Args:
        stopped_s, runs_s: how long each takes.
    """

    def __init__(self, pid: int, stopped_s: float, runs_s: float) -> None:
        self.stops = 0
        """Times that it was stopped."""
        self._pid = pid
        self._stopped_s = stopped_s
        self._runs_s = runs_s
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="throttle", daemon=True)

    def __enter__(self) -> Throttled:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended: there is nothing to hold back
            try:
                while not self._ends.wait(self._runs_s):
                    os.kill(self._pid, signal.SIGSTOP)
                    self.stops += 1
                    self._ends.wait(self._stopped_s)
                    os.kill(self._pid, signal.SIGCONT)
            finally:
                os.kill(self._pid, signal.SIGCONT)
