"""Watches a new peering.toml for as long as it is on trial, in the gateway that has read it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Collection

from federation.counters import counters
from federation.trial import ERRORS, Judge, Trial, TrialFile

log = logging.getLogger("moonmesh.gateway")

LOOK_SECONDS = 1.0


async def watch_trial(
    file: TrialFile,
    trial: Trial,
    ready: Callable[[], bool],
    alive: Callable[[], Collection[str]],
) -> None:
    """Returns when it is decided: the file is kept, or what was there before is, and this process ends.

    Args:
        ready: whether this gateway serves.
        alive: peers that are heard.
    """
    judge = Judge(trial, time.monotonic())
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        found = counters.snapshot()
        errors = sum(found.get(name, 0) for name in ERRORS)
        why = judge.look(time.monotonic(), ready(), alive() if ready() else (), errors)
        if why == "":
            await asyncio.to_thread(file.keep, trial)
            log.info("the new peering.toml is kept")
            return
        if why is not None:
            log.error("the new peering.toml is taken back: %s", why)
            if await asyncio.to_thread(file.take_back, trial, why):
                os.kill(
                    os.getpid(), signal.SIGTERM
                )  # `up` starts one that reads what was there before
            return
