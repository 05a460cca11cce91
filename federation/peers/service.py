"""What peers may ask of this group: hello, catalog, pull. Everything from them is untrusted.

Who asks is known from its certificate; what it may ask for, from peering.toml. Messages are taken as
raw bytes, so that their size is checked before they are parsed.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, NoReturn, Protocol, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from federation.catalog.offers import Offers
from federation.catalog.wire import CatalogError, pages, position_from_wire, position_to_wire
from federation.config import Limits
from federation.counters import counters
from federation.errors import TrustError
from federation.peering import Peering, Sharing
from federation.peers.link import CATALOG_METHOD, HELLO_METHOD, PULL_METHOD, M
from federation.telemetry import SPAN_SERVE_PULL, SpanKind, extract, span
from federation.timeouts import timeout
from federation.transfer.server import BlockServer, RequestError, check_request
from federation.trust.credentials import Credentials
from federation.trust.handshakes import RefusalLog
from moonmesh.v1 import peer_pb2

CATALOGS_PER_NAMESPACE = 2
"""Catalog questions open from one peer in one namespace: the one that waits, and one after a reconnect."""
OVERSIZE_READ_FACTOR = 2
"""A message up to this many times the limit is received, counted and refused by name; gRPC drops what
is larger before we see it."""

Context: TypeAlias = grpc.aio.ServicerContext


class Hellos(Protocol):
    """The part of gossip that faces peers."""

    def receive(self, peer: str, hello: peer_pb2.HelloRequest) -> bool:
        """Takes a hello. False: the peer is not believed."""

    def reply(self) -> peer_pb2.HelloReply:
        """This group's own newest statement, in a message that is the caller's."""


class PeerService:
    """The methods that a group serves to its peers.

    Args:
        refusals: where it is written down who was refused what.
    """

    def __init__(
        self,
        *,
        credentials: Credentials,
        peering: Peering,
        sharing: Sharing,
        hellos: Hellos,
        offers: Offers,
        blocks: BlockServer,
        limits: Limits,
        refusals: RefusalLog,
    ) -> None:
        self._credentials = credentials
        self._peering = peering
        self._sharing = sharing
        self._hellos = hellos
        self._offers = offers
        self._blocks = blocks
        self._limits = limits
        self._refusals = refusals
        self._moved: dict[bytes, asyncio.Event] = {}
        self._serving: Counter[str] = Counter()
        self._catalogs: Counter[tuple[str, bytes]] = Counter()

    @property
    def peers(self) -> int:
        """How many groups may ask."""
        return len(self._peering.peers)

    def handlers(self) -> grpc.GenericRpcHandler:
        """For `server.add_generic_rpc_handlers`."""
        methods = {
            HELLO_METHOD: grpc.unary_unary_rpc_method_handler(self.hello),
            CATALOG_METHOD: grpc.unary_stream_rpc_method_handler(self.catalog),
            PULL_METHOD: grpc.unary_stream_rpc_method_handler(self.pull),
        }
        return grpc.method_handlers_generic_handler(
            "moonmesh.v1.Peer", {path.rsplit("/", 1)[1]: h for path, h in methods.items()}
        )

    def moved(self, fingerprint: bytes) -> None:
        """The log of a namespace has moved: answer who waits for that."""
        event = self._moved.get(fingerprint)
        if event is not None:
            event.set()

    async def hello(self, raw: bytes, context: Context) -> bytes:
        """Takes a peer's statement, answers with ours."""
        peer = await self._peer(context)
        request = await self._parse(peer_pb2.HelloRequest, raw, peer, context)
        if not self._hellos.receive(peer, request):
            await self._refuse(
                context, peer, "your statement is not believed; see the log", record=False
            )
        reply = self._hellos.reply()
        for fingerprint in sorted(self._sharing.exports(peer)):
            log = self._offers.log(fingerprint)
            if log is not None:
                reply.positions.add(
                    fingerprint=fingerprint,
                    position=position_to_wire(log.position),
                    blocks=len(log),
                )
        return _counted(reply.SerializeToString())

    async def catalog(self, raw: bytes, context: Context) -> None:
        """What is new in one namespace; held until something is, or the asker's time is over."""
        peer = await self._peer(context)
        request = await self._parse(peer_pb2.CatalogRequest, raw, peer, context)
        log = self._offers.log(request.fingerprint)
        if log is None or request.fingerprint not in self._sharing.exports(peer):
            await self._refuse(context, peer, "a namespace that it may not import (catalog)")
        try:
            after = position_from_wire(request.after) if request.HasField("after") else None
        except CatalogError as error:
            await self._refuse(context, peer, error.what, grpc.StatusCode.INVALID_ARGUMENT)
        name = (peer, request.fingerprint)
        with self._one_of(self._catalogs, name, CATALOGS_PER_NAMESPACE) as room:
            if not room:
                await self._refuse(
                    context, peer, "too many catalog questions", grpc.StatusCode.RESOURCE_EXHAUSTED
                )
            if after == log.position:
                wait = min(request.wait_ms, self._limits.catalog_wait_ms) / 1000
                await self._wait_for_move(request.fingerprint, wait)
            if after is not None and after != log.position:
                # Gather what comes in the same moment: one fuller answer instead of many.
                await asyncio.sleep(self._limits.catalog_linger_ms / 1000)
            for page in pages(log.since(after), self._limits.catalog_page_entries):
                await context.write(_counted(page.SerializeToString()))

    async def pull(self, raw: bytes, context: Context) -> None:
        """Blocks, in chain order, as raw messages."""
        peer = await self._peer(context)
        request = await self._parse(peer_pb2.PullRequest, raw, peer, context)
        try:
            fingerprint, keys, sizes = check_request(request, self._limits)
        except RequestError as error:
            await self._refuse(context, peer, error.what, grpc.StatusCode.INVALID_ARGUMENT)
        if fingerprint not in self._sharing.exports(peer):
            await self._refuse(
                context, peer, f"namespace {fingerprint} (pull): it may not import it"
            )
        with (
            self._one_of(self._serving, peer, self._limits.serves_per_peer) as room,
            span(
                SPAN_SERVE_PULL,
                {"moonmesh.peer": peer, "moonmesh.keys": len(keys)},
                parent=extract(context.invocation_metadata()),
                kind=SpanKind.SERVER,
            ),
        ):
            if not room:
                counters.add("moonmesh_serves_shed_total")
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many pulls at once")
            async with aclosing(self._blocks.serve(fingerprint, keys, sizes)) as messages:
                async for message in messages:
                    await context.write(message)

    async def _wait_for_move(self, fingerprint: bytes, seconds: float) -> None:
        event = self._moved.get(fingerprint)
        if event is None or event.is_set():
            event = self._moved[fingerprint] = asyncio.Event()
        try:
            async with timeout(seconds):
                await event.wait()
        except asyncio.TimeoutError:
            return

    async def _peer(self, context: Context) -> str:
        """The group that asks, by its certificate; one that is no peer of ours is refused."""
        try:
            return self._peering.caller(self._credentials, context.auth_context()).name
        except TrustError as error:
            await self._refuse(context, error.where or "unknown", error.what)

    async def _parse(self, kind: Callable[[], M], raw: bytes, peer: str, context: Context) -> M:
        limit = self._limits.control_message_bytes_max
        if len(raw) > limit:
            counters.add("moonmesh_oversized_messages_total")
            await self._refuse(
                context,
                peer,
                f"a message above the limit of {limit} bytes",
                grpc.StatusCode.RESOURCE_EXHAUSTED,
            )
        message = kind()
        try:
            message.ParseFromString(raw)
        except DecodeError:
            await self._refuse(
                context, peer, "bytes that are no message", grpc.StatusCode.INVALID_ARGUMENT
            )
        return message

    async def _refuse(
        self,
        context: Context,
        who: str,
        why: str,
        code: grpc.StatusCode = grpc.StatusCode.PERMISSION_DENIED,
        *,
        record: bool = True,
    ) -> NoReturn:
        counters.add("moonmesh_refused_requests_total")
        if record:
            self._refusals.refuse(who, why, time.time())
        await context.abort(code, why)
        raise AssertionError("abort raises")

    @contextmanager
    def _one_of(self, counts: Counter[Any], name: object, limit: int) -> Iterator[bool]:
        """Holds one of `limit` places for `name`; False inside where all are taken."""
        if counts[name] >= limit:
            yield False
            return
        counts[name] += 1
        try:
            yield True
        finally:
            counts[name] -= 1
            if not counts[name]:
                del counts[name]


def _counted(raw: bytes) -> bytes:
    counters.add("moonmesh_metadata_sent_bytes_total", len(raw))
    return raw
