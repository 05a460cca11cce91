"""Passing the staging memory to engines of the same host: its descriptor, over a socket beside the gateway's.

Whoever may open the gateway's socket may open this one. It says nothing else and reads nothing, so there is
nothing to hold open and nobody to wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import mmap
import os
import socket
import struct
from pathlib import Path
from typing import Final

import numpy as np

from federation.errors import MoonmeshError
from federation.private import for_this_user
from federation.transfer.slots import F_SEAL_FUTURE_WRITE, Slots

SOCKET_NAME: Final = "memory.sock"
"""Of the socket in the folder of the gateway's."""
FETCH_SECONDS: Final = 1.0
"""How long an engine waits for the memory."""
BACKLOG: Final = 128
"""Engines that may wait to be let in; more ask again."""
RETRY_SECONDS: Final = 0.1
"""After this time the next engine is let in where that failed (no descriptor was left, say)."""
_HELLO: Final = struct.Struct("<QQ")


class PassingError(Exception):
    """The memory cannot be had, or is none that may be looked into."""


class Passing:
    """The gateway's end."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._socket: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, gateway_socket: Path) -> None:
        """Listens beside `gateway_socket`, for this user alone.

        Raises:
            MoonmeshError: the socket cannot be had.
        """
        path = gateway_socket.with_name(SOCKET_NAME)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with for_this_user():
                path.unlink(missing_ok=True)
                listening.bind(str(path))
        except OSError as error:
            listening.close()
            raise MoonmeshError(f"cannot listen there: {error}", where=str(path)) from error
        listening.listen(BACKLOG)
        listening.setblocking(False)
        self._socket = listening
        self._task = asyncio.create_task(self._run(listening))

    async def close(self) -> None:
        """Lets nobody in any more. Who has the memory keeps it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()

    async def _run(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        hello = _HELLO.pack(self._slots.name, self._slots.size)
        while True:
            try:
                engine, _ = await loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            # 16 bytes into a new socket's empty buffer: it cannot block; an engine that has gone is gone.
            with engine, contextlib.suppress(OSError):
                socket.send_fds(engine, [hello], [self._slots.fd])


class Mapping:
    """The engine's end: the staging memory of one gateway, for reading.

    Args:
        fd: taken over.
    """

    def __init__(self, fd: int, name: int, size: int) -> None:
        self.name = name
        self._size = size
        try:
            needed = fcntl.F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE
            if (
                fcntl.fcntl(fd, fcntl.F_GET_SEALS) & needed != needed
                or os.fstat(fd).st_size != size
            ):
                # It could shrink while it is read, which kills the reader.
                raise PassingError("the gateway's memory is not sealed, or not as large as it says")
            self._map = mmap.mmap(fd, size, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        self._bytes = np.frombuffer(self._map, np.uint8)

    @classmethod
    def fetch(cls, gateway_socket: Path) -> Mapping:
        """Asks the gateway for it.

        Raises:
            PassingError: there is none to be had.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as own:
            own.settimeout(FETCH_SECONDS)
            try:
                own.connect(str(gateway_socket.with_name(SOCKET_NAME)))
                hello, fds, _, _ = socket.recv_fds(own, _HELLO.size, 1)
            except OSError as error:
                raise PassingError(str(error)) from error
        if len(fds) != 1 or len(hello) != _HELLO.size:
            for fd in fds:
                os.close(fd)
            raise PassingError("the gateway gave no memory")
        try:
            return cls(fds[0], *_HELLO.unpack(hello))
        except (OSError, ValueError) as error:
            raise PassingError(f"the gateway's memory cannot be mapped: {error}") from error

    def address(self, offset: int, size: int) -> int:
        """The address of a slot, good for as long as this object lives.

        Raises:
            PassingError: it is not within the memory.
        """
        if offset + size > self._size:
            raise PassingError(f"{size} bytes at {offset} of {self._size}")
        return int(self._bytes.ctypes.data) + offset
