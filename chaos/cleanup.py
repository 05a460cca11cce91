"""Finding again what a run left behind, even one that was killed.

A run writes a file before it starts anything, and marks every process with its id in the environment.
The next start reads the files of runs whose runner is gone, ends what is marked and removes the folders.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from chaos.errors import ChaosError
from chaos.faults.disks import unmount_below
from chaos.network.tools import NAMED, PREFIX, named_of, remove
from federation.errors import MoonmeshError
from federation.limits.orders import Orders
from federation.order_file import OrderFile
from local_group.state import ProcessId, kill_all

MARK = "MOONMESH_CHAOS_RUN"
"""Environment variable of every process of a run: the run's id."""
FOLDER_PREFIX = "chaos-"
"""Of the folder in the temporary folder that a run writes to."""
KILL_S = 5.0
FILE_BYTES_MAX = 1 << 20
_ENVIRON_BYTES_MAX = 1 << 20


class RunFile(BaseModel):
    """What a later start needs to know of a run."""

    model_config = ConfigDict(frozen=True)

    run: Annotated[str, Field(pattern=r"^[0-9]+-[0-9]+$")]
    """Names are searched for with it: no pattern and no path may pass for one."""
    runner: ProcessId
    folders: tuple[str, ...]
    namespaces: tuple[str, ...] = ()
    """Names of network namespaces."""
    orders: dict[str, str] = {}
    """What was switched off before the run in groups that others run: `data_dir` to `Orders.encode`."""


@dataclass(frozen=True)
class Found:
    """What was left of a run, and is gone now."""

    run: str
    processes: int
    survivors: int
    """Processes that could not be ended."""
    namespaces: int = 0
    """Network namespaces."""
    kept: tuple[str, ...] = ()
    """Those of them that could not be removed."""
    orders: tuple[str, ...] = ()
    """Of groups that others run, what is switched off there and was not before it. It is told, and left: who
    runs the group may want it so by now."""


def runs_folder() -> Path:
    """Where run files are kept: one folder a user of this host."""
    return Path(tempfile.gettempdir(), f"moonmesh-chaos-{os.getuid()}")


def _check_private(folder: Path) -> None:
    """Anyone may make a folder of this name first, and have us end and remove what its files name.

    Raises:
        ChaosError: others may write in it.
        FileNotFoundError: it is not there.
    """
    found = folder.lstat()
    private = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) & 0o777 == 0o700
    if not private or found.st_uid != os.getuid():
        raise ChaosError(
            "is not a folder that only this user can write to (mode 0700, and no link)",
            where=str(folder),
            hint="see who made it and remove it, or set TMPDIR to a folder of your own",
        )


