"""Connections to the server for peers that say nothing are closed in time, over real TCP and TLS."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator

import grpc
import pytest

from federation.peers import arrivals
from federation.timeouts import timeout
from federation.trust.credentials import CA, CERT, KEY
from tests.support.credentials import Made
from tests.support.wait import wait_for_async
from tests.support.wire import East, link_to, linked, pulled, serving

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes.fromhex("000000040000000000")
CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303")
"""The beginning of one, and no more."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("federation"))


def as_peer(made: Made) -> ssl.SSLContext:
    """TLS as west, whose certificate is good."""
    folder = made.root / "west"
    context = ssl.create_default_context(cafile=str(folder / CA))
    context.check_hostname = False
    context.load_cert_chain(folder / CERT, folder / KEY)
    context.set_alpn_protocols(["h2"])
    return context


@contextlib.asynccontextmanager
async def connected(
    address: str, tls: ssl.SSLContext | None, *said: bytes
) -> AsyncIterator[asyncio.StreamReader]:
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port), ssl=tls)
    for part in said:
        writer.write(part)
    try:
        yield reader
    finally:
        writer.close()


async def closed_after(reader: asyncio.StreamReader) -> float:
    """Seconds until the other end closes; whatever it says is read."""
    began = time.monotonic()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        async with timeout(10):
            while await reader.read(65_536):
                pass
    return time.monotonic() - began


@pytest.mark.parametrize(
    ("said", "secure"), [([], False), ([CLIENT_HELLO], False), ([], True), ([PREFACE], True)]
)
async def test_a_connection_that_is_not_made_in_time_is_closed(
    made: Made, said: list[bytes], secure: bool
) -> None:
    east = East(made, peer_handshake_ms=400)
    async with (
        serving(east, made) as address,
        connected(address, as_peer(made) if secure else None, *said) as reader,
    ):
        assert await closed_after(reader) < 5
        async with link_to(address, made, "west") as link:  # others are served
            assert await pulled(link, "absent") == 0


async def test_one_that_is_made_is_closed_when_nobody_uses_it(made: Made) -> None:
    east = East(made, peer_idle_ms=1000)
    async with linked(east, made) as link:
        assert await pulled(link, "absent") == 0
        states = [grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.TRANSIENT_FAILURE]
        await wait_for_async(
            lambda: link.gateways[0].bulk.channels[0].get_state() in states, 10, "it to be closed"
        )
        assert await pulled(link, "absent") == 0, "on another connection"


async def test_one_at_whose_other_end_nobody_answers_is_closed(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "PING_MS", 500)
    async with (
        serving(East(made, peer_handshake_ms=1000), made) as address,
        connected(address, as_peer(made), PREFACE, SETTINGS) as reader,
    ):
        assert 1.4 <= await closed_after(reader) < 8, "the connection itself is made"


async def test_one_whose_other_end_answers_pings_stays_open(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "PING_MS", 200)
    east = East(made, peer_handshake_ms=500)
    async with linked(east, made) as link:
        assert await pulled(link, "absent") == 0
        with pytest.raises(asyncio.TimeoutError):
            async with timeout(1.5):
                await (
                    link.gateways[0]
                    .bulk.channels[0]
                    .wait_for_state_change(grpc.ChannelConnectivity.READY)
                )
