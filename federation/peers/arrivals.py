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

ARRIVING_MAX = 64
"""Calls of one peer whose request is on its way: a message of a megabyte takes a moment, many at once."""
REFUSED_MAX = 64
"""... and calls of one peer that are being refused, which takes no time to speak of."""
END_SECONDS = 5.0
"""What calls have beyond their own longest time to end on a connection whose time is over."""


class Arrivals:
    """Waits for requests, for each peer by itself.

    Args:
        who: the peer that calls, by its certificate; ends the call of anybody else.
        seconds: that a request may take to come.
    """

    def __init__(self, who: Callable[[Context], Awaitable[str]], seconds: float) -> None:
        self._who = who
        self._seconds = seconds
        self._arriving = Bulkhead(ARRIVING_MAX)

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
    end, and with it every call on it, also one whose peer never reads: nothing else could end that.
    """
    each = limits.peer_requests_open + ARRIVING_MAX + REFUSED_MAX
    longest = max(limits.pull_timeout_ms, limits.catalog_wait_ms)
    return each * max(1, peers), [
        ("grpc.max_connection_age_ms", limits.peer_connection_ms),
        ("grpc.max_connection_age_grace_ms", int(longest + 1000 * END_SECONDS)),
    ]
