"""Processor time of a group's processes, by what they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import psutil

from local_group.state import DATA_DIR_VARIABLE

ROLES: Final[Mapping[str, str]] = {
    "mooncake_master": "master",
    "mooncake_client": "store",
    "federation.gateway_process": "gateway",
    "federation.serving": "serving",
    "federation.pulling": "pulling",
}
"""What the command line of each has in it."""
OTHER: Final = "other"


class GroupProcesses:
    """The processes of groups, found once: those that start later are not counted.

    Args:
        data_dirs: of the groups, by name.
    """

    def __init__(self, data_dirs: Mapping[str, Path]) -> None:
        self._found: list[tuple[str, psutil.Process]] = []
        for process in psutil.process_iter():
            try:
                folder = process.environ().get(DATA_DIR_VARIABLE)
                line = " ".join(process.cmdline())
            except psutil.Error:
                continue
            for group, data_dir in data_dirs.items():
                if folder == str(data_dir):
                    self._found.append((f"{group} {_role(line)}", process))

    def seconds(self) -> dict[str, float]:
        """Seconds of a processor that each kind has used so far, e.g. of `east serving`."""
        used: dict[str, float] = defaultdict(float)
        for name, process in self._found:
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue
            used[name] += times.user + times.system
        return dict(used)


def grown(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What each has used in between."""
    return {name: after[name] - before.get(name, 0.0) for name in after}


def total(used: Mapping[str, float], names: Iterable[str] | None = None) -> float:
    """The sum over all, or over some."""
    return sum(used.get(name, 0.0) for name in (used if names is None else names))


def _role(line: str) -> str:
    return next((role for mark, role in ROLES.items() if mark in line), OTHER)
