"""The other end of `rpc`: what listens, and the calls that come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio

from chaos.sim.mesh.line import Lines
from chaos.sim.mesh.loop import Node, VirtualLoop
from chaos.sim.mesh.rpc import EOF, OVERHEAD_BYTES, Code, Flow, SimCall
from federation.trust.names import gateway_name

SAN: Final = "x509_subject_alternative_name"

Handle = Callable[[Any, Any], Awaitable[Any]]


class Details(NamedTuple):
    """What a handler is looked up by."""

    method: str
    invocation_metadata: Sequence[Any] = ()


class Server:
    """What listens at an address.

    Args:
        handlers: as gRPC has them.
        calls_max: open at once.
        message_bytes_max: of one message that comes.
        wrap: changes what each call's handler is told and says: of a hostile group.
    """

    def __init__(
        self,
        node: Node,
        handlers: grpc.GenericRpcHandler,
        federation: str,
        *,
        calls_max: int,
        message_bytes_max: int,
        wrap: Callable[[str, Handle], Handle] = lambda method, handle: handle,
    ) -> None:
        self.node = node
        self.federation = federation
        self.calls_max = calls_max
        self.message_bytes_max = message_bytes_max
        self.open: dict[ServerCall, None] = {}
        self.open_most = 0
        self._handlers = handlers
        self.wrap = wrap

    def expect(self, call: SimCall) -> ServerCall:
        """A call that is on its way."""
        return ServerCall(self, call)

    def handler(self, method: str) -> Handle | None:
        """What answers calls of a method."""
        found: Any = self._handlers.service(Details(method))
        return None if found is None else self.wrap(method, found.stream_stream)


class Servers:
    """All that listens in a world."""

    def __init__(self, loop: VirtualLoop, lines: Lines) -> None:
        self.loop = loop
        self.lines = lines
        self._at: dict[str, Server] = {}

    def listen(self, address: str, server: Server) -> None:
        """From now on, until its process is killed or another one listens there."""
        self._at[address] = server

    def at(self, address: str) -> Server | None:
        """What listens there."""
        return self._at.get(address)

    @staticmethod
    def group_at(address: str) -> str:
        """Whose address it is: groups are their own host names."""
        return address.rpartition(":")[0]


class ServerCall:
    """A call as its server sees it; a context of gRPC, as far as handlers use it."""

    def __init__(self, server: Server, call: SimCall) -> None:
        self.out = Flow()
        """What the client is sent."""
        self._server = server
        self._call = call
        self._in: Flow = Flow()
        self._task: asyncio.Task[None] | None = None
        self._aborted = False
        self._over = False

    # From the client

    def begin(self) -> None:
        """It has come."""
        server, connection = self._server, self._call.connection
        if self._over or connection is None:
            return
        if len(server.open) >= server.calls_max:
            self._fail(Code.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!")
            return
        handle = server.handler(self._call.method)
        if handle is None:
            self._fail(Code.UNIMPLEMENTED, "Method not found!")
            return
        server.open[self] = None
        server.open_most = max(server.open_most, len(server.open))
        connection.ends[server.node].append(self.cancelled)
        self._task = asyncio.get_running_loop().create_task(self._run(handle))

    def take(self, raw: bytes | None) -> None:
        """A message, or the end of them."""
        if self._over:
            return
        if raw is None:
            self._in.ended = True
        elif len(raw) > self._server.message_bytes_max:
            self._fail(Code.RESOURCE_EXHAUSTED, "Received message larger than max")
            self.cancelled()
            return
        else:
            self._in.messages.append(raw)
        self._in.ring()

    def cancelled(self) -> None:
        """The client is gone."""
        self._over = self._in.ended = True
        self._in.ring()
        if self._task is not None:
            self._task.cancel()

    # As production uses it

    async def read(self) -> Any:
        while not self._in.messages:
            if self._in.ended:
                return EOF
            await self._in.news()
        raw = self._in.messages.popleft()
        if self._call.connection is not None:
            read = self._call.up.read
            self._call.connection.send(self._server.node, OVERHEAD_BYTES, read, len(raw))
        return raw

    async def write(self, raw: bytes) -> None:
        await self.out.room(len(raw))
        connection = self._call.connection
        if connection is not None and not self._over:
            connection.send(
                self._server.node, len(raw) + OVERHEAD_BYTES, self._call.take, bytes(raw)
            )

    async def abort(self, code: grpc.StatusCode, details: str = "", trailer: Any = ()) -> None:
        self._aborted = True
        self._fail(code, details, trailer)
        raise grpc.aio.AbortError

    def auth_context(self) -> dict[str, list[bytes]]:
        name = gateway_name(self._call.channel.name, self._server.federation)
        return {SAN: [name.encode()]}

    def invocation_metadata(self) -> tuple[Any, ...]:
        return ()

    def time_remaining(self) -> float | None:
        until = self._call.until
        return None if until is None else max(0.0, until - self._call.channel.loop.now)

    # Its end

    async def _run(self, handle: Handle) -> None:
        server = self._server
        try:
            await handle(None, self)
        except grpc.aio.AbortError:
            return
        except asyncio.CancelledError:
            return  # the client is told already, or has told
        except Exception as error:
            self._fail(Code.UNKNOWN, f"Unexpected {type(error)}")
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"a handler of {self._call.method}", "exception": error}
            )
        else:
            self._send(self._call.finished)
        finally:
            self._over = True
            server.open.pop(self, None)
            connection = self._call.connection
            if connection is not None and connection.open:
                connection.ends[server.node].remove(self.cancelled)

    def _fail(self, code: grpc.StatusCode, details: str, trailer: Any = ()) -> None:
        self._send(self._call.failed, code, details, trailer)

    def _send(self, action: Callable[..., object], *arguments: Any) -> None:
        connection = self._call.connection
        if connection is not None:
            connection.send(self._server.node, OVERHEAD_BYTES, action, *arguments)
