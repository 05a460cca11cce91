"""Deadlines, and `asyncio.timeout` for every Python that we run on.

Not `asyncio.wait_for`: before Python 3.12 it can swallow a cancellation that comes in the very moment
in which its future is done, and what was to end goes on for ever.
"""

from __future__ import annotations

import sys
import time

if sys.version_info >= (3, 11):
    from asyncio import timeout, timeout_at
else:
    from async_timeout import timeout, timeout_at

__all__ = ["Deadline", "timeout", "timeout_at"]


class Deadline:
    """A moment, `seconds` after its making."""

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds to go; never below 0."""
        return max(0.0, self._at - time.monotonic())
