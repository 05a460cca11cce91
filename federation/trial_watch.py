"""Watches a new peering.toml for as long as it is on trial, in the gateway that has read it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Collection
from typing import Any

from federation.counters import counters
from federation.trial import ERRORS, Judge, TrialFile

log = logging.getLogger("moonmesh.gateway")

LOOK_SECONDS = 1.0


class TrialWatch:
    """The trial that this gateway is part of, if it is.

    Args:
        file: after its `at_start`.
    """

    def __init__(self, file: TrialFile) -> None:
        self._file = file
        self.ready = False
        """Whether this gateway serves."""

    def status(self) -> dict[str, Any] | None:
        """How the latest trial went or goes, for `moonmesh status`; None if there never was one."""
        return None if self._file.latest is None else self._file.latest.status()

    async def run(self, alive: Callable[[], Collection[str]]) -> None:
        """Returns when it is decided: the file is kept, or what was there before is, and this process ends.

        Args:
            alive: peers that are heard, and that answer.
        """
        trial = self._file.latest
        if trial is None or trial.state != "trying":
            return
        judge = Judge(trial, time.monotonic())
        why = None
        while why is None:
            await asyncio.sleep(LOOK_SECONDS)
            found = counters.snapshot()
            errors = sum(found.get(name, 0) for name in ERRORS)
            heard = alive() if self.ready else ()
            why = judge.look(time.monotonic(), self.ready, heard, errors)
        if not why:
            await asyncio.to_thread(self._file.keep, trial)
            log.info("the new peering.toml is kept")
            return
        log.error("the new peering.toml is taken back: %s", why)
        if await asyncio.to_thread(self._file.take_back, trial, why):
            os.kill(os.getpid(), signal.SIGTERM)  # `up` starts one that reads what was there before
