"""How the kernel shares cores between Mooncake and what runs beside it.

Linux's autogroups (`kernel.sched_autogroup_enabled`) give every session an equal share of a core, whatever
its processes do, and to a session that mostly sleeps a share that is close to nothing. A store sleeps
until it is read from, and its readers spin while they wait; so with autogroups on, a busy machine kept
stores waiting for a core for up to 400 ms (decision 006). Processes in a CPU cgroup of their own, such as
those of a systemd service, are in no autogroup.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

ENABLED = Path("/proc/sys/kernel/sched_autogroup_enabled")
OWN_AUTOGROUP = Path("/proc/self/autogroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")
PROCESSES = "cgroup.procs"
CONTROLLERS = "cgroup.controllers"
HANDED_DOWN = "cgroup.subtree_control"
CGROUP = "moonmesh"
NOT_SHARED = "no CPU cgroup can be made here: latencies will be worse (sched_autogroup)"
FIRST_NICE = -10
"""Ten times the share of other sessions. What is started has little to do, and others wait for it."""


def in_autogroup() -> bool:
    """Whether this process's share of the cores is that of its session."""
    try:
        on = ENABLED.read_text().strip() == "1"
        lines = OWN_CGROUPS.read_text().splitlines()
    except OSError:
        return False
    return on and _cpu_cgroup(lines) == "/"


def _cpu_cgroup(lines: list[str]) -> str:
    """The CPU cgroup of the `hierarchy:controllers:path` lines of /proc/PID/cgroup."""
    found = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    for _, controllers, path in found:
        if "cpu" in controllers.split(","):
            return path
    return next((path for number, _, path in found if number == "0"), "/")


def _shares_cores(parent: Path) -> bool:
    """Whether cgroups in `parent` have a share of the cores of their own.

    In version 2 only those do whose parent has handed the cpu controller down: to the scheduler, processes
    in any other are still in the root's task group, and so in their autogroup.
    """
    if not (parent / CONTROLLERS).exists():
        return True
    try:
        return "cpu" in (parent / HANDED_DOWN).read_text().split()
    except OSError:
        return False


def come_first() -> bool:
    """Gives this process's session a larger share of the cores; False where that is not permitted."""
    if not in_autogroup():
        return True
    try:
        OWN_AUTOGROUP.write_text(str(FIRST_NICE))
    except OSError:
        return False
    return True


@contextlib.contextmanager
def one_share() -> Iterator[bool]:
    """Moves this process, and so all that it starts, into one CPU cgroup: there, nice values count.

    For what measures and tests: groups, engines and what breaks them share the cores as processes of one
    machine's services do. Yields False where that cannot be done, and latencies are far worse for it.
    """
    if not in_autogroup():
        yield True
        return
    # Version 1 has a tree a controller, version 2 one for all.
    parent = CGROUPS / "cpu" if (CGROUPS / "cpu" / PROCESSES).exists() else CGROUPS
    if not _shares_cores(parent):
        yield False
        return
    folder = parent / CGROUP
    try:
        folder.mkdir(exist_ok=True)
        (folder / PROCESSES).write_text(str(os.getpid()))
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        with contextlib.suppress(OSError):  # others may still be in it
            (parent / PROCESSES).write_text(str(os.getpid()))
            folder.rmdir()
