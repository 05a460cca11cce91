"""Waiting for a condition instead of sleeping."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 2.0 if "PYTEST_XDIST_WORKER" in os.environ else 1.0
"""Times the given timeout: a machine that runs other tests beside is later, and no test judges how long
something takes by waiting for it. What judges that measures it, and runs alone."""


def wait_for(condition: Callable[[], T], timeout: float, what: str, every: float = 0.02) -> T:
    """The first true value of `condition`, or an AssertionError that names `what` after `timeout` s."""
    deadline = time.monotonic() + PATIENCE * timeout
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {PATIENCE * timeout:g} s for {what}"
        time.sleep(every)


async def wait_for_async(
    condition: Callable[[], T], timeout: float, what: str, every: float = 0.005
) -> T:
    """`wait_for`, for a condition that the running loop has to bring about."""
    deadline = time.monotonic() + PATIENCE * timeout
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {PATIENCE * timeout:g} s for {what}"
        await asyncio.sleep(every)
