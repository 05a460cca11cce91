"""A peer that does not behave, and the guard of who asks it, over real mTLS."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from federation.catalog.wire import CatalogError
from federation.errors import PeerError
from federation.limits.errors import BreakerOpenError, ShedError, StallError
from federation.limits.names import Failure, GuardName
from federation.peers.link import PeerLink
from federation.peers.wire import RETRY_AFTER
from moonmesh.v1 import peer_pb2
from tests.support.credentials import Made
from tests.support.wait import wait_for_async
from tests.support.wire import FP, MIB, Answers, East, drained, link_to, linked, pulled


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("federation"))


def answering(**methods: Any) -> grpc.GenericRpcHandler:
    """A server of a peer's methods, each a plain handler."""
    return grpc.method_handlers_generic_handler("moonmesh.v1.Peer", methods)


async def test_a_stream_on_which_nothing_comes_is_ended(made: Made) -> None:
    async def hangs(raw: bytes, context: Any) -> AsyncIterator[bytes]:
        yield b"x" * 28
        await asyncio.Event().wait()

    handler = answering(Pull=grpc.unary_stream_rpc_method_handler(hangs))
    async with linked(handler, made, peer_stall_ms=100) as link:
        began = time.monotonic()
        with pytest.raises(StallError, match=r"nothing came for 0\.1 s"):
            await drained(link.pull(peer_pb2.PullRequest(fingerprint=FP, keys=["k"]), 30))
        assert time.monotonic() - began < 5
        assert link.guard.refusals == {GuardName.STALL: 1}


async def test_a_catalog_without_end_is_cut_off_and_is_a_breach(made: Made) -> None:
    pages = 0

    async def endless(raw: bytes, context: Any) -> AsyncIterator[bytes]:
        nonlocal pages
        while True:
            pages += 1
            yield peer_pb2.CatalogPage(
                snapshot=True, added=peer_pb2.Prints(gaps=bytes(512 << 10))
            ).SerializeToString()

    handler = answering(Catalog=grpc.unary_stream_rpc_method_handler(endless))
    async with linked(handler, made, peer_catalog_bytes=2 * MIB) as link:
        with pytest.raises(CatalogError, match="more than 2097152 bytes of catalogs"):
            await drained(link.catalog(peer_pb2.CatalogRequest(fingerprint=FP), 30))
        assert pages < 100
        assert link.guard.status(time.monotonic())["catalog_bytes"] == 0
        for _ in range(5):
            link.failed(CatalogError("as the sessions do"))
        assert not link.usable(time.monotonic())
        with pytest.raises(BreakerOpenError, match="breaker"):
            await drained(link.catalog(peer_pb2.CatalogRequest(fingerprint=FP), 30))


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("250", 0.25),
        ("0", 0.0),
        ("999999999", 7.5),
        ("9" * 5000, None),
        ("-5", None),
        ("soon", None),
        ("1e9", None),
        ("", None),
    ],
)
async def test_the_word_of_a_peer_when_to_come_back_is_taken_with_care(
    made: Made, value: str, seconds: float | None
) -> None:
    async def full(raw: bytes, context: grpc.aio.ServicerContext) -> None:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", ((RETRY_AFTER, value),))

    handler = answering(
        Pull=grpc.unary_stream_rpc_method_handler(full),
    )
    async with linked(handler, made, peer_retry_after_max_ms=7500) as link:
        with pytest.raises(PeerError) as caught:
            await pulled(link, "k")
        found = caught.value.retry_after if isinstance(caught.value, ShedError) else None
        assert found == seconds
        blamed = link.guard.status(time.monotonic())["failures"]
        assert blamed == ({"error": 1} if seconds is None else {"shed": 1})


async def test_what_went_wrong_with_a_pull_is_told_until_one_ends_well(made: Made) -> None:
    async with linked(answering(Hello=grpc.stream_stream_rpc_method_handler(well)), made) as link:
        answers = Answers(link)
        assert link.reason == "not yet connected"
        await answers.to(peer_pb2.HelloRequest())
        assert link.reason == ""
        link.blame(PeerError("the answer was cut short"))
        await answers.to(peer_pb2.HelloRequest())
        assert link.reason == "the answer was cut short", "a hello says nothing of blocks"
        link.absolve()
        assert link.reason == ""


def open_breaker(link: PeerLink) -> None:
    for _ in range(5):
        link.guard.note(Failure.ERROR, time.monotonic())
    assert link.guard.breaker(time.monotonic()) == "open"


async def test_a_peer_that_is_back_is_probed_at_once(made: Made) -> None:
    east = East(made)
    east.hold("a")
    async with linked(east, made, peer_breaker_open_ms=60_000) as link:
        open_breaker(link)
        assert not link.usable(time.monotonic())
        link.back()
        await wait_for_async(lambda: link.usable(time.monotonic()), 5, "a probe to be let pass")
        assert link.guard.breaker(time.monotonic()) == "half_open", (
            "once blocks can come, not closed"
        )
        assert await pulled(link, "a") == 1
        assert link.guard.breaker(time.monotonic()) == "closed"


async def test_a_peer_that_is_heard_and_cannot_be_reached_is_not_probed(made: Made) -> None:
    async with link_to("127.0.0.1:1", made, "west", peer_connect_ms=300) as link:
        open_breaker(link)
        link.back()
        assert link._return is not None
        await link._return
        assert link.guard.breaker(time.monotonic()) == "open"


async def test_every_answer_is_a_sign_of_life(made: Made) -> None:
    async def no(raw: bytes, context: grpc.aio.ServicerContext) -> None:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "its Mooncake does not answer")

    handler = answering(Pull=grpc.unary_stream_rpc_method_handler(no))
    async with linked(handler, made) as link:
        pulse = link.guard._parts.verdicts.pulse
        began = time.monotonic()
        with pytest.raises(PeerError, match="does not answer"):
            await pulled(link, "k")
        assert pulse._heard_at >= began
    async with link_to("127.0.0.1:1", made, "west") as link:
        with pytest.raises(PeerError):
            await pulled(link, "k")
        assert link.guard._parts.verdicts.pulse._heard_at < 0, "nobody said that"


async def well(hellos: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    """Answers each hello."""
    async for _ in hellos:
        yield peer_pb2.HelloReply().SerializeToString()


async def test_after_one_that_failed_a_hello_is_said_as_soon_as_there_is_a_connection(
    made: Made,
) -> None:
    handler = answering(Hello=grpc.stream_stream_rpc_method_handler(well))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with link_to(f"127.0.0.1:{port}", made, "west") as link:
        answers = Answers(link)
        link.greet(peer_pb2.HelloRequest())
        await wait_for_async(lambda: answers.silences == 1, 5, "it to fail")
        await wait_for_async(lambda: "refused" in link.reason, 5, "why it is not reached")
        link.greet(peer_pb2.HelloRequest())
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((handler,))
        server.add_secure_port(f"127.0.0.1:{port}", made.of("east").server_credentials())
        await server.start()
        await wait_for_async(lambda: len(answers.replies) == 1, 3, "the answer")
        await server.stop(0)
