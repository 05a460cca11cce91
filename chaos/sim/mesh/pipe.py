"""A socket pair between two processes of a world, for streams of asyncio."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from chaos.sim.mesh.loop import Node, VirtualLoop

PIPE_SECONDS: Final = 0.00005
"""From one end to the other: a wake-up."""


class End:
    """One end, before and after somebody takes it over."""

    def __init__(self) -> None:
        self.other: End | None = None
        self.transport: PipeTransport | None = None
        self.node: Node | None = None
        self.waiting: list[bytes | None] = []
        """What came before anybody has taken over this end; None: its end."""
        self.closed = False

    def setblocking(self, blocking: bool) -> None:
        """As a socket's: it never blocks."""

    def close(self) -> None:
        """As a socket's."""
        if self.transport is not None:
            self.transport.close()
        elif not self.closed:
            self.closed = True
            self.hang_up()

    def hang_up(self) -> None:
        """The other end sees the end."""
        if self.other is not None:
            self.other.take(None)

    def take(self, data: bytes | None) -> None:
        """Bytes, or the end, come."""
        if self.transport is None:
            self.waiting.append(data)
        else:
            self.transport.arrive(data)


def make_pair() -> tuple[End, End]:
    """Two ends."""
    ours, theirs = End(), End()
    ours.other, theirs.other = theirs, ours
    return ours, theirs


def connect_pipe(end: End, protocol: asyncio.Protocol, loop: VirtualLoop) -> PipeTransport:
    """Takes over an end."""
    transport = PipeTransport(end, protocol, loop)
    end.transport = transport
    protocol.connection_made(transport)
    for data in end.waiting:
        transport.arrive(data)
    end.waiting.clear()
    return transport


class PipeTransport(asyncio.Transport):
    """As that of a unix socket, of a size without an end: what waits is bounded by who writes."""

    def __init__(self, end: End, protocol: asyncio.Protocol, loop: VirtualLoop) -> None:
        super().__init__()
        from chaos.sim.mesh.loop import NODE

        self._end = end
        self._protocol = protocol
        self._loop = loop
        self._node = NODE.get()

    def arrive(self, data: bytes | None) -> None:
        """From the other end, a moment later, as the process of this one."""
        self._loop.at(self._loop.now + PIPE_SECONDS, self._node, self._take, data)

    def _take(self, data: bytes | None) -> None:
        if self._end.closed:
            return
        if data is not None:
            self._protocol.data_received(data)
            return
        self._protocol.eof_received()
        self._close()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._end.closed and self._end.other is not None:
            self._end.other.take(bytes(data))

    def is_closing(self) -> bool:
        return self._end.closed

    def close(self) -> None:
        if not self._end.closed:
            self._end.hang_up()
            self._close()

    def abort(self) -> None:
        self.close()

    def _close(self) -> None:
        self._end.closed = True
        self._loop.call_soon(self._protocol.connection_lost, None)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is always room."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_reading(self) -> bool:
        return True

    def pause_reading(self) -> None:
        """What comes waits at the reader: it reads all of it."""

    def resume_reading(self) -> None:
        """See `pause_reading`."""
