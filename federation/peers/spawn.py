"""Starting serving processes. Imports little: the first is started before the gateway has loaded the rest.

Each loads by itself and then waits for its setup. So one can be had in reserve: what takes longest of a
start, loading Python's modules, is behind it when it is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import psutil

from federation.config import GroupFile
from federation.peers.lease_book import make_book
from local_group.child import bound_to_us
from local_group.logs import rotate
from local_group.state import CHILD_VARIABLE, DATA_DIR_VARIABLE

CHILD_NAME = "serving"
LOG_BYTES = 16 << 20
"""A larger log is moved to `serving.log.1`."""
DISCARD_SECONDS = 1.0
"""For which a process that was killed is waited for, and everything with it. One that the kernel cannot
end even then is left to it."""
STOP_SECONDS = 4.0
"""From SIGTERM to SIGKILL; it gives calls under way 2 s."""
ENDED_POLL_SECONDS = 0.01
PROGRAM = (sys.executable, "-m", "federation.serving")


class Spawned(NamedTuple):
    """A serving process, and our end of the channel to it: it closes when the process ends."""

    process: subprocess.Popen[bytes]
    end: socket.socket
    at: float
    """Monotonic seconds."""


class Spawner:
    """Starts serving processes, each in our process group and no longer alive than us.

    Use it from the main thread: the kernel binds a child to the thread that starts it.

    Args:
        program: the command line without arguments; another one in tests.
    """

    def __init__(self, config: GroupFile, program: Sequence[str] = PROGRAM) -> None:
        self.log = config.log_dir / f"{CHILD_NAME}.log"
        self._data_dir = config.data_dir
        self._program = program
        self._nice = config.limits.serving_nice
        self._reserve: Spawned | None = None
        self._book = make_book()

    @property
    def reserve_pid(self) -> int | None:
        """The process in reserve, if there is one that runs."""
        if self._reserve is None or self._reserve.process.poll() is not None:
            return None
        return self._reserve.process.pid

    def prepare(self) -> None:
        """Sees to it that one is in reserve.

        Raises:
            OSError: it cannot be started.
        """
        if self.reserve_pid is not None:
            return
        ended, self._reserve = self._reserve, None
        _discard(ended)
        self._reserve = self._spawn()
        # There is no hurry: it loads as politely as it will serve.
        os.setpriority(os.PRIO_PROCESS, self._reserve.process.pid, self._nice)

    def take(self) -> Spawned:
        """The one in reserve if it is fit, else a new one.

        Raises:
            OSError: it cannot be started.
        """
        spawned, self._reserve = self._reserve, None
        if spawned is not None and _fit(spawned.process):
            return spawned
        _discard(spawned)
        return self._spawn()

    def close(self) -> None:
        """Ends the one in reserve. Nothing can be started afterwards."""
        spawned, self._reserve = self._reserve, None
        _discard(spawned)
        if self._book >= 0:
            os.close(self._book)
            self._book = -1

    def _spawn(self) -> Spawned:
        rotate(self.log, LOG_BYTES)
        ours, theirs = socket.socketpair()
        with theirs:
            descriptors = (theirs.fileno(), self._book)
            try:
                log = os.open(
                    self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
                )
                try:
                    process = subprocess.Popen(
                        bound_to_us((*self._program, *map(str, descriptors))),
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        pass_fds=descriptors,
                        env={
                            **os.environ,
                            DATA_DIR_VARIABLE: str(self._data_dir),
                            CHILD_VARIABLE: CHILD_NAME,
                        },
                    )
                finally:
                    os.close(log)
            except OSError:
                ours.close()
                raise
        return Spawned(process, ours, time.monotonic())


def _fit(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process that has waited for long may be expected to answer."""
    try:
        return process.poll() is None and psutil.Process(process.pid).status() not in (
            psutil.STATUS_STOPPED,
            psutil.STATUS_TRACING_STOP,
        )
    except psutil.Error:
        return False


def _discard(spawned: Spawned | None) -> None:
    if spawned is not None:
        spawned.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            spawned.process.wait(DISCARD_SECONDS)
        spawned.end.close()


async def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Waits for a process that is ending, for at most `STOP_SECONDS`; whether it has ended."""
    end = time.monotonic() + STOP_SECONDS
    while process.poll() is None:
        if time.monotonic() >= end:
            return False
        await asyncio.sleep(ENDED_POLL_SECONDS)
    return True


def resident_bytes(pid: int) -> int | None:
    """Memory that a process has in use; None if there is no such process."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read(256).split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return None
