"""A peer that does not behave, and the guard of who asks it, over real mTLS."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from federation.catalog.wire import CatalogError
from federation.errors import PeerError
from federation.limits.errors import ShedError, StallError
from federation.limits.guard import RETRY_AFTER_MAX
from federation.limits.names import GuardName
from federation.peers.link import RETRY_AFTER
from moonmesh.v1 import peer_pb2
from tests.support.credentials import Made
from tests.support.wire import FP, MIB, drained, linked, pulled


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
            yield peer_pb2.CatalogPage(snapshot=True, added=bytes(512 << 10)).SerializeToString()

    handler = answering(Catalog=grpc.unary_stream_rpc_method_handler(endless))
    async with linked(handler, made, peer_catalog_bytes=2 * MIB) as link:
        with pytest.raises(CatalogError, match="more than 2097152 bytes of catalogs"):
            await drained(link.catalog(peer_pb2.CatalogRequest(fingerprint=FP), 30))
        assert pages < 100
        assert link.guard.status(time.monotonic())["catalog_bytes"] == 0
        for _ in range(5):
            link.failed(CatalogError("as the sessions do"))
        assert not link.usable(time.monotonic())
        with pytest.raises(ShedError, match="breaker"):
            await drained(link.catalog(peer_pb2.CatalogRequest(fingerprint=FP), 30))


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("250", 0.25),
        ("0", 0.0),
        ("999999999", RETRY_AFTER_MAX),
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
        Hello=grpc.unary_unary_rpc_method_handler(full),
        Pull=grpc.unary_stream_rpc_method_handler(full),
    )
    async with linked(handler, made) as link:
        with pytest.raises(PeerError) as caught:
            await pulled(link, "k")
        found = caught.value.retry_after if isinstance(caught.value, ShedError) else None
        assert found == seconds
        blamed = link.guard.status(time.monotonic())["failures"]
        assert blamed == ({"error": 1} if seconds is None else {"shed": 1})