class Run:
    """The record of one run: on disk from the start to the end of the `with`.

    Raises:
        ChaosError: others can write to the folder of run files.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._runs = folder or runs_folder()
        with contextlib.suppress(FileExistsError):
            self._runs.mkdir(mode=0o700)
        _check_private(self._runs)
        runner = ProcessId.of(os.getpid())
        assert runner is not None
        self._runner = runner
        self.id = f"{runner.pid}-{runner.start_ticks}"
        self._file = self._runs / f"{self.id}.json"
        self._folders: list[str] = []
        self._namespaces: list[str] = []
        self._orders: dict[str, str] = {}
        self._left: list[str] = []

    def __enter__(self) -> Run:
        self._write()
        os.environ[MARK] = self.id  # inherited by every process that is started from now on
        return self

    def __exit__(self, *_: object) -> None:
        os.environ.pop(MARK, None)
        if not self._left:  # else the next start tries again
            self._file.unlink(missing_ok=True)

    def owns(self, folder: Path) -> None:
        """Remembers a folder that is to be removed with the run."""
        self._folders.append(str(folder))
        self._write()

    def owns_namespaces(self, names: Sequence[str]) -> None:
        """Remembers network namespaces that are about to be made, and to be removed with the run."""
        self._namespaces += names
        self._write()

    def notes_orders(self, data_dir: Path) -> None:
        """Remembers what is switched off in a group that is not the run's, before anything is.

        Raises:
            OrderError: it cannot be read.
        """
        self._orders[str(data_dir)] = OrderFile(data_dir).read().encode().decode()
        self._write()

    def end(self) -> list[str]:
        """Ends every process of the run and removes its network namespaces; what is left."""
        survivors = kill_all(marked(self.id), KILL_S)
        kept = remove({*self._namespaces, *named_of(self.id)})
        self._left = [f"process {p.pid}" for p in survivors]
        self._left += [f"network namespace {name}" for name in kept]
        return self._left

    def _write(self) -> None:
        record = RunFile(
            run=self.id,
            runner=self._runner,
            folders=tuple(self._folders),
            namespaces=tuple(self._namespaces),
            orders=self._orders,
        )
        temporary = self._file.with_suffix(".tmp")
        temporary.write_text(record.model_dump_json())
        temporary.replace(self._file)


def clean_up(folder: Path | None = None) -> list[Found]:
    """Ends and removes what runs whose runner is gone have left.

    Raises:
        ChaosError: others can write to the folder of run files.
    """
    runs = folder or runs_folder()
    try:
        _check_private(runs)
    except FileNotFoundError:
        return []
    found = []
    for file in sorted(runs.glob("*.json")):
        try:
            record = RunFile.model_validate_json(_read_own(file))
        except (OSError, ValidationError):
            continue
        if record.runner.alive():
            continue
        left = list(marked(record.run))
        survivors = kill_all(left, KILL_S)
        own = {n for n in record.namespaces if _is_named_by(record.run, n)}
        named = {n for n in (*own, *named_of(record.run)) if (NAMED / n).exists()}
        kept = remove(sorted(named))  # after the processes in them
        for place in filter(_is_of_a_run, map(Path, record.folders)):
            unmount_below(place)
            shutil.rmtree(place, ignore_errors=True)
        if not survivors and not kept:
            with contextlib.suppress(OSError):
                file.unlink()
        orders = tuple(_other_orders(record.orders))
        found.append(Found(record.run, len(left), len(survivors), len(named), tuple(kept), orders))
    return found


def _other_orders(before: Mapping[str, str]) -> Iterator[str]:
    """What is switched off now, where that is not what was."""
    for data_dir, text in before.items():
        with contextlib.suppress(ValueError, MoonmeshError):
            was, now = Orders.decode(text.encode()), OrderFile(Path(data_dir)).read()
            if (was.off, was.peers) != (now.off, now.peers):
                yield f"{data_dir}: switched off is {_in_words(now)}, and before it {_in_words(was)}"


def _in_words(orders: Orders) -> str:
    off = ["the federation"] if orders.off else []
    off += [f"{peer} ({order.value})" for peer, order in sorted(orders.peers.items())]
    return ", ".join(off) or "nothing"


def _read_own(file: Path) -> bytes:
    """The start of a regular file of this user.

    Raises:
        OSError: it is none, or cannot be read.
    """
    # Not to wait for a pipe, and not to read through a link.
    handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as opened:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
            raise PermissionError(f"{file} is no regular file of this user")
        return opened.read(FILE_BYTES_MAX)


def _is_of_a_run(folder: Path) -> bool:
    """Whether a folder is where runs put theirs, and named so."""
    return folder.parent == Path(tempfile.gettempdir()) and folder.name.startswith(FOLDER_PREFIX)


def _is_named_by(run: str, namespace: str) -> bool:
    """Whether a network namespace has the name that a run gives, and no path."""
    return namespace.startswith(f"{PREFIX}{run}-") and "/" not in namespace


def marked(run: str, but: Iterable[int] = ()) -> Iterator[ProcessId]:
    """The running processes of a run, except this one and those of `but`."""
    wanted = f"{MARK}={run}".encode()
    left_out = {os.getpid(), *but}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) in left_out:
            continue
        try:
            with open(f"/proc/{entry.name}/environ", "rb") as file:
                environ = file.read(_ENVIRON_BYTES_MAX)
        except OSError:
            continue
        if wanted in environ.split(b"\0"):
            process = ProcessId.of(int(entry.name))
            if process is not None:
                yield process
