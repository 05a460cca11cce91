"""How the kernel shares cores between Mooncake and what runs beside it.

Linux's autogroups (`kernel.sched_autogroup_enabled`) give every session an equal share of a core, whatever
its processes do, and to a session that mostly sleeps a share that is close to nothing. A store sleeps
until it is read from, and its readers spin while they wait; so with autogroups on, a busy machine kept
stores waiting for a core for up to 400 ms (decision 006).

Autogroups are of the processes in the root *CPU* cgroup alone. In version 1 that is the one of the cpu
controller's own tree. In version 2 there is one tree for all controllers, and a process can be deep in it
and still be in the root for the scheduler: it is in the nearest cgroup above it that has the cpu controller,
which each but the root gets from its parent. Where both versions are mounted, the cpu controller is in one
of them.
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
WEIGHT = "cpu.weight"
"""In each cgroup of version 2 that has the cpu controller, but for the root: that has no weight."""
CGROUP = "moonmesh"
NOT_SHARED = "no CPU cgroup can be made here: latencies will be worse (sched_autogroup)"
FIRST_NICE = -10
"""Ten times the share of other sessions. What is started has little to do, and others wait for it."""


def in_autogroup() -> bool:
    """Whether this process's share of the cores is that of its session.

    Where that cannot be seen, it is said to be: what is done about it then does nothing.
    """
    try:
        on = ENABLED.read_text().strip() == "1"
        lines = OWN_CGROUPS.read_text().splitlines()
    except OSError:
        return False
    return on and not _in_cpu_cgroup(lines)


def _in_cpu_cgroup(lines: list[str]) -> bool:
    """Whether the `hierarchy:controllers:path` lines of /proc/PID/cgroup name a CPU cgroup, not the root."""
    found = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    for _, controllers, path in found:
        if "cpu" in controllers.split(","):
            return path != "/"
    return any(number == "0" and _has_weight(path) for number, _, path in found)


def _has_weight(path: str) -> bool:
    """Whether a cgroup of version 2, or one above it, has a share of the cores of its own.

    The root of a container's namespace may have one, too: it is the root for those in it alone.
    """
    if ".." in path.split("/"):
        return False  # outside of what is mounted here
    folder = _tree_v2()
    for name in ("", *path.strip("/").split("/")):
        folder /= name
        if (folder / WEIGHT).exists():
            return True
    return False


def _tree_v2() -> Path:
    """Where version 2 is mounted: beside the trees of version 1, if there are any."""
    beside = CGROUPS / "unified"
    return beside if (beside / CONTROLLERS).exists() else CGROUPS


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
    parent = CGROUPS / "cpu" if (CGROUPS / "cpu" / PROCESSES).exists() else _tree_v2()
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
