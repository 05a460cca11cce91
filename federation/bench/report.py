"""The one form of every bench: tables for people, JSON for machines, targets that may be missed."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import operator
import os
import platform
import shlex
import stat
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import psutil
from rich.console import Console
from rich.table import Table

from federation.errors import UsageError

Op = Literal["==", ">=", "<=", ">", "<"]
_OPS: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_PACKAGES = ("moonmesh", "mooncake-transfer-engine-non-cuda", "grpcio", "numpy")


@dataclass(frozen=True)
class Target:
    """What a figure should be. A missed target is a finding, not a failure of the bench."""

    name: str
    value: float | None
    """What was measured; None where this run did not measure it."""
    op: Op
    target: float
    unit: str = ""

    @property
    def met(self) -> bool | None:
        """None where there is no value to judge."""
        if self.value is None or math.isnan(self.value):
            return None
        return _OPS[self.op](self.value, self.target)

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": _plain(self.value),
            "op": self.op,
            "target": self.target,
            "unit": self.unit,
            "met": self.met,
        }


@dataclass
class Report:
    """One run of one bench.

    Attributes:
        figures: name → number, text, None (not measured) or a dict of those; in the order to show.
        notes: how the figures are to be read, one sentence each.
    """

    bench: str
    figures: dict[str, Any] = field(default_factory=dict)
    targets: list[Target] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=lambda: machine())
    versions: dict[str, str] = field(default_factory=lambda: versions())
    command: str = field(default_factory=lambda: command_line())
    started_at: str = field(default_factory=lambda: now_utc())
    interrupted: bool = False
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The report as it stands in the JSON file; NaN and infinities become null."""
        return {
            "bench": self.bench,
            "started_at": self.started_at,
            "interrupted": self.interrupted,
            "command": self.command,
            "machine": self.machine,
            "versions": self.versions,
            "figures": _plain(self.figures),
            "targets": [t.as_dict() for t in self.targets],
            "notes": self.notes,
        }

    def print(self, console: Console) -> None:
        """Write the tables; nested figures (one dict a mode) become columns of their own table."""
        title = f"moonmesh bench {self.bench}"
        if self.interrupted:
            title += " (interrupted: what was measured until then)"
        table = Table("figure", "value", title=title, title_justify="left")
        table.columns[1].justify = "right"
        for name, value in self.figures.items():
            if not isinstance(value, Mapping):
                table.add_row(name, show(value))
        console.print(table)
        for name, value in self.figures.items():
            if isinstance(value, Mapping) and value:
                console.print(_nested(name, value))
        if self.targets:
            console.print(self._target_table())
        for note in self.notes:
            console.print(note, style="dim", markup=False, highlight=False)
        console.print(_machine_line(self.machine), style="dim", markup=False, highlight=False)

    def _target_table(self) -> Table:
        table = Table("target", "wanted", "measured", "", title="targets", title_justify="left")
        for t in self.targets:
            verdict = {True: "[green]met[/green]", False: "[red]missed[/red]", None: "n/a"}[t.met]
            unit = f" {t.unit}" if t.unit else ""
            table.add_row(t.name, f"{t.op} {show(t.target)}{unit}", show(t.value), verdict)
        return table

    def write(self, path: Path) -> None:
        """Write the JSON file, whole or not at all.

        Raises:
            UsageError: if it cannot be written.
        """
        write_whole(json.dumps(self.as_dict(), indent=2, allow_nan=False) + "\n", path)


def write_whole(text: str, path: Path) -> None:
    """Write a report: a file whole or not at all, through links; a device or a pipe as it is.

    Raises:
        UsageError: if it cannot be written.
    """
    try:
        file = _file(path)
        if file is None:
            _write_through(text, path)
            return
        temporary = _beside(file)
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.chmod(0o644)
            temporary.replace(file)
        except BaseException:
            temporary.unlink()
            raise
    except OSError as error:
        raise _unwritable(path, error) from error


def check_writable(path: Path | None) -> None:
    """Refuse a report that cannot be written before anything is measured.

    A file is made beside it, and removed: access bits alone do not say it of every file system.

    Raises:
        UsageError: if its folder is missing or closed to us, or it is a folder itself.
    """
    if path is None:
        return
    if not path.parent.is_dir():
        raise UsageError(
            "there is no such folder", where=str(path.parent), hint="make it, or name another"
        )
    try:
        file = _file(path)
        if file is not None:
            _beside(file).unlink()
        elif not os.access(path, os.W_OK):  # not opened: that would end a pipe for its reader
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise _unwritable(path, error) from error


def _file(path: Path) -> Path | None:
    """The file that is to be replaced, or made, where links lead; None for what is no file.

    Our own output is none, whatever it was sent to: to replace that would lose what is in it.

    Raises:
        OSError: it is a folder, or links lead nowhere.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return Path(os.path.realpath(path))
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found.st_mode) or _output(found) is not None:
        return None
    return Path(os.path.realpath(path))


def _output(found: os.stat_result) -> int | None:
    """Which of stdout and stderr it is, if any."""
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):  # closed
            if os.path.samestat(found, os.fstat(descriptor)):
                return descriptor
    return None


def _beside(file: Path) -> Path:
    """An empty file in the same folder."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    os.close(handle)
    return Path(name)


def _write_through(text: str, path: Path) -> None:
    """To what is no file; to our own output after what was printed, by the descriptor that it has."""
    sys.stdout.flush()
    own = _output(path.stat())
    handle = os.open(path, os.O_WRONLY | os.O_NOCTTY) if own is None else os.dup(own)
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        out.write(text)


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"the report cannot be written: {error.strerror}", where=str(path))


def machine() -> dict[str, Any]:
    """What the figures were measured on; no host name."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() == "model name":
                    return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Versions of what was measured."""
    found: dict[str, str] = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def command_line() -> str:
    """This process's command, to run it again."""
    return shlex.join(["moonmesh", *sys.argv[1:]])


def now_utc() -> str:
    """The time, for people: ISO 8601, UTC, seconds."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def show(value: Any) -> str:
    """A figure for people: thousands apart, four digits of a fraction, `n/a` for None."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "n/a"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{k}: {show(v)}" for k, v in value.items()) or "none"
    return str(value)


def _nested(name: str, value: Mapping[str, Any]) -> Table:
    columns = {k: v for k, v in value.items() if isinstance(v, Mapping)}
    if len(columns) < len(value):
        table = Table(name, "value", title_justify="left")
        for key, item in value.items():
            table.add_row(key, show(item))
        return table
    table = Table(name, *columns)
    for column in table.columns[1:]:
        column.justify = "right"
    rows = dict.fromkeys(row for column in columns.values() for row in column)
    for row in rows:
        table.add_row(row, *(show(column.get(row)) for column in columns.values()))
    return table


def _machine_line(found: Mapping[str, Any]) -> str:
    gib = found.get("memory_bytes", 0) / 2**30
    return (
        f"{found.get('cpu')}, {found.get('cores_usable')} cores, {gib:.0f} GiB, "
        f"{found.get('system')}, Python {found.get('python')}"
    )


def _plain(value: Any) -> Any:
    """`value` with what JSON cannot hold replaced by null."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
