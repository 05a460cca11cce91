"""One gateway of a peer, as this one reaches it: its connections, the calls on them, and why they fail."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import grpc
import grpc.aio

from federation.config import Limits
from federation.counters import counters
from federation.errors import PeerError
from federation.limits.errors import LateError, ShedError, StallError
from federation.limits.guard import Guard
from federation.limits.names import GuardName
from federation.peers.greeter import Greeter
from federation.peers.wire import (
    CATALOG_METHOD,
    HELLO_METHOD,
    NAMESPACES_METHOD,
    PULL_METHOD,
    DeniedError,
    OversizeError,
    RefusedError,
    SilentError,
    UnreachableError,
    parse,
    received,
    retry_after,
    sent,
)
from federation.telemetry import inject
from federation.timeouts import timeout as timeout_of
from federation.transfer.allowance import Allowance
from federation.transfer.frames import HEADER_BYTES
from federation.trust.credentials import Credentials
from moonmesh.v1 import peer_pb2

NOT_YET = "not yet connected"
"""Why a gateway is not reached that was not greeted yet."""

DIAGNOSE_EVERY = 5.0
"""Seconds between two attempts to find out why a gateway cannot be reached."""
DIAGNOSE_SECONDS = 3.0

KEEPALIVE_MS = 10_000
"""Between two pings on a connection; the peer's server refuses more than one in 5 s."""

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
        self.control = self._channel(limits.control_message_bytes_max)
        # A message may exceed its fill by a header for each block in it: see Encoder.
        self.bulk = self._channel(
            limits.message_bytes + HEADER_BYTES * (1 + limits.peer_request_keys_max)
        )
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
        self, raw: bytes, timeout: float, allowance: Allowance | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The raw messages of one answer: see `federation.transfer.frames`.

        While the caller looks at one message the next is on its way: gRPC's threads receive and decrypt one
        when it is asked for.

        Args:
            allowance: what may be sent beyond the credit of the request, where it has one.

        Raises:
            PeerError: it did not answer, or not properly, or not in time.
        """
        telling: asyncio.Task[None] | None = None
        call: grpc.aio.UnaryStreamCall[Any, Any] | grpc.aio.StreamStreamCall[Any, Any]
        if allowance is None:
            call = self.bulk.unary_stream(PULL_METHOD)(raw, timeout=timeout, metadata=inject())
        else:
            call = self.bulk.stream_stream(PULL_METHOD)(timeout=timeout, metadata=inject())
            telling = asyncio.create_task(_tell(call, raw, allowance))
        stall = self._limits.peer_stall_ms / 1000
        if not self._guard.on(GuardName.STALL):
            stall = timeout
        coming = _reading(call)
        try:
            while True:
                try:
                    async with timeout_of(stall):
                        message = await coming
                except asyncio.TimeoutError:
                    self._guard.refuse(GuardName.STALL, time.monotonic())
                    raise StallError(f"nothing came for {stall:g} s", where=self.peer) from None
                self._guard.heard(time.monotonic())
                if message is grpc.aio.EOF:
                    return
                self.reason = ""  # whoever greets it, it can be reached
                coming = _reading(call)
                await asyncio.sleep(0)  # so that it begins
                yield message
        except grpc.aio.AioRpcError as error:
            raise self._explained(error) from error
        finally:
            coming.cancel()
            if telling is not None:
                telling.cancel()
            call.cancel()

    async def bulk_ready(self) -> bool:
        """Waits for the connection for blocks, `peer_connect_ms` at most; whether it stands."""
        try:
            async with timeout_of(self._limits.peer_connect_ms / 1000):
                while (state := self.bulk.get_state(try_to_connect=True)) is not _READY:
                    await self.bulk.wait_for_state_change(state)
        except asyncio.TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Closes the connections; calls on them end with an error."""
        if self._diagnosis is not None:
            self._diagnosis.cancel()
        await self.greeter.close()
        await self.control.close(None)
        await self.bulk.close(None)

    def _channel(self, message_bytes_max: int) -> grpc.aio.Channel:
        options: list[tuple[str, Any]] = [
            # The time between two dials grows up to the second of these; a dial has the third.
            ("grpc.initial_reconnect_backoff_ms", self._limits.peer_redial_ms),
            ("grpc.max_reconnect_backoff_ms", self._limits.peer_redial_max_ms),
            ("grpc.min_reconnect_backoff_ms", self._limits.peer_connect_ms),
            ("grpc.keepalive_time_ms", KEEPALIVE_MS),
            # Also how long TCP waits for a word that bytes have come, before it gives them up.
            ("grpc.keepalive_timeout_ms", self._limits.peer_unheard_ms),
            ("grpc.max_receive_message_length", message_bytes_max),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        return self._credentials.dial(self.address, self.peer, options)

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
        code, details = error.code(), error.details() or ""
        if code is grpc.StatusCode.UNAVAILABLE:
            return self._not_there(details)
        if code is not grpc.StatusCode.DEADLINE_EXCEEDED:
            self._guard.heard(time.monotonic())  # an answer, of whatever kind
        wait = retry_after(error, self._limits.peer_retry_after_max_ms)
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and wait is not None:
            return ShedError(f"it refuses for now: {details}", retry_after=wait, where=self.peer)
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
            counters.add("moonmesh_oversized_messages_total")
            return OversizeError("it sent a message above the limit", where=self.peer)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return LateError("no answer within the deadline", where=self.peer)
        what = f"it refused: {details}" if details else f"it answered {code.name}"
        if code is grpc.StatusCode.PERMISSION_DENIED:
            self.reason = what
            return DeniedError(what, where=self.peer)
        return RefusedError(what, where=self.peer)

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
            self.reason = await self._credentials.why_not(self.address, self.peer, DIAGNOSE_SECONDS)

        self._diagnosis = asyncio.create_task(find_out())


def _reading(
    call: grpc.aio.UnaryStreamCall[Any, Any] | grpc.aio.StreamStreamCall[Any, Any],
) -> asyncio.Task[Any]:
    """The next message. That it failed need not be of interest to anybody."""

    async def read() -> Any:
        return await call.read()

    def over(task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            task.exception()

    task = asyncio.create_task(read())
    task.add_done_callback(over)
    return task


async def _tell(
    call: grpc.aio.StreamStreamCall[Any, Any], raw: bytes, allowance: Allowance
) -> None:
    """Asks for blocks, and tells what may be sent of them as that grows. Its reader sees why a call ended."""
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        await call.write(raw)
        async for more in allowance.messages():
            await call.write(sent(more))
