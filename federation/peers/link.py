"""The way to one peer: its channels, the calls on them, and why they fail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from federation.catalog.wire import CatalogError
from federation.config import Limits
from federation.counters import counters
from federation.errors import PeerError
from federation.limits.errors import BreakerOpenError, LateError, ShedError, StallError
from federation.limits.guard import Guard
from federation.limits.names import Failure, GuardName, Kind
from federation.limits.ticket import Cost, Ticket
from federation.telemetry import inject
from federation.timeouts import timeout as timeout_of
from federation.transfer.frames import HEADER_BYTES
from federation.trust.credentials import Credentials
from federation.trust.diagnose import diagnose
from moonmesh.v1 import peer_pb2

if TYPE_CHECKING:
    from federation.peering import PeerConfig

HELLO_METHOD = "/moonmesh.v1.Peer/Hello"
CATALOG_METHOD = "/moonmesh.v1.Peer/Catalog"
PULL_METHOD = "/moonmesh.v1.Peer/Pull"

RETRY_AFTER = "retry-after-ms"
"""In the trailer of a refusal for want of room: ms after which there may be some."""

DIAGNOSE_EVERY = 5.0
"""Seconds between two attempts to find out why a peer cannot be reached."""
DIAGNOSE_SECONDS = 3.0

KEEPALIVE_MS = 10_000
"""Between two pings on a connection; the peer's server refuses more than one in 5 s."""

_READY = grpc.ChannelConnectivity.READY

M = TypeVar("M", bound=Message)


class UnreachableError(PeerError):
    """No connection to the peer could be made or kept."""

    code = "MM306"
    failure = "unreachable"


class RefusedError(PeerError):
    """The peer answered, and will not do what it was asked."""

    code = "MM307"


class OversizeError(PeerError):
    """The peer sent a message above the limit; it was not read."""

    code = "MM308"
    failure = "protocol"


