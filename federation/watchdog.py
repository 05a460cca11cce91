"""Says what holds up an event loop: each time that it did not look for news for `STALL_SECONDS`, and where.

The loop's selector notes when it returns and when it is entered again: what lies between is one stall, if
it is long. A thread looks now and then and, in the midst of one, takes down the stack of the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import selectors
import sys
import threading
import time
from collections import deque
from pathlib import Path
from types import FrameType
from typing import Any, Final

from federation.counters import counters

log = logging.getLogger("moonmesh.watchdog")

STALLS: Final = "moonmesh_loop_stalls_total"
STALL_SECONDS: Final = 0.05
"""What else waits for a loop is late by so much."""
LOOK_SECONDS: Final = 0.05
"""Between two looks of the thread: of a stall twice as long the stack is known for sure."""
KEPT: Final = 8
"""Latest stalls that are kept for `status`."""
LOG_SECONDS: Final = 10.0
"""Between two lines in the log, at least; each says how many there were."""
FRAMES: Final = 8
"""Innermost ones of a stack that are kept ..."""
STACK_CHARS: Final = 280
"""... and characters."""
UNSEEN: Final = "not seen: it was over, or the interpreter was held"
ROOT: Final = Path(__file__).resolve().parent.parent


class StallBook:
    """What is known of stalls; sans-IO. Not thread-safe: it is the loop's.

    Args:
        process: its name in the counter.
    """

    def __init__(self, process: str) -> None:
        self._counter = f'{STALLS}{{process="{process}"}}'
        self._latest: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._said_at = float("-inf")
        self._unsaid = 0
        self.count = 0
        """Stalls ever."""

    def note(self, seconds: float, cpu: float, stack: str, now: float, wall: float) -> str:
        """One is over; the line for the log, "" where there was one a short while ago.

        Args:
            cpu: seconds of it in which the loop's thread was on a CPU: few, and it was not its own doing.
            wall: seconds since 1970.
        """
        self.count += 1
        counters.add(self._counter)
        self._latest.append(
            {
                "at": round(wall, 3),
                "ms": round(1000 * seconds, 1),
                "cpu_ms": round(1000 * cpu, 1),
                "stack": stack,
            }
        )
        self._unsaid += 1
        if now - self._said_at < LOG_SECONDS:
            return ""
        many, self._unsaid, self._said_at = self._unsaid, 0, now
        return (
            f"the event loop stood still for {1000 * seconds:.0f} ms ({1000 * cpu:.0f} on a CPU; "
            f"{many} since the last such line): {stack}"
        )

    def status(self) -> dict[str, Any]:
        """For `moonmesh status`, in JSON's types."""
        return {"count": self.count, "latest": list(self._latest)}


class _Selector(selectors.DefaultSelector):
    """A selector that knows since when its loop has not been waiting."""

    def __init__(self, watchdog: Watchdog) -> None:
        super().__init__()
        self._watchdog = watchdog

    def select(self, timeout: float | None = None) -> Any:
        self._watchdog.waits()
        found = super().select(timeout)
        self._watchdog.works()
        return found


class Watchdog:
    """Watches the one loop of this process that `install` lets it make.

    Args:
        process: its name in the counter and in the log.
    """

    def __init__(self, process: str) -> None:
        self.book = StallBook(process)
        self._busy_since = 0.0  # 0: it waits
        self._cpu_since = 0.0
        self._seen: tuple[float, str] = (0.0, "")
        self._loop_thread = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def install(self) -> Watchdog:
        """The next loop that `asyncio.run` makes is watched; to be called before it."""
        watchdog = self

        class Policy(asyncio.DefaultEventLoopPolicy):
            def new_event_loop(self) -> asyncio.AbstractEventLoop:
                return asyncio.SelectorEventLoop(_Selector(watchdog))

        asyncio.set_event_loop_policy(Policy())
        self._thread.start()
        return self

    def stop(self) -> None:
        """Looks no more."""
        self._ends.set()
        self._thread.join()
        asyncio.set_event_loop_policy(None)

    # In the loop's thread

    def works(self) -> None:
        """It has found something to do, or its time has come."""
        self._loop_thread = threading.get_ident()
        self._cpu_since = time.thread_time()
        self._busy_since = time.monotonic()

    def waits(self) -> None:
        """It has done all that there was."""
        since, self._busy_since = self._busy_since, 0.0
        if not since or (seconds := time.monotonic() - since) < STALL_SECONDS:
            return
        at, stack = self._seen
        line = self.book.note(
            seconds,
            time.thread_time() - self._cpu_since,
            stack if at == since else UNSEEN,
            time.monotonic(),
            time.time(),
        )
        if line:
            log.warning("%s", line)

    # In the thread of its own

    def _watch(self) -> None:
        while not self._ends.is_set():
            time.sleep(LOOK_SECONDS)
            since = self._busy_since
            late = since and time.monotonic() - since >= STALL_SECONDS
            if late and self._seen[0] != since:
                frame = sys._current_frames().get(self._loop_thread)
                if frame is not None and self._busy_since == since:
                    self._seen = (since, stack_of(frame))


def stack_of(frame: FrameType | None) -> str:
    """The innermost frames of a stack in one line, the innermost first."""
    found: list[str] = []
    while frame is not None and len(found) < FRAMES:
        path = Path(frame.f_code.co_filename)
        name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
        found.append(f"{name}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    text = " < ".join(found)[:STACK_CHARS]
    return text if text.isprintable() else "in a place whose name cannot be shown"
