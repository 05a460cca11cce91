"""Tasks that run for as long as a process serves."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Coroutine
from typing import Any

from federation.ending import ended

log = logging.getLogger("moonmesh.gateway")


class Background:
    """Tasks that never end by themselves: one that does by an error is a defect, and ends the process."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs it until `end`."""
        task = asyncio.create_task(work)
        task.add_done_callback(_die_with)
        self._tasks.append(task)

    async def end(self) -> None:
        """Ends all of them."""
        await ended(self._tasks)


def _die_with(task: asyncio.Task[None]) -> None:
    """Says so, and lets the supervisor start the process anew."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("a part of the gateway failed", exc_info=error)
        os.kill(os.getpid(), signal.SIGTERM)