class PeerLink:
    """One peer, as this gateway reaches it.

    Control and bulk go over connections of their own, so that a hello never waits behind a block.

    Args:
        guard: what may be asked of the peer. Hellos and catalog questions get their tickets here, pulls
            in the puller, which knows what came of them.
        alive: whether gossip has heard the peer lately and it can serve.
        epoch: the epoch of its newest statement.
    """

    def __init__(
        self,
        peer: PeerConfig,
        credentials: Credentials,
        limits: Limits,
        *,
        guard: Guard,
        alive: Callable[[float], bool],
        epoch: Callable[[], int],
    ) -> None:
        self.name = peer.name
        self.address = peer.gateways[0]
        self._unreachable = "not yet connected"
        self._trouble = ""
        self._credentials = credentials
        self._limits = limits
        self._alive = alive
        self._epoch = epoch
        self.guard = guard
        self._control = self._channel(limits.control_message_bytes_max)
        # A message may exceed its fill by a header for each block in it: see Encoder.
        self._bulk = self._channel(
            limits.message_bytes + HEADER_BYTES * (1 + limits.peer_request_keys_max)
        )
        self._diagnosed_at = float("-inf")
        self._diagnosis: asyncio.Task[None] | None = None
        self._return: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"PeerLink({self.name} at {self.address}: {self.reason or 'ok'})"

    @property
    def reason(self) -> str:
        """Why the peer cannot be reached, or why its last pull failed; empty if all is well."""
        return self._unreachable or self._trouble

    @property
    def epoch(self) -> int:
        """Epoch of the peer's newest statement; 0 before the first."""
        return self._epoch()

    def usable(self, now: float) -> bool:
        """Whether pulls may be planned on this peer."""
        return self._alive(now) and self.guard.ready(Kind.PULL, now)

    def breaker_state(self, now: float) -> str:
        """For `status`: closed, open or half_open."""
        return self.guard.breaker(now)

    def failed(self, error: PeerError) -> None:
        """The peer did something that no call of ours ended with."""
        self.guard.note(Failure(error.failure), time.monotonic())
        self.blame(error)

    def blame(self, error: PeerError) -> None:
        """Keeps what went wrong for `status`."""
        self._trouble = error.what

    def absolve(self) -> None:
        """A pull ended well: what went wrong before is over."""
        self._trouble = ""

    def back(self) -> None:
        """Gossip hears the peer anew. Its breaker lets a probe pass, once blocks can come again.

        Not before the bulk connection stands: it dials by itself, and a probe that fails for the want
        of it would only double the time.
        """
        if self._return is None or self._return.done():
            self._return = asyncio.create_task(self._reconsider())

    async def _reconsider(self) -> None:
        try:
            async with timeout_of(self._limits.peer_connect_ms / 1000):
                while (state := self._bulk.get_state(try_to_connect=True)) is not _READY:
                    await self._bulk.wait_for_state_change(state)
        except asyncio.TimeoutError:
            return  # it is heard, and cannot be reached: one way only
        self.guard.back(time.monotonic())

    async def hello(
        self, request: peer_pb2.HelloRequest, timeout: float, *, patient: bool = False
    ) -> peer_pb2.HelloReply:
        """Says who we are, and hears who the peer is.

        Args:
            patient: waits for a connection, so that it is said as soon as there is one.

        Raises:
            PeerError: the peer did not answer, or not properly.
        """
        ticket = self._ticket(Cost(kind=Kind.HELLO))
        try:
            raw = _sent(request)
            answer = await self._control.unary_unary(HELLO_METHOD)(
                raw, timeout=timeout, wait_for_ready=patient
            )
        except grpc.aio.AioRpcError as error:
            explained = self._explained(error)
            if isinstance(explained, LateError) and self._control.get_state() is not _READY:
                explained = self._not_there(error)
            raise self._ended(ticket, explained) from error
        finally:
            ticket.done(time.monotonic())
        self.guard.heard(time.monotonic())
        self._unreachable = ""
        return parse(peer_pb2.HelloReply, _received(answer), self.name)

    async def catalog(
        self, request: peer_pb2.CatalogRequest, timeout: float
    ) -> AsyncGenerator[peer_pb2.CatalogPage, None]:
        """The pages of one answer.

        Raises:
            PeerError: the peer did not answer, or not properly.
        """
        ticket = self._ticket(Cost(kind=Kind.CATALOG, lane=request.fingerprint))
        call = self._control.unary_stream(CATALOG_METHOD)(_sent(request), timeout=timeout)
        try:
            async for raw in call:
                self.guard.heard(time.monotonic())
                size = len(raw)
                refusal = ticket.hold(GuardName.CATALOG_BYTES, size, time.monotonic())
                if refusal is not None:
                    self.guard.refuse(refusal.reason, time.monotonic())
                    limit = self._limits.peer_catalog_bytes
                    raise CatalogError(f"more than {limit} bytes of catalogs", where=self.name)
                if pause := ticket.spend(size, time.monotonic()):
                    await asyncio.sleep(min(pause, timeout))
                yield parse(peer_pb2.CatalogPage, _received(raw), self.name)
        except grpc.aio.AioRpcError as error:
            raise self._ended(ticket, self._explained(error)) from error
        finally:
            # A success or not: catalog answers that cannot be are told to `failed`.
            ticket.done(time.monotonic())
            call.cancel()

    async def pull(
        self, request: peer_pb2.PullRequest, timeout: float
    ) -> AsyncGenerator[bytes, None]:
        """The raw messages of one answer: see `federation.transfer.frames`. The caller has the ticket.

        Raises:
            PeerError: the peer did not answer, or not properly, or not in time.
        """
        call = self._bulk.unary_stream(PULL_METHOD)(
            _sent(request), timeout=timeout, metadata=inject()
        )
        stall = self._limits.peer_stall_ms / 1000
        if not self.guard.on(GuardName.STALL):
            stall = timeout
        try:
            while True:
                try:
                    async with timeout_of(stall):
                        raw = await call.read()
                except asyncio.TimeoutError:
                    self.guard.refuse(GuardName.STALL, time.monotonic())
                    raise StallError(f"nothing came for {stall:g} s", where=self.name) from None
                self.guard.heard(time.monotonic())
                if raw is grpc.aio.EOF:
                    return
                yield raw
        except grpc.aio.AioRpcError as error:
            raise self._explained(error) from error
        finally:
            call.cancel()

    async def close(self) -> None:
        """Closes the channels; calls on them end with an error."""
        for task in (self._diagnosis, self._return):
            if task is not None:
                task.cancel()
        await self._control.close(None)
        await self._bulk.close(None)

    def _ticket(self, cost: Cost) -> Ticket:
        answer = self.guard.admit(cost, time.monotonic())
        if isinstance(answer, Ticket):
            return answer
        kind = BreakerOpenError if answer.reason is GuardName.BREAKER else ShedError
        raise kind(
            f"left alone for now ({answer.reason.value})",
            retry_after=answer.retry_after,
            where=self.name,
        )

    @staticmethod
    def _ended(ticket: Ticket, error: PeerError) -> PeerError:
        """Ends the ticket by an error; the error, to be raised."""
        ticket.done(
            time.monotonic(),
            ok=False,
            kind_of_failure=Failure(error.failure),
            retry_after=error.retry_after if isinstance(error, ShedError) else 0.0,
        )
        return error

    def _channel(self, message_bytes_max: int) -> grpc.aio.Channel:
        options: list[tuple[str, Any]] = [
            *self._credentials.channel_options(self.name),
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
        return grpc.aio.secure_channel(
            self.address, self._credentials.channel_credentials(), options=options
        )

    def _explained(self, error: grpc.aio.AioRpcError) -> PeerError:
        code, details = error.code(), error.details() or ""
        if code is grpc.StatusCode.UNAVAILABLE:
            return self._not_there(error)
        if code is not grpc.StatusCode.DEADLINE_EXCEEDED:
            self.guard.heard(time.monotonic())  # an answer, of whatever kind
        wait = _retry_after(error, self._limits.peer_retry_after_max_ms)
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and wait is not None:
            return ShedError(f"it has no room: {details}", retry_after=wait, where=self.name)
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
            counters.add("moonmesh_oversized_messages_total")
            return OversizeError("it sent a message above the limit", where=self.name)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return LateError("no answer within the deadline", where=self.name)
        what = f"it refused: {details}" if details else f"it answered {code.name}"
        if code is grpc.StatusCode.PERMISSION_DENIED:
            self._unreachable = what
        return RefusedError(what, where=self.name)

    def _not_there(self, error: grpc.aio.AioRpcError) -> UnreachableError:
        self._diagnose()
        return UnreachableError(self._unreachable or error.details() or "", where=self.name)

    def _diagnose(self) -> None:
        """gRPC knows only that the socket closed; find out why, once in a while, beside everything."""
        now = time.monotonic()
        running = self._diagnosis is not None and not self._diagnosis.done()
        if running or now - self._diagnosed_at < DIAGNOSE_EVERY:
            return
        self._diagnosed_at = now

        async def find_out() -> None:
            self._unreachable = await diagnose(
                self.address, self._credentials, self.name, DIAGNOSE_SECONDS
            )

        self._diagnosis = asyncio.create_task(find_out())


def _retry_after(error: grpc.aio.AioRpcError, ms_max: int) -> float | None:
    """Seconds that the refusal asks us to wait, `ms_max` ms at most; None if it does not."""
    for name, value in error.trailing_metadata() or ():
        if name == RETRY_AFTER:
            text = value.decode("ascii", "replace") if isinstance(value, bytes) else value
            if text.isascii() and text.isdigit() and len(text) <= 9:
                return min(ms_max, int(text)) / 1000
    return None


def parse(kind: type[M], raw: bytes, where: str) -> M:
    """A message from a peer.

    Raises:
        PeerError: if the bytes are no such message.
    """
    message = kind()
    try:
        message.ParseFromString(raw)
    except DecodeError as error:
        raise PeerError(f"bytes that are no {kind.__name__}", where=where) from error
    return message


def _sent(message: Message) -> bytes:
    raw = message.SerializeToString()
    counters.add("moonmesh_metadata_sent_bytes_total", len(raw))
    return raw


def _received(raw: bytes) -> bytes:
    counters.add("moonmesh_metadata_received_bytes_total", len(raw))
    return raw
