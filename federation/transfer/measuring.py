"""Looks how the group's own Mooncake is, while less is read for peers because of it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from federation.config import Limits
from federation.counters import counters
from federation.limits.shedding import SAMPLES_FEW, TICK_SECONDS, Shedding, SheddingLimits
from local_group.process_errors import AdminError

PROBE_KEY = "moonmesh/probe"
"""A key that nobody writes: to look for it costs the master what any look-up does, and takes no lease."""
PROBES_MAX = 2 * SAMPLES_FEW
"""Of these questions that may wait for an answer: a master that gives none is asked no more."""
LEARN_TICKS = 20
"""Ticks from the start in which it is looked for too, so that the usual is known before the first peer."""


class Asked(Protocol):
    """The part of the master's admin client that is used."""

    async def query(self, keys: Sequence[str]) -> Mapping[str, int | None]:
        """Sizes of the keys that exist."""


def shedding_limits(limits: Limits) -> SheddingLimits:
    """The numbers, as they are configured."""
    return SheddingLimits(
        windows_max=float(limits.shed_windows),
        windows_min=limits.shed_windows_min_percent / 100,
        times=limits.shed_slow_percent / 100,
        rise_s=limits.shed_slow_ms / 1000,
    )


async def measure(shedding: Shedding, master: Asked) -> None:
    """Has it decide every `TICK_SECONDS`; never returns.

    The master is asked only while something is cut, and at first: at rest this costs four wake-ups a second.
    Questions are spread over the time, and none waits for the one before: those that were asked as soon as it
    had answered would all meet it at a moment at which it answers.
    """
    ticks = 0
    asking: set[asyncio.Task[None]] = set()
    try:
        while True:
            steps = 1 if shedding.at_rest else SAMPLES_FEW
            late = 0.0
            for _ in range(steps):
                due = time.monotonic() + TICK_SECONDS / steps
                await asyncio.sleep(TICK_SECONDS / steps)
                late = max(late, time.monotonic() - due)
                if (steps > 1 or ticks < LEARN_TICKS) and len(asking) < PROBES_MAX:
                    probe = asyncio.create_task(_ask(shedding, master))
                    asking.add(probe)
                    probe.add_done_callback(asking.discard)
            cuts = shedding.cuts
            shedding.tick(time.monotonic(), late)
            if shedding.cuts != cuts:
                counters.add("moonmesh_serve_cuts_total")
            ticks += 1
    finally:
        for probe in asking:
            probe.cancel()


async def _ask(shedding: Shedding, master: Asked) -> None:
    began = time.monotonic()
    with contextlib.suppress(AdminError):  # that it does not answer, it took its time for
        await master.query([PROBE_KEY])
    shedding.took("master", 1, time.monotonic() - began)
