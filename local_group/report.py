"""How a group is, checked live: what `moonmesh status` shows."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import psutil

from local_group.admin import AdminClient
from local_group.config import GroupConfig, GroupPlace
from local_group.pool import own_segments
from local_group.process_errors import AdminError
from local_group.state import ChildState, GroupLock, GroupState, ProcessId, leftovers, read_state

_ADMIN_TIMEOUT_S = 1.0


@dataclass(frozen=True)
class ChildReport:
    """A child as `status` shows it."""

    name: str
    phase: str
    pid: int | None = None
    uptime_s: float | None = None
    restarts: int = 0
    rss_bytes: int | None = None
    last_exit: str = ""
    problem: str = ""
    """Why it is not ready, where it has said so itself."""


@dataclass(frozen=True)
class GroupReport:
    """A group as `status` shows it."""

    group: str
    phase: str
    """`stopped`, `starting`, `ready`, `degraded` (a child is not ready), `stopping`, or `unknown`: a
    supervisor runs that could not write what it does."""
    supervisor_pid: int | None = None
    children: Sequence[ChildReport] = field(default_factory=tuple)
    problems: Sequence[str] = field(default_factory=tuple)

    @property
    def ready(self) -> bool:
        """Does everything run and answer?"""
        return self.phase == "ready" and not self.problems


async def group_report(config: GroupPlace) -> GroupReport:
    """What runs of a group now, checked live; Mooncake is asked where all of its config is known."""
    state = read_state(config.state_file)
    if state is None or not state.supervisor.alive():
        holder = GroupLock(config.lock_file).holder()
        left = leftovers(config.data_dir, state)
        if holder is not None:
            return _without_state(config, holder or None, left)
        problems = [f"{name} (pid {process.pid}) was left behind" for name, process in left.items()]
        return GroupReport(config.name, "stopped", problems=problems)
    children = [_child_report(name, child) for name, child in state.children.items()]
    problems = [_problem(child) for child in children if child.phase != "ready"]
    if _is_frozen(state.supervisor.pid):
        problems.append("the supervisor is frozen: what dies is not started again")
    if any(child.phase == "dead" for child in children):
        problems += _newer(children, leftovers(config.data_dir, None))
    if state.phase == "ready" and isinstance(config, GroupConfig):
        problems += await mooncake_problems(config, state)
    phase = "degraded" if state.phase == "ready" and problems else state.phase
    return GroupReport(config.name, phase, state.supervisor.pid, children, problems)


async def mooncake_problems(config: GroupConfig, state: GroupState) -> list[str]:
    """What is wrong with the running Mooncake; empty when it serves with all stores of this place."""
    stores = [
        child.process.pid
        for name, child in state.children.items()
        if name.startswith("store-") and child.process is not None and child.process.alive()
    ]
    async with AdminClient(config.admin_url, timeout=_ADMIN_TIMEOUT_S) as admin:
        try:
            health = await admin.health()
            if not health.service_ready:
                return [f"the master does not serve ({health.ha_state})"]
            segments = await admin.segments()
        except AdminError as error:
            elsewhere = config.master.address is not None
            return [f"{'the master runs elsewhere: ' if elsewhere else ''}{error}"]
    good = 0
    for pid in stores:
        good += bool(await own_segments(config, segments, pid))
    if good < config.stores.count:
        return [f"{good} of {config.stores.count} stores are in the pool"]
    return []


def _without_state(
    config: GroupPlace, pid: int | None, running: Mapping[str, ProcessId]
) -> GroupReport:
    """A supervisor runs and has written no state: it has just begun, or cannot."""
    if not running:
        return GroupReport(config.name, "starting", pid, problems=["it has just begun"])
    names = ", ".join(f"{name} (pid {process.pid})" for name, process in running.items())
    problem = f"{config.state_file} cannot be read, so only this is known: {names} run"
    return GroupReport(config.name, "unknown", pid, problems=[problem, _FULL])


_FULL = "the supervisor cannot write its state: is the disk full?"


def _newer(children: Sequence[ChildReport], running: Mapping[str, ProcessId]) -> list[str]:
    """Problems, if children that the state calls dead run: then it is old."""
    dead = {child.name for child in children if child.phase == "dead"}
    found = [f"{name} runs, as pid {each.pid}" for name, each in running.items() if name in dead]
    return [*found, _FULL] if found else []


def _problem(child: ChildReport) -> str:
    text = f"{child.name} is {child.phase}"
    return f"{text}: {child.problem}" if child.problem else text


def _child_report(name: str, child: ChildState) -> ChildReport:
    process = child.process
    if process is None or not process.alive():
        ended = child.phase if child.phase in ("waiting", "restarting", "stopped") else "dead"
        return ChildReport(
            name, ended, restarts=child.restarts, last_exit=child.last_exit, problem=child.problem
        )
    phase: str = child.phase
    rss = None
    with contextlib.suppress(psutil.Error):
        rss = psutil.Process(process.pid).memory_info().rss
    if _is_frozen(process.pid):
        phase = "frozen"
    uptime = max(0.0, time.time() - child.started_at)
    return ChildReport(
        name, phase, process.pid, uptime, child.restarts, rss, child.last_exit, child.problem
    )


def _is_frozen(pid: int) -> bool:
    """By SIGSTOP, or a debugger."""
    with contextlib.suppress(psutil.Error):
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    return False
