"""What peers may ask of this group: hello, catalog, pull. Everything from them is untrusted.

Who asks is known from its certificate; what it may ask for, from peering.toml. Messages are taken as
raw bytes, so that their size is checked before they are parsed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from federation.catalog.offers import Offers
from federation.catalog.wire import CatalogError, position_from_wire, position_to_wire
from federation.config import Limits
from federation.counters import counters
from federation.errors import TrustError
from federation.identity import Fingerprint
from federation.interruptible import Interruptible, interruptible
from federation.limits.errors import ShedError, StallError
from federation.limits.guards import Guards
from federation.limits.names import Failure, GuardName, Kind
from federation.limits.orders import SAID, Order
from federation.peers.arrivals import Arrivals, Method
from federation.peers.asking import Told
from federation.peers.call import Call, Context, OpenCalls, Writing, refuse
from federation.peers.callers import Caller, Callers
from federation.peers.gossip_config import HELLO_BYTES_MAX
from federation.peers.hearing import Hellos
from federation.peers.wire import CATALOG_METHOD, HELLO_METHOD, NAMESPACES_METHOD, PULL_METHOD, M
from federation.telemetry import SPAN_SERVE_PULL, SpanKind, extract, span
from federation.timeouts import timeout, timeout_at
from federation.transfer.allowance import Credit
from federation.transfer.checks import RequestError, check_request
from federation.transfer.fair import PullClass
from federation.transfer.server import BlockServer, UnwellError
from federation.trust.handshakes import RefusalLog
from moonmesh.v1 import peer_pb2

OVERSIZE_READ_FACTOR = 2
"""A message up to this many times the limit is received, counted and refused by name; gRPC drops what
is larger before we see it."""

MORE_BYTES_MAX = 64
"""Of a message that says how much more of an answer may be sent."""

SILENT = "this gateway does not speak for its group now: ask another gateway of the group"
"""What catalog questions are refused with, as FAILED_PRECONDITION, where that is so."""


class PeerService:
    """The methods that a group serves to its peers.

    Args:
        callers: who may ask, and for what.
        guards: of all peers; what they refuse is refused here, whoever asks.
        refusals: where it is written down who was refused what.
        told: the namespaces that a caller is to share with this group, as it is told them.
        worker: which of several serving processes this is, as metadata of each answer to a pull.
    """

    def __init__(
        self,
        *,
        callers: Callers,
        hellos: Hellos,
        offers: Offers,
        blocks: BlockServer,
        limits: Limits,
        guards: Guards,
        refusals: RefusalLog,
        told: Callable[[Caller], peer_pb2.NamespacesReply],
        worker: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self._callers = callers
        self._told = told
        self._worker = worker
        self._hellos = hellos
        self._offers = offers
        self._blocks = blocks
        self._limits = limits
        self._refusals = refusals
        self._guards = guards
        self._moved: dict[bytes, asyncio.Event] = {}
        self._choosy: set[tuple[str, bytes]] = set()
        """Peers and namespaces of which they take attested blocks alone, by their last question."""
        self._greeted: dict[str, list[Interruptible]] = {}
        self._calls = OpenCalls()
        self._leaving = False
        blocks.use(guards)

    @property
    def peers(self) -> int:
        """How many groups may ask."""
        return len(self._callers)

    def handlers(self) -> grpc.GenericRpcHandler:
        """For `server.add_generic_rpc_handlers`."""
        arrivals = Arrivals(self._peer, self._limits)
        methods: dict[str, Method] = {
            HELLO_METHOD: self.hello,
            CATALOG_METHOD: self.catalog,
            PULL_METHOD: self.pull,
            NAMESPACES_METHOD: self.namespaces,
        }
        return grpc.method_handlers_generic_handler(
            "moonmesh.v1.Peer",
            {path.rsplit("/", 1)[1]: arrivals.handler(m) for path, m in methods.items()},
        )

    def moved(self, fingerprint: bytes) -> None:
        """The log of a namespace has moved: answer who waits for that."""
        event = self._moved.get(fingerprint)
        if event is not None:
            event.set()

    def leave(self) -> None:
        """Answers who waits for news, now and from now on: to be called before the server is stopped.

        Its grace is for calls that get somewhere, and would be used up by questions that only wait.
        """
        self._leaving = True
        self.wake()
        for streams in self._greeted.values():
            for stream in streams:
                stream.interrupt()

    def wake(self) -> None:
        """Answers who waits for news with what there is: nothing new, or that this gateway is silent."""
        for event in self._moved.values():
            event.set()

    def ordered(self, orders: Mapping[str, Order]) -> None:
        """An operator has ordered what holds for each peer; what is under way ends, or is finished."""
        for peer, order in orders.items():
            guard = self._guards[peer].incoming
            guard.order = order
            if guard.on(GuardName.SWITCH) and order is not Order.ON:
                self._calls.end(peer, Kind.CATALOG)
                if order is not Order.DRAINED:
                    self._calls.end(peer, Kind.PULL)

    async def hello(self, raw: bytes, context: Context) -> None:
        """Takes what a peer says, hello after hello, until it ends the stream or does what it may not.

        Each is answered that asks for it, and where there is news. Of more streams of one peer than it may
        have the oldest is ended: it is a gateway's that is gone, or the peer opens them without need.
        """
        peer = await self._peer(context)
        async with self._call(peer, Kind.HELLO, context) as call:
            streams = self._greeted.setdefault(peer, [])
            if len(streams) >= self._limits.peer_hello_streams:
                streams[0].interrupt()
                del streams[0]
            with interruptible() as stream:
                streams.append(stream)
                try:
                    await self._hellos_of(peer, raw, call, context)
                finally:
                    if stream in streams:
                        streams.remove(stream)

    async def _hellos_of(self, peer: str, raw: bytes, call: Call, context: Context) -> None:
        told = Told()
        while raw is not grpc.aio.EOF and not self._leaving:
            hello = await self._parse(peer_pb2.HelloRequest, raw, call, HELLO_BYTES_MAX)
            if not self._hellos.receive(peer, hello, raw):
                if (past := self._hellos.refusal(peer, hello)) is not None:
                    await self._write_reply(call, _counted(past.SerializeToString()))
                await call.refuse(
                    "your statement is not believed; the log here says why", record=False
                )
            reply = self._hellos.reply(hello)
            reply.refuses = SAID[call.guard.order]
            positions = () if reply.silent or reply.refuses else self._positions(peer)
            if told.is_due(hello, reply, positions):
                reply.positions.extend(positions)
                await self._write_reply(call, _counted(reply.SerializeToString()))
            raw = await context.read()
            if raw is not grpc.aio.EOF:
                await call.go_on()

    async def _write_reply(self, call: Call, raw: bytes) -> None:
        try:
            await call.write(raw, paid=True)
        except StallError as error:
            await call.refuse(error.what, grpc.StatusCode.DEADLINE_EXCEEDED, record=False)

    def _positions(self, peer: str) -> Sequence[peer_pb2.NamespacePosition]:
        """Where the logs stand that it may import.

        Only of a gateway that speaks: the logs of another are not the group's, and lack what it holds.
        """
        logs = (
            (name, self._offers.log(name, (peer, name) not in self._choosy))
            for name in sorted(self._callers[peer].exported)
        )
        return [
            peer_pb2.NamespacePosition(
                fingerprint=name, position=position_to_wire(log.position), blocks=len(log)
            )
            for name, log in logs
            if log is not None
        ]

    async def catalog(self, raw: bytes, context: Context) -> None:
        """What is new in one namespace; held until something is, or the asker's time is over."""
        peer = await self._peer(context)
        async with self._call(peer, Kind.CATALOG, context) as call:
            request = await self._parse(peer_pb2.CatalogRequest, raw, call)
            fingerprint = request.fingerprint
            log = self._offers.log(fingerprint, request.unattested)
            answers = self._offers.answers(fingerprint, request.unattested)
            if log is None or answers is None or fingerprint not in self._callers[peer].exported:
                await call.refuse("a namespace that it may not import (catalog)")
            try:
                after = position_from_wire(request.after) if request.HasField("after") else None
            except CatalogError as error:
                await call.refuse(error.what, grpc.StatusCode.INVALID_ARGUMENT, Failure.PROTOCOL)
            await self._unless_silent(call)
            change = self._choosy.discard if request.unattested else self._choosy.add
            change((peer, fingerprint))
            now = time.monotonic()
            await call.shed_if(call.ticket.hold(GuardName.CATALOGS, 1, now, fingerprint))
            if after == log.position:
                wait = min(request.wait_ms, self._limits.catalog_wait_ms) / 1000
                await self._wait_for_move(fingerprint, wait)
                await self._unless_silent(call)
            if after is not None and after != log.position:
                # Gather what comes in the same moment: one fuller answer instead of many.
                await asyncio.sleep(self._limits.catalog_linger_ms / 1000)
            # Paid before it is made: making a snapshot is what it costs.
            size = log.bytes_since(after)
            await call.shed_if(call.ticket.pay(size, time.monotonic()))
            try:
                for page in answers.since(after):
                    await call.write(_counted(page), paid=True)
                    await asyncio.sleep(0)  # one page at a time between what others ask
            except StallError as error:
                # The answer is no longer kept for a peer that does not read it.
                code = grpc.StatusCode.DEADLINE_EXCEEDED
                await call.refuse(error.what, code, record=False)

    async def pull(self, raw: bytes, context: Context) -> None:
        """Blocks, in chain order, as raw messages."""
        peer = await self._peer(context)
        async with self._call(peer, Kind.PULL, context) as call:
            request = await self._parse(peer_pb2.PullRequest, raw, call)
            try:
                fingerprint, keys, sizes = check_request(request, self._limits)
            except RequestError as error:
                # Limits may differ between groups: only what cannot be is held against the peer.
                how = Failure.PROTOCOL if error.refusal == "malformed" else Failure.OURS
                await call.refuse(error.what, grpc.StatusCode.INVALID_ARGUMENT, how)
            if fingerprint not in self._callers[peer].exported:
                await call.refuse(f"namespace {fingerprint} (pull): it may not import it")
            if self._worker:
                await context.send_initial_metadata(self._worker)
            with span(
                SPAN_SERVE_PULL,
                {"moonmesh.peer": peer, "moonmesh.keys": len(keys)},
                parent=extract(context.invocation_metadata()),
                kind=SpanKind.SERVER,
            ):
                try:
                    await self._serve(call, request, fingerprint, keys, sizes)
                except ShedError as error:
                    await call.shed(error.what, error.retry_after)
                except UnwellError as error:
                    code = grpc.StatusCode.FAILED_PRECONDITION
                    await call.refuse(error.what, code, record=False)

    async def namespaces(self, raw: bytes, context: Context) -> bytes:
        """What this group shares with the peer, and how it understands each of them: for people."""
        peer = await self._peer(context)
        async with self._call(peer, Kind.CATALOG, context) as call:
            await self._parse(peer_pb2.NamespacesRequest, raw, call)
            reply = self._told(self._callers[peer])
            await call.shed_if(call.ticket.pay(reply.ByteSize(), time.monotonic()))
            return _counted(reply.SerializeToString())

    async def _serve(
        self,
        call: Call,
        request: peer_pb2.PullRequest,
        fingerprint: Fingerprint,
        keys: Sequence[str],
        sizes: Sequence[int],
    ) -> None:
        seconds = self._limits.pull_timeout_ms / 1000
        until = asyncio.get_running_loop().time() + seconds
        credit = Credit(request.credit)
        blocks = self._blocks.serve(
            fingerprint,
            keys,
            sizes,
            call.guard,
            call.ticket,
            until,
            unattested=request.unattested,
            pull_class=PullClass.told(request.pull_class),
            message_bytes=request.credit,
            credit=credit.left,
        )
        try:
            async with timeout_at(until), aclosing(blocks) as messages, Writing(call) as writing:
                async for message in messages:
                    while credit.spent:
                        await writing.done()
                        more = await self._more(call)
                        if more is None:
                            return  # it has gone, or does without the rest
                        credit.add(more)
                    credit.send(len(message))
                    await writing.write(message)
                await writing.done()
            return
        except asyncio.TimeoutError:
            why = f"not done in {seconds:g} s"
        except StallError as error:
            why = error.what
        # The window has been given back by now; the error may have to wait until the peer reads.
        await call.refuse(why, grpc.StatusCode.DEADLINE_EXCEEDED, record=False)

    async def _more(self, call: Call) -> peer_pb2.PullMore | None:
        """What the peer lets be sent beyond what it did; None if it says nothing any more.

        Raises:
            StallError: nothing. What is held for its stream is to be given back.
        """
        raw = await call.read()
        if raw is None:
            return None
        return await self._parse(peer_pb2.PullMore, raw, call, MORE_BYTES_MAX)

    async def _unless_silent(self, call: Call) -> None:
        if self._hellos.silent:
            await call.refuse(SILENT, grpc.StatusCode.FAILED_PRECONDITION, record=False)

    def _call(self, peer: str, kind: Kind, context: Context) -> Call:
        return Call(
            peer,
            self._guards[peer].incoming,
            kind,
            context,
            stall=self._limits.peer_stall_ms / 1000,
            refusals=self._refusals,
            calls=self._calls,
        )

    async def _wait_for_move(self, fingerprint: bytes, seconds: float) -> None:
        if self._leaving:
            return
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
            return self._callers.identify(context.auth_context()).name
        except TrustError as error:
            await refuse(self._refusals, context, error.where or "unknown", error.what)

    async def _parse(
        self, kind: Callable[[], M], raw: bytes, call: Call, bytes_max: float = float("inf")
    ) -> M:
        limit = min(bytes_max, self._limits.control_message_bytes_max)
        if len(raw) > limit:
            counters.add("moonmesh_oversized_messages_total")
            await call.refuse(
                f"a message above the limit of {limit} bytes",
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                Failure.PROTOCOL,
            )
        message = kind()
        try:
            message.ParseFromString(raw)
        except DecodeError:
            await call.refuse(
                "bytes that are no message", grpc.StatusCode.INVALID_ARGUMENT, Failure.PROTOCOL
            )
        return message


def _counted(raw: bytes) -> bytes:
    counters.add("moonmesh_metadata_sent_bytes_total", len(raw))
    return raw
