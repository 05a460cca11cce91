"""Deadlines, and `asyncio.timeout` for every Python that we run on.

Not `asyncio.wait_for`: before Python 3.12 it can swallow a cancellation that comes in the very moment
in which its future is done, and what was to end goes on for ever.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Coroutine
from typing import Any

from federation.ending import ended

if sys.version_info >= (3, 11):
    from asyncio import timeout, timeout_at
else:
    from async_timeout import timeout, timeout_at

__all__ = ["Deadline", "timeout", "timeout_at", "unless"]


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Does `work`, but no longer than until `stop` is set; whether it was done."""
    task = asyncio.create_task(work)
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            return False
        task.result()
        return True
    finally:
        await ended((task, stopped))


class Deadline:
    """A moment, `seconds` after its making."""

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds to go; never below 0."""
        return max(0.0, self._at - time.monotonic())
