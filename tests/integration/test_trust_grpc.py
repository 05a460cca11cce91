"""Real mTLS between real gRPC endpoints: who gets in, and what is said of who does not."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from federation.errors import TrustError
from federation.peering import Membership, Peering, Sharing
from federation.peers.callers import Callers
from federation.peers.wire import HELLO_METHOD
from federation.trust.credentials import (
    Credentials,
    load_engine_credentials,
)
from federation.trust.diagnose import diagnose
from federation.trust.handshakes import UNKNOWN_TLS, RefusalLog, StderrWatch
from gossip.config import GossipConfig
from gossip.engine import GossipEngine, Receipt
from gossip.events import PeerUp, StatementRejected
from gossip.membership import PeerState
from gossip.statement import Reason
from moonmesh.v1 import peer_pb2
from tests.support.credentials import Made

TIMEOUT = 5.0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("federation"))


def gossip(credentials: Credentials, peering: Peering) -> GossipEngine:
    return GossipEngine(
        credentials.group,
        credentials.federation,
        credentials.signing_key,
        {peer.name: [key.public for key in peer.keys] for peer in peering.peers},
        epoch=1,
        boot_nonce=bytes(16),
        config=GossipConfig.test(),
        rng=random.Random(1),
        now=0.0,
    )


@dataclass
class East:
    """A server as a gateway is one: mTLS, then peering.toml, then the statement."""

    credentials: Credentials
    peering: Peering
    refusals: RefusalLog = field(default_factory=RefusalLog)
    port: int = 0

    def __post_init__(self) -> None:
        self.engine = gossip(self.credentials, self.peering)
        self.callers = Callers.of(Membership(self.peering, Sharing({}, {}), self.credentials))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def hello(self, request: peer_pb2.HelloRequest, context: Any) -> peer_pb2.HelloReply:
        try:
            peer = self.callers.identify(context.auth_context())
        except TrustError as error:
            self.refusals.record(error.where or "unknown", error.what, time.time())
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, error.what)
        if self.engine.receive(peer.name, request, 0.0) is Receipt.REJECTED:
            (event,) = [e for e in self.engine.events() if isinstance(e, StatementRejected)]
            self.refusals.record(peer.name, event.reason.value, time.time())
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, event.reason.value)
        return self.engine.reply_to(request)

    async def hellos(
        self, requests: AsyncIterator[peer_pb2.HelloRequest], context: Any
    ) -> AsyncIterator[peer_pb2.HelloReply]:
        async for request in requests:
            yield await self.hello(request, context)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[East]:
        server = grpc.aio.server()
        handler = grpc.stream_stream_rpc_method_handler(
            self.hellos,
            request_deserializer=peer_pb2.HelloRequest.FromString,
            response_serializer=peer_pb2.HelloReply.SerializeToString,
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("moonmesh.v1.Peer", {"Hello": handler}),)
        )
        self.port = server.add_secure_port("127.0.0.1:0", self.credentials.server_credentials())
        await server.start()
        try:
            yield self
        finally:
            await server.stop(0)


@pytest.fixture
async def east(made: Made) -> AsyncIterator[East]:
    async with East(made.of("east"), made.peering("east", "west")).serving() as server:
        yield server


async def call(
    address: str,
    credentials: grpc.ChannelCredentials,
    options: list[tuple[str, str]],
    request: peer_pb2.HelloRequest | None = None,
) -> peer_pb2.HelloReply:
    async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
        stub = channel.stream_stream(
            HELLO_METHOD,
            request_serializer=peer_pb2.HelloRequest.SerializeToString,
            response_deserializer=peer_pb2.HelloReply.FromString,
        )
        stream = stub(timeout=TIMEOUT)
        await stream.write(request or peer_pb2.HelloRequest())
        reply = await stream.read()
        assert isinstance(reply, peer_pb2.HelloReply)
        return reply


async def hello(
    east: East, credentials: Credentials, request: peer_pb2.HelloRequest | None = None
) -> peer_pb2.HelloReply:
    return await call(
        east.address,
        credentials.channel_credentials(),
        credentials.channel_options("east"),
        request,
    )


async def refused(what: Awaitable[object]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await what
    return caught.value


@contextlib.contextmanager
def recorded(reason: str, who: str = UNKNOWN_TLS) -> Iterator[Callable[[], Awaitable[None]]]:
    """Watches stderr; the yielded function waits for a refusal with `reason`."""
    log = RefusalLog()

    async def arrived() -> None:
        deadline = time.monotonic() + 5
        while not any(e.who == who and reason in e.reason for e in log.entries()):
            assert time.monotonic() < deadline, f"not recorded: {reason}; but {log.entries()}"
            await asyncio.sleep(0.02)

    with StderrWatch(log):
        yield arrived


async def test_peers_meet(made: Made, east: East) -> None:
    credentials = made.of("west")
    west = gossip(credentials, made.peering("west", "east"))
    (out,) = west.outbox()

    reply = await hello(east, credentials, out.hello)

    assert west.receive("east", reply, 0.0) is Receipt.ACCEPTED
    assert west.events() == [PeerUp("east")]
    assert east.engine.events() == [PeerUp("west")]
    assert east.engine.peer_state("west") is PeerState.ALIVE
    said = await diagnose(east.address, credentials, "east", TIMEOUT)
    assert "the TLS handshake with east succeeds (TLSv1.3" in said
    assert "not one of trust" in said


async def test_a_group_of_the_federation_that_is_no_peer(made: Made, east: East) -> None:
    error = await refused(hello(east, made.of("north")))
    assert error.code() is grpc.StatusCode.PERMISSION_DENIED
    assert error.details() == 'group "north" is not a peer in peering.toml'
    (entry,) = east.refusals.entries()
    assert (entry.who, entry.reason) == ("north", 'group "north" is not a peer in peering.toml')


async def test_a_peer_whose_statement_is_signed_by_another_key(made: Made, east: East) -> None:
    credentials = made.of("west")
    forger = GossipEngine(
        "west",
        "demo",
        Ed25519PrivateKey.generate(),
        {"east": []},
        epoch=1,
        boot_nonce=bytes(16),
        config=GossipConfig.test(),
        rng=random.Random(1),
        now=0.0,
    )
    (out,) = forger.outbox()
    error = await refused(hello(east, credentials, out.hello))
    assert error.details() == Reason.BAD_SIGNATURE.value
    (entry,) = east.refusals.entries()
    assert (entry.who, entry.reason) == ("west", "bad_signature")
    assert east.engine.peer_state("west") is PeerState.UNHEARD


async def test_a_client_by_another_ca(made: Made, east: East) -> None:
    good, other = made.of("west"), made.of("other/west")
    channel = grpc.ssl_channel_credentials(good.tls.ca_pem, other.tls.key_pem, other.tls.cert_pem)
    with recorded("its certificate is signed by another CA") as arrived:
        error = await refused(call(east.address, channel, good.channel_options("east")))
        await arrived()
    assert error.code() is grpc.StatusCode.UNAVAILABLE

    mixed = Credentials(
        "west",
        "demo",
        other.folder,
        type(good.tls)(
            good.tls.name,
            good.tls.ca_pem,
            other.tls.cert_pem,
            other.tls.key_pem,
            other.not_after,
        ),
        good.signing_key,
    )
    said = await diagnose(east.address, mixed, "east", TIMEOUT)
    assert said.startswith("the peer refused our certificate (west.demo.moonmesh): it is signed by")


async def test_a_server_by_another_ca(made: Made, east: East) -> None:
    other = made.of("other/west")
    error = await refused(hello(east, other))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    said = await diagnose(east.address, other, "east", TIMEOUT)
    assert said.startswith("the peer's certificate is signed by another CA (CN=demo federation CA)")
    assert "one `moonmesh peer init`" in said


async def test_an_expired_client(made: Made, east: East) -> None:
    old = made.of("old/west")
    with recorded("its certificate has expired") as arrived:
        error = await refused(hello(east, old))
        await arrived()
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    said = await diagnose(east.address, old, "east", TIMEOUT)
    assert said.startswith("the peer refused our certificate (west.demo.moonmesh): it has expired")
    assert old.not_after.strftime("%Y-%m-%d") in said


async def test_an_expired_server(made: Made) -> None:
    old, west = made.of("old/east"), made.of("west")
    async with East(old, made.peering("east", "west")).serving() as server:
        error = await refused(hello(server, west))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        said = await diagnose(server.address, west, "east", TIMEOUT)
    expired = old.not_after.strftime("%Y-%m-%d %H:%M UTC")
    assert said == f"the peer's certificate has expired on {expired}"


async def test_a_server_of_another_group(made: Made, east: East) -> None:
    west = made.of("west")
    with recorded("is for another name", who="north.demo.moonmesh") as arrived:
        error = await refused(
            call(east.address, west.channel_credentials(), west.channel_options("north"))
        )
        await arrived()
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    said = await diagnose(east.address, west, "north", TIMEOUT)
    assert said == (
        "the peer's certificate is for group east, not for group north of federation demo: "
        "is the address right?"
    )


async def test_a_client_without_a_certificate(made: Made, east: East) -> None:
    west = made.of("west")
    channel = grpc.ssl_channel_credentials(west.tls.ca_pem)
    with recorded("showed no certificate") as arrived:
        error = await refused(call(east.address, channel, west.channel_options("east")))
        await arrived()
    assert error.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_client_without_tls(made: Made, east: East) -> None:
    with recorded("did not speak TLS") as arrived:
        async with grpc.aio.insecure_channel(east.address) as channel:
            await refused(channel.unary_unary(HELLO_METHOD)(b"", timeout=TIMEOUT))
        await arrived()


async def test_engines_and_peers_do_not_mix(made: Made, east: East) -> None:
    """An engine's certificate is worth nothing to a peer, nor a peer's to the engines' endpoint."""
    engine = load_engine_credentials(made.root / "west", "west", "client")
    west = made.of("west")
    channel = grpc.ssl_channel_credentials(west.tls.ca_pem, engine.tls.key_pem, engine.tls.cert_pem)
    error = await refused(call(east.address, channel, west.channel_options("east")))
    assert error.code() is grpc.StatusCode.UNAVAILABLE


async def test_engines_of_the_group_alone_reach_its_endpoint_for_engines(made: Made) -> None:
    gateway = load_engine_credentials(made.root / "east", "east", "server")

    async def ask(request: bytes, context: Any) -> bytes:
        return str(gateway.is_engine(context.auth_context())).encode()

    server = grpc.aio.server()
    handlers = {"Ask": grpc.unary_unary_rpc_method_handler(ask)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", handlers),))
    port = server.add_secure_port("127.0.0.1:0", gateway.server_credentials())
    await server.start()
    try:
        for group, welcome in (("east", True), ("west", False)):
            engine = load_engine_credentials(made.root / group, group, "client")
            async with grpc.aio.secure_channel(
                f"127.0.0.1:{port}", engine.channel_credentials(), options=engine.channel_options()
            ) as channel:
                answer = channel.unary_unary("/test/Ask")(b"", timeout=TIMEOUT)
                if welcome:
                    assert await answer == b"True"
                else:
                    await refused(answer)
    finally:
        await server.stop(0)
