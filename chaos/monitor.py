"""Watches what a topology uses while a time line runs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import psutil

from chaos.invariants.bounds import held
from chaos.record import Usage
from chaos.story import GONE
from chaos.topology import Stage

USAGE_S = 0.25
STATUS_S = 1.0
STATUS_OFTEN_S = 0.3


class Process(NamedTuple):
    """One process, whatever becomes of its pid."""

    pid: int
    created: float
    nice: int


class Monitor:
    """Looks at every gateway between `with` and its end.

    Args:
        usage: filled in, per group.
        often: whether short peaks of guards matter; asking costs the gateways CPU.
    """

    def __init__(self, stage: Stage, usage: dict[str, Usage], *, often: bool) -> None:
        self._stage = stage
        self._status_s = STATUS_OFTEN_S if often else STATUS_S
        self._usage = usage
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Monitor:
        for name in self._stage.topology.groups:
            self._usage[name] = Usage()
        self._tasks = [
            asyncio.create_task(self._look_often()),
            asyncio.create_task(self._ask_often()),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        for ended in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended  # what was not looked at must not count as well

    async def _look_often(self) -> None:
        while True:
            for name, usage in self._usage.items():
                self._look(name, usage)
            await asyncio.sleep(USAGE_S)

    def _look(self, name: str, usage: Usage) -> None:
        rss = descriptors = threads = 0
        with contextlib.suppress(psutil.Error):
            for process in self._stage.gateway_processes(name):
                rss += process.memory_info().rss
                descriptors += process.num_fds()
                threads += process.num_threads()
            usage.seen += rss > 0
        usage.rss = max(usage.rss, rss)
        usage.descriptors = max(usage.descriptors, descriptors)
        usage.threads = max(usage.threads, threads)

    async def _ask_often(self) -> None:
        while True:
            at = time.monotonic()
            for name, status in (await self._stage.statuses()).items():
                usage = self._usage[name]
                for peer, state in peer_states(status):
                    usage.peers.setdefault(peer, []).append((at, state))
                if not status:
                    for states in usage.peers.values():
                        states.append((at, GONE))
                for most, seen in (
                    (usage.guards, guard_numbers(status)),
                    (usage.held, held(status)),
                ):
                    for number, value in seen:
                        most[number] = max(most.get(number, value), value)
            await asyncio.sleep(self._status_s)


def peer_states(status: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Each peer, and how it is seen: `alive` with its breaker's state, else its own."""
    for peer in status.get("peers", []):
        state = str(peer.get("state", ""))
        yield str(peer["name"]), str(peer.get("breaker", "")) if state == "alive" else state


def guard_numbers(status: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """`peer.direction.name` and value, of every number that a gateway's guards show."""
    for peer in status.get("peers", []):
        for direction, shown in peer.get("guards", {}).items():
            if shown is None:
                continue  # a serving process that has told nothing yet
            calls = shown.get("open", {})
            counts = {f"open_{kind}": n for kind, n in calls.items()} | {
                "open": sum(calls.values())
            }
            for name, value in (shown | counts).items():
                if isinstance(value, (int, float)):
                    yield f"{peer['name']}.{direction}.{name}", value


class CpuMeter:
    """CPU of everything but the engines, process by process, between two looks."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._at, self._used = time.monotonic(), self._look()

    def _look(self) -> dict[Process, float]:
        used = {}
        for process in self._stage.processes():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                key = Process(process.pid, process.create_time(), process.nice())
                used[key] = times.user + times.system
        return used

    def cores(self) -> dict[Process, float]:
        """Cores in use by each process since the last look, or since the start.

        A process that has ended since is not there.
        """
        at, used = time.monotonic(), self._look()
        seconds = max(at - self._at, 1e-3)
        cores = {key: (now - self._used.get(key, 0.0)) / seconds for key, now in used.items()}
        self._at, self._used = at, used
        return cores
