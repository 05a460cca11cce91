"""Messages between a gateway and its serving process, over a socket pair.

Each is a protobuf behind its length. What is sent waits for room in the socket, so nothing piles up
here: both sides keep what they have to say as state, of which the newest counts, not as a queue.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from federation.config import Limits
from federation.errors import MoonmeshError

_LENGTH = struct.Struct(">I")
PING_SECONDS = 0.25
"""Between two pings of the gateway."""
BUFFER_BYTES = 256 * 1024
"""Bytes that wait in this process for room in the socket."""
ENVELOPE_BYTES = 2 * 1024 * 1024
"""Beyond a control message: `BLOCKS_PER_MESSAGE` blocks with the longest keys fit too."""
FIRST_BYTES_MAX = 4 * 1024 * 1024
"""Of the setup, when no limits are known yet: 63 peers and 256 namespaces need less than one."""
FAREWELL_SECONDS = 1.0

M = TypeVar("M", bound=Message)


class ChannelError(MoonmeshError):
    """The other end sent what it never sends; the serving process is started anew."""

    code = "MM314"


def message_bytes_max(limits: Limits) -> int:
    """The longest message that either end takes."""
    return limits.control_message_bytes_max + ENVELOPE_BYTES


class Channel:
    """One end. `send` from one task, `receive` from one task.

    Args:
        bytes_max: of one message, in both directions.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, bytes_max: int
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._bytes_max = bytes_max

    @classmethod
    async def open(cls, end: socket.socket, bytes_max: int) -> Channel:
        """Takes over one end of a socket pair."""
        end.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=end, limit=BUFFER_BYTES)
        writer.transport.set_write_buffer_limits(high=BUFFER_BYTES)
        return cls(reader, writer, bytes_max)

    async def send(self, *messages: Message) -> None:
        """Returns when the messages are on their way; waits while the other end does not read. Several wake
        it once, which costs both ends more than a message does.

        Raises:
            OSError: the other end is gone.
            ChannelError: a message is above the limit.
        """
        self._writer.write(b"".join(framed(each, self._bytes_max) for each in messages))
        await self._writer.drain()

    async def receive(self, kind: Callable[[], M]) -> M | None:
        """The next message; None once the other end is gone.

        Raises:
            ChannelError: what came is no such message, or above the limit.
        """
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            if length > self._bytes_max:
                raise ChannelError(f"a message of {length} bytes; {self._bytes_max} is the limit")
            raw = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError):
            return None
        return _parsed(kind, raw)

    def close(self) -> None:
        """The other end sees the end of the stream."""
        self._writer.close()


def _parsed(kind: Callable[[], M], raw: bytes) -> M:
    message = kind()
    try:
        message.ParseFromString(raw)
    except DecodeError as error:
        raise ChannelError("bytes that are no message of the channel") from error
    return message


def framed(message: Message, bytes_max: int) -> bytes:
    """The message behind its length.

    Raises:
        ChannelError: it is above the limit.
    """
    raw = message.SerializeToString()
    if len(raw) > bytes_max:
        raise ChannelError(f"a message of {len(raw)} bytes; {bytes_max} is the limit")
    return _LENGTH.pack(len(raw)) + raw


def receive_now(end: socket.socket, kind: Callable[[], M]) -> M | None:
    """The first message, before a loop runs; None if the other end goes without one.

    Raises:
        ChannelError: what came is no such message, or above `FIRST_BYTES_MAX`.
    """
    try:
        head = end.recv(_LENGTH.size, socket.MSG_WAITALL)
        if len(head) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack(head)
        if length > FIRST_BYTES_MAX:
            raise ChannelError(f"a message of {length} bytes; {FIRST_BYTES_MAX} is the limit")
        raw = end.recv(length, socket.MSG_WAITALL)
    except OSError:
        return None
    return _parsed(kind, raw) if len(raw) == length else None


def send_now(end: socket.socket, message: Message, bytes_max: int) -> None:
    """One last message, where no loop runs. Gives up after `FAREWELL_SECONDS`."""
    end.settimeout(FAREWELL_SECONDS)
    try:
        end.sendall(framed(message, bytes_max))
    except OSError:
        return  # the gateway is gone, or does not listen: the exit code has to do
