"""Many calls with one deadline, timed on a shared machine; `timing` has one block with one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from tests.support.timing import SchedulingDelay

T = TypeVar("T")

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
        self._noise.__exit__(None, None, None)

    def call(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Calls, and keeps the time that it took."""
        began = time.monotonic()
        try:
            return function(*arguments, **named)
        finally:
            self._seconds.append(time.monotonic() - began)

    def check(self, deadline: float) -> None:
        """AssertionError unless the calls kept their deadline of so many seconds."""
        worst = self._noise.worst
        late = [s for s in self._seconds if s > deadline + SLACK + worst]
        said = f"deadline {deadline} s, machine {worst:.4f} s late, calls took {self._seconds}"
        assert len(late) <= max(1, len(self._seconds) // 10), said
        assert max(self._seconds) < deadline + STALL + worst, said
