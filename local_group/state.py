"""What runs of a group: the lock, its state in a file, and finding processes that were left behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from local_group.process_errors import GroupError
from local_group.slots import SlotFile

DATA_DIR_VARIABLE = "MOONMESH_DATA_DIR"
CHILD_VARIABLE = "MOONMESH_CHILD"
"""Both are set for every child, so that it is found even where the state is lost."""

STATE_BYTES_MAX = 128 << 10
"""Of the state of a group with the most stores, with room to spare."""
PROBLEM_CHARS_MAX = 300
_PID_BYTES = 32
_LOCK_PATIENCE_S = 0.2
"""`holder` takes the lock for a moment, to see whether it is free."""

ChildPhase = Literal["waiting", "starting", "ready", "restarting", "stopped"]
GroupPhase = Literal["starting", "ready", "stopping"]


class ProcessId(BaseModel):
    """A process that cannot be mistaken for a later one with the same pid."""

    model_config = ConfigDict(frozen=True)

    pid: int
    start_ticks: int
    """Clock ticks from boot to the start of the process: unlike a wall-clock time it does not move
    when the clock is set."""
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The running process `pid`, or None if there is none (a zombie is none)."""
        stat = _stat(pid)
        if stat is None or stat[0] in "ZX":
            return None
        return cls(pid=pid, start_ticks=stat[1], boot_id=_boot_id())

    def alive(self) -> bool:
        """Does this very process still run?"""
        return ProcessId.of(self.pid) == self

    def signal(self, number: int, *, group: bool = False) -> None:
        """Send a signal to it (or to its whole process group), if it still runs."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if group and os.getpgid(self.pid) == self.pid:
                    os.killpg(self.pid, number)
                else:
                    os.kill(self.pid, number)


class ChildState(BaseModel):
    """A child, as the supervisor sees it."""

    process: ProcessId | None = None
    phase: ChildPhase = "waiting"
    restarts: int = 0
    started_at: float = 0.0
    """Seconds since 1970; for people."""
    last_exit: str = ""
    """How it ended last, e.g. `was killed by SIGKILL`."""
    problem: str = ""
    """Why it is not ready, where it has said so itself; at most `PROBLEM_CHARS_MAX`."""


class GroupState(BaseModel):
    """The content of the state file."""

    group: str
    supervisor: ProcessId
    phase: GroupPhase = "starting"
    started_at: float = 0.0
    children: dict[str, ChildState] = {}


def write_state(path: Path, state: GroupState) -> None:
    """Replace the state, on a full disk too (see `SlotFile`); only the owner may read it.

    Raises:
        OSError: it cannot be written.
    """
    SlotFile(path, STATE_BYTES_MAX).write(state.model_dump_json().encode())


def clear_state(path: Path) -> None:
    """Forget the state. The file stays, so that a next `up` has its room on a full disk."""
    if path.exists():
        with contextlib.suppress(OSError):
            SlotFile(path, STATE_BYTES_MAX).write(b"")


def read_state(path: Path) -> GroupState | None:
    """The state, or None where there is none or it is damaged (then children are found by their
    environment).

    Raises:
        GroupError: it belongs to another user.
    """
    try:
        return GroupState.model_validate_json(SlotFile(path, STATE_BYTES_MAX).read() or b"")
    except PermissionError as error:
        raise GroupError(
            "the group belongs to another user", where=str(path), hint="use that user's account"
        ) from error
    except (OSError, ValidationError):
        return None


class GroupLock:
    """One supervisor a group: held from `acquire` until the process ends, however it ends.

    It can be handed to a child that inherits its `descriptor`: then there is no moment at which
    nobody holds it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.descriptor = -1

    def acquire(self) -> bool:
        """Take the lock; False if another process has it."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() >= deadline:
                    os.close(descriptor)
                    return False
                time.sleep(0.01)
        self.descriptor = descriptor
        self.name(os.getpid())
        return True

    def adopt(self, descriptor: int) -> None:
        """Go on with the lock that the parent has taken: `descriptor` is inherited from it."""
        os.set_inheritable(descriptor, False)
        self.descriptor = descriptor
        self.name(os.getpid())

    def name(self, pid: int) -> None:
        """Say who holds it, from now on."""
        # Always of one length, so in place: the disk may be full. Without it `down` has the state.
        with contextlib.suppress(OSError):
            os.pwrite(self.descriptor, str(pid).encode().ljust(_PID_BYTES), 0)

    def release(self) -> None:
        """Give it back."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def holder(self) -> int | None:
        """The pid of the process that holds it (0 if that is not known), or None if nobody does."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            text = os.pread(descriptor, _PID_BYTES, 0).strip()
            return int(text) if text.isdigit() else 0
        finally:
            os.close(descriptor)
        return None


def leftovers(data_dir: Path, state: GroupState | None) -> dict[str, ProcessId]:
    """Children of this group that run, by name: those in the state, and those whose environment
    says so. Names of the second kind end in `#pid` where a name is there twice.
    """
    found: dict[str, ProcessId] = {}
    if state is not None:
        for name, child in state.children.items():
            if child.process is not None and child.process.alive():
                found[name] = child.process
    known = {process.pid for process in found.values()} | {os.getpid()}
    for pid, name in _by_environment(data_dir):
        process = ProcessId.of(pid)
        if pid not in known and process is not None:
            found[f"{name}#{pid}" if name in found else name] = process
    return found


def kill_all(processes: Iterable[ProcessId], timeout: float) -> list[ProcessId]:
    """SIGKILL processes and their process groups; those that still run after `timeout` seconds."""
    remaining = list(processes)
    for process in remaining:
        process.signal(signal.SIGKILL, group=True)
    deadline = time.monotonic() + timeout
    while True:
        remaining = [process for process in remaining if process.alive()]
        if not remaining or time.monotonic() >= deadline:
            return remaining
        time.sleep(0.01)


def _by_environment(data_dir: Path) -> list[tuple[int, str]]:
    """(pid, child name) of every process whose environment names this data directory.

    Only processes whose environment this user may read: those are the ones it may kill.
    """
    wanted = os.fsencode(str(data_dir))
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            with open(f"/proc/{entry.name}/environ", "rb") as file:
                environment = _environment(file.read(1 << 20))
        except OSError:
            continue
        name = environment.get(CHILD_VARIABLE.encode())
        if name and environment.get(DATA_DIR_VARIABLE.encode()) == wanted:
            found.append((int(entry.name), name.decode(errors="replace")))
    return found


def _environment(raw: bytes) -> Mapping[bytes, bytes]:
    pairs = (item.partition(b"=") for item in raw.split(b"\0"))
    return {key: value for key, _, value in pairs}


def _stat(pid: int) -> tuple[str, int] | None:
    """(state letter, start in ticks) of a process, from /proc/PID/stat."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read(4096)
    except OSError:
        return None
    # The name in parentheses may hold spaces and parentheses: split after the last one.
    fields = text[text.rindex(b")") + 2 :].split()
    return fields[0].decode(), int(fields[19])


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
