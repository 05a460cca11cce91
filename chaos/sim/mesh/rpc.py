"""gRPC between the gateways of a world, as far as they use it: channels and calls, over `line`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio

from chaos.sim.mesh.line import Connection
from chaos.sim.mesh.loop import NODE, Node, VirtualLoop

if TYPE_CHECKING:
    from chaos.sim.mesh.server import Server, Servers

WINDOW_BYTES: Final = 256 * 1024
"""Of one call, sent and not read: what HTTP/2 lets be sent ahead."""
OVERHEAD_BYTES: Final = 40
"""Of a message on the wire, and of an acknowledgement."""
EOF = grpc.aio.EOF
Code = grpc.StatusCode
State = grpc.ChannelConnectivity


def rpc_error(code: grpc.StatusCode, details: str, trailer: Any = ()) -> grpc.aio.AioRpcError:
    """As gRPC raises it."""
    return grpc.aio.AioRpcError(
        code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailer), details=details
    )


class Flow:
    """One direction of a call: messages with a window, as its reader and its writer see it."""

    def __init__(self) -> None:
        self.messages: deque[bytes] = deque()
        self.ended = False
        """No more comes after what is here."""
        self.unread = 0
        """Bytes sent and not read, as its writer knows."""
        self._news: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Something has come, or has ended."""
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def read(self, size: int) -> None:
        """The other end has read so much."""
        self.unread -= size
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    async def news(self) -> None:
        """Waits for `ring`. One reader."""
        self._news = asyncio.get_running_loop().create_future()
        await self._news

    async def room(self, size: int) -> None:
        """Waits until so much may be sent. One writer."""
        while self.unread and self.unread + size > WINDOW_BYTES:
            self._room = asyncio.get_running_loop().create_future()
            await self._room
        self.unread += size


