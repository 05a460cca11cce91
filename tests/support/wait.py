"""Waiting for a condition instead of sleeping."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(condition: Callable[[], T], timeout: float, what: str, every: float = 0.02) -> T:
    """The first true value of `condition`, or an AssertionError that names `what` after `timeout` s."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {timeout} s for {what}"
        time.sleep(every)


async def wait_for_async(
    condition: Callable[[], T], timeout: float, what: str, every: float = 0.005
) -> T:
    """`wait_for`, for a condition that the running loop has to bring about."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {timeout} s for {what}"
        await asyncio.sleep(every)
