"""Less of something for running processes: descriptors, bytes a file, memory, cores."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import psutil

from chaos.errors import ChaosError
from local_group.scheduling import CGROUPS, HANDED_DOWN, PROCESSES

Limited = Literal["descriptors", "file-bytes"]
Shared = Literal["memory", "cpu"]
PERIOD_US = 100_000
"""Over which a share of the cores is counted: the kernel's own default."""
NAME = "squeezed"
_RLIMITS = {"descriptors": resource.RLIMIT_NOFILE, "file-bytes": resource.RLIMIT_FSIZE}


@contextlib.contextmanager
def limited(what: Limited, processes: Iterable[psutil.Process], to: int) -> Iterator[None]:
    """Resource limits of running processes: soft ones, which can be raised again.

    Args:
        to: for `descriptors`, beyond those that each has open.
    """
    before: list[tuple[int, tuple[int, int]]] = []
    number = _RLIMITS[what]
    try:
        for process in processes:
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                limit = below(_open(process.pid), to) if what == "descriptors" else to
                old = resource.prlimit(process.pid, number)
                resource.prlimit(process.pid, number, (limit, old[1]))
                before.append((process.pid, old))
        yield
    finally:
        for pid, old in before:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, number, old)


def _open(pid: int) -> set[int]:
    return set(map(int, os.listdir(f"/proc/{pid}/fd")))


def below(taken: set[int], free: int) -> int:
    """The number below which so many descriptors are free: what counts is a new one's number, not how many
    there are, and it is the lowest that is free."""
    limit = 0
    while free or limit in taken:
        free -= limit not in taken
        limit += 1
    return limit


def why_not(what: Shared) -> str | None:
    """Why there can be no cgroup that limits this; None if there can."""
    try:
        group = _make(what, os.getpid())
    except (OSError, ChaosError) as error:
        return f"a cgroup that limits {what} cannot be made here ({error})"
    with contextlib.suppress(OSError):
        group.rmdir()
    return None


@contextlib.contextmanager
def confined(what: Shared, processes: Sequence[psutil.Process], to: float) -> Iterator[Path]:
    """A cgroup of their own, beside or below the one that they are in.

    Args:
        to: for `cpu` cores; for `memory` bytes beyond those that they have.

    Raises:
        ChaosError: there is none to be had.
    """
    first = processes[0].pid
    try:
        home = _home(what, first)
        group = _make(what, first)
    except OSError as error:
        raise ChaosError(f"a cgroup that limits {what} cannot be made: {error}") from error
    try:
        if what == "cpu":
            _limit_cpu(group, to)
        else:
            # What they have already moves with them: else only what is new would count.
            with contextlib.suppress(OSError):
                (group / "memory.move_charge_at_immigrate").write_text("3")
        _move(processes, group)
        if what == "memory":
            _limit_memory(group, int(to))
        yield group
    finally:
        if what == "memory":
            with contextlib.suppress(OSError):
                _unlimit_memory(group)
        left = (psutil.Process(int(pid)) for pid in (group / PROCESSES).read_text().split())
        with contextlib.suppress(psutil.Error):
            _move(list(left), home)
        with contextlib.suppress(OSError):
            group.rmdir()


def _move(processes: Iterable[psutil.Process], group: Path) -> None:
    for process in processes:
        with contextlib.suppress(OSError):
            (group / PROCESSES).write_text(str(process.pid))


def _home(what: Shared, pid: int) -> Path:
    """The cgroup that a process is in, of the hierarchy that limits this.

    Raises:
        ChaosError: none does.
    """
    controller = "cpu" if what == "cpu" else "memory"
    unified: Path | None = None
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return CGROUPS / controller / path.lstrip("/")
        if number == "0":
            unified = CGROUPS / path.lstrip("/")
    if unified is None or not unified.is_dir():
        raise ChaosError(f"no cgroup controller for {controller}")
    return unified


def _make(what: Shared, pid: int) -> Path:
    home = _home(what, pid)
    parent = home
    if (home / "cgroup.controllers").exists():
        # Version 2: processes are in leaves, so it goes beside theirs.
        parent = home if home == CGROUPS else home.parent
        handed = (parent / HANDED_DOWN).read_text().split()
        if ("cpu" if what == "cpu" else "memory") not in handed:
            raise ChaosError(f"{parent} does not hand {what} down")
    group = parent / f"{NAME}-{what}-{pid}"
    group.mkdir(exist_ok=True)
    return group


def _limit_cpu(group: Path, cores: float) -> None:
    quota = max(1000, int(cores * PERIOD_US))
    if (group / "cpu.max").exists():
        (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
    else:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(quota))


def _limit_memory(group: Path, beyond: int) -> None:
    if (group / "memory.max").exists():
        used = int((group / "memory.current").read_text())
        (group / "memory.max").write_text(str(used + beyond))
    else:
        used = int((group / "memory.usage_in_bytes").read_text())
        (group / "memory.limit_in_bytes").write_text(str(used + beyond))


def _unlimit_memory(group: Path) -> None:
    new = group / "memory.max"
    if new.exists():
        new.write_text("max")
    else:
        (group / "memory.limit_in_bytes").write_text("-1")


def throttled(group: Path) -> int:
    """Periods in which a cgroup was kept from the cores."""
    for line in (group / "cpu.stat").read_text().splitlines():
        if line.startswith("nr_throttled "):
            return int(line.split()[1])
    return 0


def refused_memory(group: Path) -> int:
    """Times that a cgroup was at its limit of memory."""
    old = group / "memory.failcnt"
    if old.exists():
        return int(old.read_text())
    for line in (group / "memory.events").read_text().splitlines():
        if line.startswith("max "):
            return int(line.split()[1])
    return 0
