"""A gateway's peer side and links to it, over real mTLS in this process, with Mooncake in memory."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import grpc.aio

from federation.catalog.offers import Offers
from federation.config import Limits
from federation.errors import PeerError
from federation.identity import Fingerprint, block_digest
from federation.keys.naming import Naming
from federation.limits.errors import ShedError
from federation.limits.guards import Guards
from federation.limits.names import Failure
from federation.limits.shedding import Shedding
from federation.limits.ticket import Cost, Ticket
from federation.peering import Membership, PeerConfig, Sharing
from federation.peers.arrivals import server_bounds
from federation.peers.callers import Callers
from federation.peers.link import PeerLink
from federation.peers.service import PeerService
from federation.transfer.frames import Block, Decoder
from federation.transfer.server import BlockServer
from federation.trust.handshakes import RefusalLog
from gossip.config import GossipConfig
from gossip.engine import GossipEngine, Receipt
from local_group.admin import Segment
from local_group.holdings import Change, Holdings
from local_group.outcome import Outcome, Status
from local_group.process_errors import AdminError
from local_group.store import ReadBatch
from moonmesh.v1 import peer_pb2
from tests.support.credentials import Made
from tests.support.wait import wait_for_async

FP = Fingerprint(b"f" * 16)
MIB = 1 << 20
DATA = bytes(MIB)


class Memory:
    """Mooncake in memory: the store's reads, and the master's two questions."""

    def __init__(self, pool: int) -> None:
        self.pool = pool
        self.size: int | None = None
        """Of every block, as the master says."""
        self.gate = asyncio.Event()
        self.gate.set()
        self.reads = 0
        self.gone: set[str] = set()
        """Stored keys that the master does not have."""
        self.master_fails = False
        self.outcome: Outcome | None = None
        """Of every block that is read, instead of its bytes."""

    async def read(self, keys: Sequence[str], sizes: Sequence[int], timeout: float) -> ReadBatch:
        self.reads += 1
        await self.gate.wait()
        if self.outcome is not None:
            return ReadBatch([self.outcome] * len(sizes))
        views: list[memoryview | None] = [memoryview(DATA)[:size] for size in sizes]
        return ReadBatch([Outcome(Status.HIT, size, size) for size in sizes], views)

    async def query(self, keys: Sequence[str]) -> dict[str, int | None]:
        if self.master_fails:
            raise AdminError("no answer")
        return dict.fromkeys((key for key in keys if key not in self.gone), self.size)

    async def segments(self) -> list[Segment]:
        return [Segment("s", "h:1", self.pool, 0, "OK"), Segment("t", "h:2", 1 << 40, 0, "LOST")]


class Hearing:
    """Hellos that are judged at once, with no process in between."""

    def __init__(self, engine: GossipEngine) -> None:
        self._engine = engine

    @property
    def silent(self) -> bool:
        return self._engine.greeting().message is None

    def receive(self, peer: str, hello: peer_pb2.HelloRequest, raw: bytes) -> bool:
        receipt = self._engine.receive(peer, hello, time.monotonic())
        return receipt is not Receipt.REJECTED

    def refusal(self, peer: str, hello: peer_pb2.HelloRequest) -> peer_pb2.HelloReply | None:
        newest = self._engine.signed_of(peer)
        if newest is None:
            return None
        reply = peer_pb2.HelloReply()
        newest.write(reply.yours)
        return reply

    def reply(self, hello: peer_pb2.HelloRequest) -> peer_pb2.HelloReply:
        return self._engine.reply_to(hello)


class East:
    """A gateway's peer side, for `west` and `north`."""

    def __init__(
        self,
        made: Made,
        pool: int = 1 << 40,
        *,
        unattested: bool = False,
        shedding: Shedding | None = None,
        **limits: Any,
    ) -> None:
        self.limits = Limits(**limits)
        self.told = peer_pb2.NamespacesReply()
        self.guards = Guards(self.limits, ["west", "north"], random.Random(1))
        self.memory = Memory(pool)
        self.credentials = made.of("east")
        self.holdings = Holdings(
            blocks_max=10_000,
            hop_limit=1,
            on_change=self.offer,
            unattested_ok=lambda fingerprint: unattested,
        )
        self.offers = Offers(
            log_id=b"l" * 16,
            entries_max=1024,
            namespaces=[FP],
            unattested=[FP] if unattested else [],
            changed=lambda fp: None,
        )
        peering = made.peering("east", "west", "north")
        sharing = Sharing({"west": frozenset({FP}), "north": frozenset({FP})}, {})
        self.lost = 0
        """Times that serves found most of what they looked for gone."""
        blocks = BlockServer(
            store=self.memory,
            master=self.memory,
            holdings=self.holdings,
            naming=Naming(()),
            limits=self.limits,
            lost=self._count_lost,
            shedding=shedding,
        )
        self.gossip = gossip(made, "east", "west", "north")
        self.service = PeerService(
            callers=Callers.of(Membership(peering, sharing, self.credentials)),
            hellos=Hearing(self.gossip),
            offers=self.offers,
            blocks=blocks,
            limits=self.limits,
            guards=self.guards,
            refusals=RefusalLog(),
            told=lambda caller: self.told,
        )
        self.blocks = blocks
        self.address = ""

    def _count_lost(self) -> None:
        self.lost += 1

    def offer(self, change: Change) -> None:
        self.offers.take(change)

    def hold(self, *keys: str, size: int = MIB) -> None:
        for key in keys:
            digest = block_digest(FP, key, memoryview(DATA)[:size])
            assert self.holdings.report(FP, key, size, digest, 0.0)

    def status(self, peer: str = "west") -> dict[str, Any]:
        return self.guards[peer].incoming.status(time.monotonic())


