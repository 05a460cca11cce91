"""What a topology has beside its groups: disks, clocks and cores of their own, a collector."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

from chaos.faults import clocks, disks
from chaos.faults.children import Helper
from chaos.network.base import COLLECTOR, Network
from chaos.section import Topology

DATA = "d"
"""A group's `data_dir`, in its folder; short, for the sockets' sake."""
FAILING = ("journal", "coordination")
"""Of the data, what is on a disk that can be told to fail."""


class Site:
    """Between `up` and `down`; what the topology does not ask for is not made.

    Args:
        folder: of the topology.
    """

    def __init__(self, topology: Topology, folder: Path, network: Network) -> None:
        self._topology = topology
        self._folder = folder
        self._network = network
        self.faulty: dict[str, Helper] = {}
        """Group to the process that its disk is shown by."""
        self.collectors: list[Helper] = []
        """One a group, where it listens: in namespaces each has a loopback of its own."""
        self._cores: set[int] = set()
        """That this process had before."""

    async def up(self) -> None:
        """Makes disks and clocks, once the folders of the groups are there.

        Raises:
            ChaosError: one cannot be made.
        """
        if self._topology.runner_cores:
            self._cores = os.sched_getaffinity(0)
            os.sched_setaffinity(0, self._topology.runner_cores)
        for name in self._topology.groups:
            if self._topology.disk == "own":
                disks.mount(self.data(name))
            elif self._topology.disk == "faulty":
                self.faulty[name] = await self._faulty(name)
            if self._topology.clock:
                await asyncio.to_thread(clocks.make, self._folder)
                clocks.put(self.clock_file(name), 0)

    async def _faulty(self, name: str) -> Helper:
        source, shown = self._folder / name / "kept", self._folder / name / "shown"
        for place in (source, shown, self.data(name)):
            place.mkdir(mode=0o700)
        helper = await Helper.start(
            "chaos.faults.passthrough",
            [str(source), str(shown)],
            f"the disk of {name}",
            self._folder / f"disk-{name}.log",
        )
        for part in FAILING:
            (source / part).mkdir(mode=0o700)
            (self.data(name) / part).symlink_to(shown / part)
        return helper

    async def listen(self) -> None:
        """Starts the collectors, once the network is up.

        Raises:
            ChaosError: one does not start.
        """
        if not self._topology.collector:
            return
        self.collectors = list(
            await asyncio.gather(
                *(
                    Helper.start(
                        "chaos.faults.collector",
                        [self._collector(name)],
                        "the collector",
                        self._folder / f"collector-{name}.log",
                        inside=self._network.inside(name),
                    )
                    for name in self._topology.groups
                )
            )
        )

    async def down(self) -> None:
        """Takes it away, after what ran on it has ended. What is on the disks stays, as plain files."""
        await asyncio.gather(*(helper.stop() for helper in self.collectors))
        self.collectors = []
        if self._topology.disk == "own":
            for name in self._topology.groups:
                with contextlib.suppress(OSError, shutil.Error):
                    await asyncio.to_thread(disks.keep, self.data(name))
        for helper in self.faulty.values():
            await helper.stop()
        self.faulty = {}
        disks.unmount_below(self._folder)
        if self._cores:
            os.sched_setaffinity(0, self._cores)

    def data(self, name: str) -> Path:
        """The `data_dir` of a group."""
        return self._folder / name / DATA

    def clock_file(self, name: str) -> Path:
        """What a group's clock is read from."""
        return self._folder / f"clock-{name}"

    def inside(self, name: str) -> list[str]:
        """What to put before a group's commands: where it runs, and what it believes."""
        believes: dict[str, str] = {}
        if self._topology.clock:
            believes |= clocks.environment(self._folder / clocks.LIBRARY, self.clock_file(name))
        if self._topology.collector:
            believes |= {
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{self._collector(name)}",
                "OTEL_EXPORTER_OTLP_INSECURE": "true",
            }
        command = ["env", *(f"{key}={value}" for key, value in believes.items())]
        return [*self.beside(name), *(command if believes else [])]

    def beside(self, name: str) -> list[str]:
        """What to put before the command of an engine of a group."""
        cores = self._topology.cores.get(name)
        pinned = ["taskset", "-c", ",".join(map(str, cores))] if cores else []
        return [*self._network.inside(name), *pinned]

    def pin(self, name: str | None, pids: Sequence[int]) -> None:
        """Keeps processes on the cores of a group, if it has any of its own."""
        cores = self._topology.cores.get(name or "")
        for pid in pids if cores else ():
            with contextlib.suppress(psutil.Error):
                psutil.Process(pid).cpu_affinity(list(cores or ()))

    @property
    def pids(self) -> list[int]:
        """Of the processes that it consists of."""
        helpers: Iterable[Helper] = (*self.collectors, *self.faulty.values())
        return [helper.pid for helper in helpers]

    def _collector(self, name: str) -> str:
        return f"127.0.0.1:{self._network.places.base(name) + COLLECTOR}"