class SimCall:
    """The client's side of a call."""

    def __init__(self, channel: SimChannel, method: str, timeout: float | None, wait: bool) -> None:
        node = NODE.get()
        assert node is not None, "only processes call"
        self.node = node
        self.channel = channel
        self.method = method
        self.down = Flow()
        self.up = Flow()
        self.connection: Connection | None = None
        self.server_call: Any = None
        self._connected: asyncio.Future[None] = channel.loop.create_future()
        self._status: tuple[grpc.StatusCode, str, Any] | None = None
        """What it ended with. An error is made of it each time, as gRPC does: one that is kept keeps, by
        its traceback, all that it went through."""
        self._cancelled = False
        self.over = False
        self._timer: asyncio.TimerHandle | None = None
        self.until: float | None = None
        if timeout is not None:
            self.until = channel.loop.now + timeout
            self._timer = channel.loop.call_later(max(0.0, timeout), self._late)
        self._requests: asyncio.Task[None] | None = None
        channel.begin(self, wait)

    # As production uses it

    def feed(self, requests: AsyncIterator[bytes]) -> SimCall:
        """Sends what there is to send."""

        async def send() -> None:
            async for raw in requests:
                await self.write(raw)

        self._requests = self.channel.loop.create_task(send())
        self._requests.add_done_callback(_retrieved)
        return self

    async def wait_for_connection(self) -> None:
        await asyncio.wait({self._connected})
        self._raise()

    async def write(self, raw: bytes) -> None:
        await asyncio.wait({self._connected})
        self._raise()
        if self.over:
            raise asyncio.InvalidStateError("the call is over")
        await self.up.room(len(raw))
        if self.connection is not None and not self.over:
            size = len(raw) + OVERHEAD_BYTES
            self.connection.send(self.node, size, self.server_call.take, raw)

    async def done_writing(self) -> None:
        await asyncio.wait({self._connected})
        if self.connection is not None:
            self.connection.send(self.node, OVERHEAD_BYTES, self.server_call.take, None)

    async def read(self) -> Any:
        down = self.down
        while not down.messages:
            self._raise()
            if down.ended:
                return EOF
            await down.news()
        raw = down.messages.popleft()
        if self.connection is not None and self.server_call is not None:
            read = self.server_call.out.read
            self.connection.send(self.node, OVERHEAD_BYTES, read, len(raw))
        most = self.channel.message_bytes_max
        if len(raw) > most:
            self.cancel()
            said = f"Received message larger than max ({len(raw)} vs. {most})"
            self._status = (Code.RESOURCE_EXHAUSTED, said, ())
            raise rpc_error(*self._status)
        return raw

    async def initial_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()  # nothing that is simulated says anything in it

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._all()

    async def _all(self) -> AsyncIterator[bytes]:
        while (raw := await self.read()) is not EOF:
            yield raw

    def __await__(self) -> Any:
        return self._single().__await__()

    async def _single(self) -> bytes:
        raw = await self.read()
        if raw is EOF:
            raise rpc_error(Code.INTERNAL, "no answer")
        return bytes(raw)

    def cancel(self) -> bool:
        if self.over:
            return False
        self._cancelled = True
        if self.connection is not None and self.server_call is not None:
            self.connection.send(self.node, OVERHEAD_BYTES, self.server_call.cancelled)
        self._end()
        return True

    # For the channel and the other end

    def connected(self, connection: Connection, server: Server) -> None:
        """There is a connection: the call goes to its server."""
        if self.over:
            return
        self.connection = connection
        connection.ends[self.node].append(self.broken)
        self.server_call = server.expect(self)
        connection.send(self.node, OVERHEAD_BYTES + len(self.method), self.server_call.begin)
        if not self._connected.done():
            self._connected.set_result(None)

    def failed(self, code: grpc.StatusCode, details: str, trailer: Any = ()) -> None:
        """It ends by an error, after what has come."""
        if not self.over:
            self._status = (code, details, trailer)
            self._end()

    def broken(self) -> None:
        """Its connection is gone."""
        self.failed(Code.UNAVAILABLE, "Socket closed")

    def take(self, raw: bytes) -> None:
        """A message of the server."""
        if not self.over:
            self.down.messages.append(raw)
            self.down.ring()

    def finished(self) -> None:
        """The server has ended it in order."""
        if not self.over:
            self._end()

    def _late(self) -> None:
        if not self.over and self.connection is not None and self.server_call is not None:
            self.connection.send(self.node, OVERHEAD_BYTES, self.server_call.cancelled)
        self.failed(Code.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _end(self) -> None:
        self.over = self.down.ended = True
        self.channel.calls.pop(self, None)
        if self.connection is not None and self.connection.open:
            self.connection.ends[self.node].remove(self.broken)
        if self._timer is not None:
            self._timer.cancel()
        if self._requests is not None:
            self._requests.cancel()
        if not self._connected.done():
            self._connected.set_result(None)
        self.down.ring()

    def _raise(self) -> None:
        if self._cancelled:
            raise asyncio.CancelledError
        if self._status is not None:
            raise rpc_error(*self._status)


class SimChannel:
    """A channel to one address; it dials when it is used, and again after a pause that grows."""

    def __init__(
        self, servers: Servers, address: str, options: Sequence[tuple[str, Any]], name: str
    ) -> None:
        node = NODE.get()
        assert node is not None, "only processes dial"
        told = dict(options)
        self.node: Node = node
        self.loop: VirtualLoop = servers.loop
        self.message_bytes_max = int(told.get("grpc.max_receive_message_length", 4 << 20))
        self.calls: dict[SimCall, None] = {}
        self.name = name
        """Of the group that dials, as its certificate says."""
        self._servers = servers
        self._address = address
        self._first = told.get("grpc.initial_reconnect_backoff_ms", 100) / 1000
        self._most = told.get("grpc.max_reconnect_backoff_ms", 1000) / 1000
        self._patience = told.get("grpc.min_reconnect_backoff_ms", 2000) / 1000
        self._pause = self._first
        self._state = State.IDLE
        self._changed: asyncio.Future[None] | None = None
        self._connection: Connection | None = None
        self._server: Server | None = None
        self._waiting: list[tuple[SimCall, bool]] = []
        self._closed = False

    # As production uses it

    def stream_stream(self, method: str) -> Callable[..., SimCall]:
        def call(
            requests: AsyncIterator[bytes] | None = None,
            timeout: float | None = None,
            metadata: Any = None,
            wait_for_ready: bool = False,
        ) -> SimCall:
            made = SimCall(self, method, timeout, wait_for_ready)
            return made if requests is None else made.feed(requests)

        return call

    def unary_stream(self, method: str) -> Callable[..., SimCall]:
        def call(raw: bytes, timeout: float | None = None, metadata: Any = None) -> SimCall:
            return SimCall(self, method, timeout, False).feed(_one(raw))

        return call

    unary_unary = unary_stream

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        if try_to_connect and self._state is State.IDLE:
            self._dial()
        return self._state

    async def wait_for_state_change(self, last: grpc.ChannelConnectivity) -> None:
        while self._state is last:
            if self._changed is None or self._changed.done():
                self._changed = self.loop.create_future()
            await asyncio.wait({self._changed})

    async def close(self, grace: float | None = None) -> None:
        self._closed = True
        for call in list(self.calls):
            call.failed(Code.CANCELLED, "Channel closed")
        if self._connection is not None:
            self._connection.end()

    # Its connection

    def begin(self, call: SimCall, wait: bool) -> None:
        """A call has begun."""
        self.calls[call] = None
        if self._closed:
            call.failed(Code.CANCELLED, "Channel closed")
        elif self._connection is not None and self._connection.open and self._server is not None:
            call.connected(self._connection, self._server)
        elif self._state is State.TRANSIENT_FAILURE and not wait:
            call.failed(Code.UNAVAILABLE, "failed to connect to all addresses")
        else:
            self._waiting.append((call, wait))
            if self._state is State.IDLE:
                self._dial()

    def _set(self, state: grpc.ChannelConnectivity) -> None:
        self._state = state
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def _dial(self) -> None:
        if self._closed:
            return
        self._set(State.CONNECTING)
        lines, loop, node = self._servers.lines, self.loop, self.node
        server = self._servers.at(self._address)
        target = self._servers.group_at(self._address)
        there = lines.arrival(node.group, target, OVERHEAD_BYTES)
        back = None if there is None else lines.arrival(target, node.group, OVERHEAD_BYTES)
        if back is None:  # nothing comes back: neither a yes nor a no
            loop.at(loop.now + self._patience, node, self._refused)
        elif server is None or not server.node.running:
            loop.at(back, node, self._refused)
        else:
            # Made by its process, so not while that one is frozen. TLS takes another round trip.
            at = loop.now + 2 * (back - loop.now)
            loop.at(at, server.node, loop.at, at, node, self._made, server)
            loop.at(loop.now + self._patience, node, self._slow)

    def _slow(self) -> None:
        if self._state is State.CONNECTING:
            self._refused()

    def _made(self, server: Server) -> None:
        if self._state is not State.CONNECTING or self._closed:
            return
        if not server.node.running or self._servers.at(self._address) is not server:
            self._refused()
            return
        self._pause = self._first
        self._server = server
        connection = self._connection = Connection(self._servers.lines, self.node, server.node)
        connection.ends[self.node].append(self._lost)
        self._set(State.READY)
        waiting, self._waiting = self._waiting, []
        for call, _ in waiting:
            call.connected(connection, server)

    def _lost(self) -> None:
        self._connection = None
        self._set(State.IDLE)

    def _refused(self) -> None:
        if self._state is not State.CONNECTING:
            return
        self._set(State.TRANSIENT_FAILURE)
        waiting, self._waiting = self._waiting, []
        for call, wait in waiting:
            if wait and not call.over:
                self._waiting.append((call, wait))
            else:
                call.failed(Code.UNAVAILABLE, "failed to connect to all addresses")
        pause, self._pause = self._pause, min(2 * self._pause, self._most)
        self.loop.call_later(pause, self._dial_again)

    def _dial_again(self) -> None:
        if self._state is State.TRANSIENT_FAILURE:
            self._dial()


async def _one(raw: bytes) -> AsyncIterator[bytes]:
    yield raw


def _retrieved(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