def gossip(made: Made, own: str, *peers: str) -> GossipEngine:
    credentials = made.of(own)
    return GossipEngine(
        own,
        "demo",
        credentials.signing_key,
        {p.name: [k.public for k in p.keys] for p in made.peering(own, *peers).peers},
        epoch=1,
        boot_nonce=bytes(16),
        config=GossipConfig.test(),
        rng=random.Random(1),
        now=time.monotonic(),
    )


@contextlib.asynccontextmanager
async def serving(east: East | grpc.GenericRpcHandler, made: Made) -> AsyncIterator[str]:
    options: list[tuple[str, Any]] = [("grpc.max_send_message_length", -1)]
    calls_max = None
    handlers = east.service.handlers() if isinstance(east, East) else east
    if isinstance(east, East):  # as `federation.endpoints` does
        calls_max, bounds = server_bounds(east.limits, east.service.peers)
        options += bounds
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=calls_max)
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_secure_port("127.0.0.1:0", made.of("east").server_credentials())
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@contextlib.asynccontextmanager
async def linked(
    east: East | grpc.GenericRpcHandler, made: Made, own: str = "west", **limits: Any
) -> AsyncIterator[PeerLink]:
    """`own`'s link to east, each in this process."""
    async with serving(east, made) as address, link_to(address, made, own, **limits) as link:
        yield link


@contextlib.asynccontextmanager
async def link_to(
    address: str | Sequence[str], made: Made, own: str, **limits: Any
) -> AsyncIterator[PeerLink]:
    """`own`'s link to east, whose gateway is, or whose gateways are, there."""
    addresses = (address,) if isinstance(address, str) else tuple(address)
    peer: PeerConfig = (
        made.peering(own, "east")
        .peers[0]
        .model_copy(update={"address": None, "addresses": addresses})
    )
    config = Limits(**limits)
    link = PeerLink(
        peer,
        made.of(own),
        config,
        guard=Guards(config, ["east"], random.Random(2))["east"].outgoing,
        alive=lambda now: True,
        epoch=lambda: 1,
    )
    try:
        yield link
    finally:
        await link.close()


@contextlib.asynccontextmanager
async def fixed_window(
    address: str, made: Made, own: str = "west"
) -> AsyncIterator[grpc.aio.Channel]:
    """A channel of `own`'s to east for calls that are not read: it takes what HTTP/2 begins with, no more.

    gRPC otherwise measures the line and widens its windows as it sees fit, also while nobody reads: it took
    between 8 and 77 MiB of a test's answers unread, and at times the error behind them.
    """
    credentials = made.of(own)
    options: list[tuple[str, Any]] = [
        *credentials.channel_options("east"),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_receive_message_length", 2 * MIB),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    async with grpc.aio.secure_channel(
        address, credentials.channel_credentials(), options=options
    ) as channel:
        yield channel


async def pulled(link: PeerLink, *keys: str, timeout: float = 5.0) -> int:
    """Pulls as the puller does, with a ticket; the blocks that came."""
    ticket = link.guard.admit(Cost(), time.monotonic())
    assert isinstance(ticket, Ticket)
    decoder, came = Decoder([MIB] * len(keys), 2 * MIB), 0
    try:
        request = peer_pb2.PullRequest(fingerprint=FP, keys=keys)
        async with contextlib.aclosing(link.pull(request, timeout)) as messages:
            async for message in messages:
                came += sum(isinstance(event, Block) for event in decoder.feed(message))
    except PeerError as error:
        error.came = came  # type: ignore[attr-defined]
        after = error.retry_after if isinstance(error, ShedError) else 0.0
        ticket.done(
            time.monotonic(),
            ok=False,
            kind_of_failure=Failure(error.failure),
            retry_after=after,
        )
        raise
    ticket.done(time.monotonic())
    return came


async def drained(answer: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in answer]


class Answers:
    """What a link is told of its hellos."""

    def __init__(self, link: PeerLink) -> None:
        self.link = link
        self.replies: list[peer_pb2.HelloReply] = []
        self.silences = 0
        link.on_answer = self.replies.append
        link.on_silence = self._silence

    def _silence(self) -> None:
        self.silences += 1

    async def to(
        self, hello: peer_pb2.HelloRequest, gateways: int = 1
    ) -> list[peer_pb2.HelloReply]:
        """Says a hello that asks for an answer; those of so many gateways."""
        del self.replies[:]
        asked = peer_pb2.HelloRequest(answer=True)
        asked.MergeFrom(hello)
        self.link.greet(asked)
        await wait_for_async(lambda: len(self.replies) >= gateways, 5, "the answers")
        return list(self.replies)


def plain_hello(made: Made, own: str = "west") -> bytes:
    """A hello as gossip says it."""
    west = gossip(made, own, "east")
    west.tick(time.monotonic(), 1)
    ((_, hello),) = west.outbox()
    return bytes(hello.SerializeToString())
