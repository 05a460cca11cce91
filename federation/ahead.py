"""Questions of an engine that looks ahead, asked in the background, with a handle for each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from federation.counters import counters

AHEAD_THREADS: Final = 2
"""Questions that are asked at once, of one store: the gateway pulls for all of them anyway."""
AHEAD_MAX: Final = 64
"""Questions that are asked or wait; one more is answered at once, by what is here."""


class Ahead:
    """Thread-safe. Starts no thread before the first question.

    Args:
        ask: what there is of a chain after so many seconds at most; 0: at once.
    """

    def __init__(self, ask: Callable[[Sequence[str], float], list[int]]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._open = 0

    def start(self, keys: Sequence[str], seconds: float) -> Future[list[int]]:
        """Asks in the background. The handle is the standard library's: `result(timeout)` waits, `done()`
        looks, `add_done_callback` tells."""
        with self._lock:
            asked = self._submitted(keys, seconds) if self._open < AHEAD_MAX else None
        if asked is not None:
            # Not under the lock: of a question that is answered already it is called at once, here.
            asked.add_done_callback(self._ended)
            return asked
        counters.add("moonmesh_ahead_shed_total")
        answered: Future[list[int]] = Future()
        answered.set_result(self._ask(keys, 0.0))
        return answered

    def close(self) -> None:
        """Ends the questions that wait, by cancelling them; those under way end in their time."""
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)

    def _submitted(self, keys: Sequence[str], seconds: float) -> Future[list[int]]:
        self._open += 1
        if self._threads is None:
            self._threads = ThreadPoolExecutor(AHEAD_THREADS, "moonmesh-ahead")
        return self._threads.submit(self._ask, list(keys), seconds)

    def _ended(self, _: Future[list[int]]) -> None:
        with self._lock:
            self._open -= 1
