"""One gateway of a peer, as this one reaches it: its connections, the calls on them, and why they fail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import Any

import grpc
import grpc.aio

from federation.config import Limits
from federation.counters import counters
from federation.errors import PeerError
from federation.limits.errors import LateError, StallError
from federation.limits.guard import Guard
from federation.limits.names import GuardName
from federation.peers.dialling import bulk_channels, control_channel
from federation.peers.greeter import Greeter
from federation.peers.wire import (
    CATALOG_METHOD,
    HELLO_METHOD,
    NAMESPACES_METHOD,
    DeniedError,
    LostError,
    OversizeError,
    SilentError,
    UnreachableError,
    explain,
    parse,
    received,
)
from federation.transfer.allowance import Allowance
from federation.transfer.landing import Answer, Room, Way
from federation.trust.credentials import Credentials
from moonmesh.v1 import peer_pb2

NOT_YET = "not yet connected"
"""Why a gateway is not reached that was not greeted yet."""

DIAGNOSE_EVERY = 5.0
"""Seconds between two attempts to find out why a gateway cannot be reached."""
DIAGNOSE_SECONDS = 3.0

_READY = grpc.ChannelConnectivity.READY


class Gateway:
    """See the module.

    Control and bulk go over connections of their own, so that a hello never waits behind a block. Neither
    is made before it is used.

    Args:
        peer: the group's name.
        guard: told of every byte of an answer, and of streams on which nothing comes.
        answered: told of each answer to a hello.
        unanswered: told why there is none; again for each hello, while it is so.
        room: called when a hello that waited is on its way.
    """

    def __init__(
        self,
        peer: str,
        address: str,
        credentials: Credentials,
        limits: Limits,
        guard: Guard,
        *,
        answered: Callable[[peer_pb2.HelloReply], None],
        unanswered: Callable[[PeerError], None],
        room: Callable[[], None],
    ) -> None:
        self.peer = peer
        self.address = address
        self.reason = NOT_YET
        """Why it cannot be reached; empty if it can."""
        self._credentials = credentials
        self._limits = limits
        self._guard = guard
        where = (peer, address, credentials.federation, credentials.tls, limits)
        self.control = control_channel(*where)
        self.bulk = bulk_channels(*where)
        self.way: Way = self.bulk
        """How blocks come from it: over connections of this process, or of another."""
        self._answered = answered
        self._unanswered = unanswered
        self.greeter = Greeter(
            self.control.stream_stream(HELLO_METHOD),
            lambda: self.control.get_state() is _READY,
            limits.hello_interval_ms / 1000,
            answered=self._heard,
            failed=self._missed,
            room=room,
        )
        self._questions: dict[grpc.aio.UnaryStreamCall[Any, Any], None] = {}
        self._diagnosed_at = float("-inf")
        self._diagnosis: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Gateway({self.peer} at {self.address}: {self.reason or 'ok'})"

    async def namespaces(self, raw: bytes, timeout: float) -> bytes:
        """What it says of the namespaces that it shares with us.

        Raises:
            PeerError: it did not answer.
        """
        try:
            answer = await self.control.unary_unary(NAMESPACES_METHOD)(raw, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise self._explained(error) from error
        self._guard.heard(time.monotonic())
        return bytes(answer)

    async def catalog(self, raw: bytes, timeout: float) -> AsyncGenerator[bytes, None]:
        """The pages of one answer, as bytes.

        Raises:
            SilentError: it does not speak for its group.
            PeerError: it did not answer.
        """
        call = self.control.unary_stream(CATALOG_METHOD)(raw, timeout=timeout)
        self._questions[call] = None
        try:
            async for page in call:
                self._guard.heard(time.monotonic())
                yield page
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                self._guard.heard(time.monotonic())
                raise SilentError(f"it refused: {error.details()}", where=self.peer) from error
            raise self._explained(error) from error
        finally:
            self._questions.pop(call, None)
            call.cancel()

    def hang_up(self) -> None:
        """Catalog questions under way are cancelled: another gateway answers them."""
        for call in list(self._questions):
            call.cancel()

    async def pull(
        self,
        raw: bytes,
        timeout: float,
        allowance: Allowance | None = None,
        room: Room | None = None,
    ) -> Answer:
        """One answer: see `federation.transfer.landing.Way`.

        Raises:
            PeerError: it did not answer, or not properly, or not in time.
        """
        stall = self._limits.peer_stall_ms / 1000
        if not self._guard.on(GuardName.STALL):
            stall = timeout
        try:
            async with aclosing(self.way.pull(raw, timeout, stall, allowance, room)) as messages:
                async for message in messages:
                    self._guard.heard(time.monotonic())
                    self.reason = ""  # whoever greets it, it can be reached
                    yield message
            self._guard.heard(time.monotonic())
        except StallError:
            self._guard.refuse(GuardName.STALL, time.monotonic())
            raise
        except PeerError as error:
            if isinstance(error, UnreachableError) and not isinstance(error, LostError):
                raise self._noted(error) from error
            self._noted(error)
            raise  # from itself it would be a ring of references, which keeps all that the call had

    async def bulk_ready(self) -> bool:
        """Waits for a connection for blocks, `peer_connect_ms` at most; whether it stands."""
        return await self.way.ready(self._limits.peer_connect_ms / 1000)

    async def close(self) -> None:
        """Closes the connections; calls on them end with an error."""
        if self._diagnosis is not None:
            self._diagnosis.cancel()
        await self.greeter.close()
        await self.control.close(None)
        await asyncio.gather(self.bulk.close(), self.way.close())

    def _heard(self, raw: bytes) -> None:
        self._guard.heard(time.monotonic())
        reply = parse(peer_pb2.HelloReply, received(raw), self.peer)
        if not reply.HasField("yours"):  # else it says next that it refuses us
            self.reason = ""
        self._answered(reply)

    def _missed(self, error: grpc.aio.AioRpcError | PeerError | None) -> None:
        if isinstance(error, grpc.aio.AioRpcError):
            error = self._explained(error)
        elif error is None and self.control.get_state() is _READY:
            error = LateError("a hello was not answered in time", where=self.peer)
        self._unanswered(error or self._not_there("no connection"))

    def _explained(self, error: grpc.aio.AioRpcError) -> PeerError:
        return self._noted(explain(error, self.peer, self._limits.peer_retry_after_max_ms))

    def _noted(self, error: PeerError) -> PeerError:
        """What a call ended with, and what that says of this gateway; the error, to be raised."""
        if isinstance(error, LostError):
            return error
        if isinstance(error, UnreachableError):
            return self._not_there(error.what)
        if not isinstance(error, LateError):
            self._guard.heard(time.monotonic())  # an answer, of whatever kind
        if isinstance(error, OversizeError):
            counters.add("moonmesh_oversized_messages_total")
        if isinstance(error, DeniedError):
            self.reason = error.what
        return error

    def _not_there(self, details: str) -> UnreachableError:
        self._diagnose()
        return UnreachableError(self.reason or details, where=self.peer)

    def _diagnose(self) -> None:
        """gRPC knows only that the socket closed; find out why, once in a while, beside everything."""
        now = time.monotonic()
        running = self._diagnosis is not None and not self._diagnosis.done()
        if running or now - self._diagnosed_at < DIAGNOSE_EVERY:
            return
        self._diagnosed_at = now

        async def find_out() -> None:
            # It takes a file for a moment. Where there can be none, the reason stays what it is.
            with suppress(OSError):
                self.reason = await self._credentials.why_not(
                    self.address, self.peer, DIAGNOSE_SECONDS
                )

        self._diagnosis = asyncio.create_task(find_out())
