"""Looks at all of Moonmesh's processes of a topology, from when it is up until it is taken down."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import NamedTuple

import psutil

from chaos.soak.trend import Trend, trend
from chaos.topology import Stage

SAMPLES = 1800
"""Of a process that lives as long as the soak."""
INTERVAL_S = (0.25, 5.0)
"""Between two looks, at the least and at the most."""
LIVED = 0.5
"""Of a soak, what a process must have lived for: of one that was killed soon, nothing can be said."""
ROLES = {
    "federation.gateway_process": "gateway",
    "federation.serving": "serving process",
    "federation.pulling_keeper": "pulling process",
}
"""Module that a process of ours runs, to what it is."""
FIGURES = ("rss", "descriptors", "threads")


class Life(NamedTuple):
    """One process, whatever becomes of its pid."""

    pid: int
    created: float


class Series:
    """What was seen of one process, in the order of `FIGURES`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.times: list[float] = []
        self.values: list[tuple[int, int, int]] = []

    def seconds(self) -> float:
        """From the first look to the last."""
        return self.times[-1] - self.times[0] if self.times else 0.0


class Watch:
    """What every gateway's and engine's process uses, over a whole soak.

    Args:
        duration: of the soak, in seconds.
    """

    def __init__(self, duration: float) -> None:
        self._least = LIVED * duration
        self._interval = min(INTERVAL_S[1], max(INTERVAL_S[0], duration / SAMPLES))
        self._end = duration
        self._series: dict[Life, Series] = {}
        self.short = 0
        """Processes of which nothing is said, since they lived too short."""

    async def watch(self, stage: Stage) -> None:
        """Looks until it is cancelled."""
        began = time.monotonic()
        while True:
            now = time.monotonic()
            if now - began <= self._end + self._least:  # a soak that does not end fills no memory
                self.look(stage, now)
            await asyncio.sleep(self._interval)

    def look(self, stage: Stage, now: float) -> None:
        """Once, at everything that runs now; forgets what has ended too early."""
        seen = set()
        for name, process in _ours(stage):
            with contextlib.suppress(psutil.Error), process.oneshot():
                life = Life(process.pid, process.create_time())
                values = (
                    process.memory_info().rss,
                    process.num_fds(),
                    process.num_threads(),
                )
                seen.add(life)
                series = self._series.setdefault(life, Series(name))
                series.times.append(now)
                series.values.append(values)
        for life in [k for k in self._series if k not in seen]:
            if self._series[life].seconds() < self._least:
                del self._series[life]
                self.short += 1

    def trends(self) -> list[Trend]:
        """Of each process that lived long enough, in the order of their names."""
        found = []
        for series in sorted(self._series.values(), key=lambda s: (s.name, s.times[0])):
            if series.seconds() < self._least:
                continue
            for place, figure in enumerate(FIGURES):
                values = [float(v[place]) for v in series.values]
                one = trend(series.name, figure, series.times, values)
                if one is not None:
                    found.append(one)
        return found


def _ours(stage: Stage) -> Iterator[tuple[str, psutil.Process]]:
    for group in stage.topology.groups:
        for process in stage.gateway_processes(group):
            with contextlib.suppress(psutil.Error):
                modules = [ROLES[word] for word in process.cmdline() if word in ROLES]
                yield f"{group}: {modules[0] if modules else process.name()}", process
    for group, engine in stage.everyone().items():
        with contextlib.suppress(psutil.Error):
            yield (
                f"{group}: engine" if group in stage.engines else group,
                psutil.Process(engine.pid),
            )
