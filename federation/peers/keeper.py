"""The keeper of staging, as its gateway sees it: see `federation.pulling_keeper`."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from typing import Final

from federation.config import GroupFile
from federation.pulling_keeper import ANSWER, ASK, END, FORK
from local_group.child import bound_to_us
from local_group.logs import rotate
from local_group.state import CHILD_VARIABLE, DATA_DIR_VARIABLE

CHILD_NAME: Final = "pulling"
LOG_BYTES: Final = 16 << 20
"""A larger log is moved to `pulling.log.1`."""
ANSWER_SECONDS: Final = 5.0
"""It starts Python, or forks: tens of ms."""
PROGRAM: Final = (sys.executable, "-m", "federation.pulling_keeper")


class KeeperError(Exception):
    """It has ended, or does not answer: there are no pulling processes any more."""


class Keeper:
    """Forks pulling processes, and ends them. They end with it, and it ends with us.

    Start it from the main thread: the kernel binds a child to the thread that starts it.
    """

    def __init__(self, config: GroupFile) -> None:
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None
        self._end: socket.socket | None = None
        self._asking = asyncio.Lock()

    def keep(self, memory: int) -> None:
        """Starts it; when this returns it has the memory mapped, which may then be sealed.

        Raises:
            OSError, KeeperError: it cannot be started.
        """
        log_path = self._config.log_dir / f"{CHILD_NAME}.log"
        rotate(log_path, LOG_BYTES)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(ANSWER_SECONDS)
        log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            descriptors = (theirs.fileno(), memory)
            self._process = subprocess.Popen(
                bound_to_us((*PROGRAM, *map(str, descriptors))),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=descriptors,
                env={
                    **os.environ,
                    DATA_DIR_VARIABLE: str(self._config.data_dir),
                    CHILD_VARIABLE: CHILD_NAME,
                },
            )
        finally:
            os.close(log)
            theirs.close()
        self._end = ours
        _answer(ours)

    async def fork(self) -> tuple[int, socket.socket]:
        """A new pulling process: its pid, and our end of the channel to it.

        Raises:
            KeeperError: see there.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                pid = await self._ask(FORK, 0, [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        return pid, ours

    async def end(self, pid: int) -> None:
        """Kills one that it has forked; when this returns, nothing of it runs.

        Raises:
            KeeperError: see there; it has ended with the keeper, or is about to.
        """
        await self._ask(END, pid, [])

    async def close(self) -> None:
        """Ends it, and all that it has forked."""
        if self._end is not None:
            self._end.close()
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)

    async def _ask(self, what: bytes, pid: int, descriptors: list[int]) -> int:
        end = self._end
        if end is None:
            raise KeeperError("it was not started")

        def ask() -> int:
            try:
                socket.send_fds(end, [ASK.pack(what, pid)], descriptors)
                return _answer(end)
            except OSError as error:
                raise KeeperError(str(error)) from error

        async with self._asking:
            return await asyncio.shield(asyncio.to_thread(ask))


def _answer(end: socket.socket) -> int:
    raw = end.recv(ANSWER.size)
    if len(raw) != ANSWER.size:
        raise KeeperError("it has ended")
    return int(ANSWER.unpack(raw)[0])
