"""Calls of peers whose request has not come yet, and how a server for peers is bounded as a whole.

gRPC reads the request of a plain method before it calls the method. So a peer that opens calls and
sends nothing would fill the server's places, which all peers share, and no guard of its own would know.
Here a method is called at once, and the waiting is counted against the peer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc
import grpc.aio

from federation.config import Limits
from federation.counters import counters
from federation.limits.bulkhead import Bulkhead
from federation.timeouts import timeout

Context: TypeAlias = grpc.aio.ServicerContext
Method: TypeAlias = Callable[[bytes, Context], Awaitable[bytes | None]]

END_SECONDS = 5.0
"""What calls have beyond their own longest time to end on a connection whose time is over."""
PING_MS = 10_000
"""Between two pings of the server on a connection on which nothing comes, with calls or without: who is
gone, or only holds the connection open, does not answer them."""
PINGED_MS_MIN = 5_000
"""Peers that ping more often are cut off. Theirs come every `link.KEEPALIVE_MS`."""


class Arrivals:
    """Waits for requests, for each peer by itself.

    Args:
        who: the peer that calls, by its certificate; ends the call of anybody else.
        limits: how many of one peer may be on their way, and for how long.
    """

    def __init__(self, who: Callable[[Context], Awaitable[str]], limits: Limits) -> None:
        self._who = who
        self._seconds = limits.peer_stall_ms / 1000
        self._arriving = Bulkhead(limits.peer_requests_arriving)

    def handler(self, method: Method) -> grpc.RpcMethodHandler:
        """A gRPC handler for a method that takes one message and writes its answers, or returns one."""

        async def handle(requests: AsyncIterator[bytes], context: Context) -> None:
            answer = await method(await self._request(context), context)
            if answer is not None:
                await context.write(answer)

        return grpc.stream_stream_rpc_method_handler(handle)

    async def _request(self, context: Context) -> bytes:
        peer = await self._who(context)
        if not self._arriving.take(lane=peer):
            await _refuse(
                context, grpc.StatusCode.RESOURCE_EXHAUSTED, "too many requests on their way"
            )
        try:
            async with timeout(self._seconds):
                raw: Any = await context.read()
        except asyncio.TimeoutError:
            raw = grpc.aio.EOF
        finally:
            self._arriving.give(lane=peer)
        if raw is grpc.aio.EOF:
            await _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "no request came")
        return bytes(raw)


async def _refuse(context: Context, code: grpc.StatusCode, why: str) -> None:
    counters.add("moonmesh_refused_requests_total")
    await context.abort(code, why)


def server_bounds(limits: Limits, peers: int) -> tuple[int, list[tuple[str, Any]]]:
    """Calls that a server for so many peers may have open at once, and its options for connections.

    The sum of what each peer may have: so one at its limit takes no place of another. A connection has an
    end, and with it every call on it, also one whose peer never reads: nothing else could end that. One
    that is not made in time, that nobody uses, or at whose other end nobody is, ends before.
    """
    each = limits.peer_requests_open + limits.peer_requests_arriving + limits.peer_requests_refused
    longest = max(limits.pull_timeout_ms, limits.catalog_wait_ms)
    return each * max(1, peers), [
        ("grpc.max_connection_age_ms", limits.peer_connection_ms),
        ("grpc.max_connection_age_grace_ms", int(longest + 1000 * END_SECONDS)),
        ("grpc.max_connection_idle_ms", limits.peer_idle_ms),
        ("grpc.keepalive_time_ms", PING_MS),
        ("grpc.keepalive_timeout_ms", limits.peer_handshake_ms),
        ("grpc.http2.ping_timeout_ms", limits.peer_handshake_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", PINGED_MS_MIN),
        *handshake_bounds(limits),
    ]


def handshake_bounds(limits: Limits) -> list[tuple[str, Any]]:
    """The options of any server that strangers can reach: how long a connection may take to be made.

    It counts from the TCP connection to the first frame of HTTP/2, TLS in between.
    """
    return [("grpc.server_handshake_timeout_ms", limits.peer_handshake_ms)]
