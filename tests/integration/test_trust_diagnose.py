"""What `diagnose` says of a network and of servers that are no gateway."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from federation.trust.diagnose import _judge, diagnose
from tests.support.credentials import Made

TIMEOUT = 5.0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("federation"))


async def test_nothing_listens(made: Made) -> None:
    with socket.socket() as taken:  # bound and not listening: refuses, and nobody else gets it
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        said = await diagnose(address, made.of("west"), "east", TIMEOUT)
    assert said == (f"connection refused: nothing listens at {address} (is the peer's gateway up?)")


async def test_no_such_host(made: Made) -> None:
    said = await diagnose("no-such-host.invalid:7402", made.of("west"), "east", TIMEOUT)
    assert said == "host name 'no-such-host.invalid' cannot be resolved"


async def test_a_host_that_never_answers(made: Made) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = f"127.0.0.1:{full.getsockname()[1]}"
        # Connections beyond the backlog are dropped in silence, as by a firewall.
        fillers = [socket.socket() for _ in range(4)]
        try:
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(full.getsockname())
            started = time.monotonic()
            said = await diagnose(address, made.of("west"), "east", 0.6)
        finally:
            for filler in fillers:
                filler.close()
    assert said == f"timed out: {address} did not answer within 0.6 s (host down, or firewall?)"
    assert time.monotonic() - started < 2


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def plain(serve: Serve) -> AsyncIterator[str]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_server_that_does_not_speak_tls(made: Made) -> None:
    async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with plain(http) as address:
        said = await diagnose(address, made.of("west"), "east", TIMEOUT)
    assert said == f"{address} does not speak TLS (is it the gateway's port, port_base + 2?)"


async def test_a_server_that_hangs_up(made: Made) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.transport.abort()

    async with plain(hang_up) as address:
        said = await diagnose(address, made.of("west"), "east", TIMEOUT)
    assert said == f"{address} closed the connection within the TLS handshake"


async def test_a_server_that_accepts_and_is_silent(made: Made) -> None:
    done = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await done.wait()
        writer.close()

    async with plain(silent) as address:
        said = await diagnose(address, made.of("west"), "east", 0.6)
        done.set()
    assert said == f"timed out: {address} accepts connections but did not answer the TLS handshake"


async def test_a_refusal_that_was_here_before_we_looked(made: Made) -> None:
    """OpenSSL then has no session any more, and so no certificate of the other end."""

    class Ended:
        def getpeercert(self, binary_form: bool) -> bytes:
            raise ValueError("handshake not done yet")

    class Writer:
        def get_extra_info(self, name: str) -> Ended:
            return Ended()

    reader = asyncio.StreamReader()
    alert = ssl.SSLError(1, "alert")
    alert.reason = "TLSV1_ALERT_UNKNOWN_CA"
    reader.set_exception(alert)
    said = await _judge(reader, Writer(), made.of("west"), "east", TIMEOUT)  # type: ignore[arg-type]
    assert said.startswith("the peer refused our certificate (west.demo.moonmesh, valid until ")
    assert "it said 'unknown ca'" in said


async def test_a_server_that_says_why_it_refuses(made: Made) -> None:
    """Not gRPC's habit, but OpenSSL's: an alert, which arrives at the first read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.root / "east/cert.pem", made.root / "east/key.pem")
    context.load_verify_locations(made.root / "other/ca/ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED

    def refuse(listener: socket.socket) -> None:
        # Blocking, since asyncio drops the alert with the connection.
        accepted, _ = listener.accept()
        with accepted, pytest.raises(ssl.SSLError):
            context.wrap_socket(accepted, server_side=True)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(TIMEOUT)
        serving = asyncio.create_task(asyncio.to_thread(refuse, listener))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        said = await diagnose(address, made.of("west"), "east", TIMEOUT)
        await serving
    assert said.startswith("the peer refused our certificate (west.demo.moonmesh, valid until ")
    assert "it said 'unknown ca'" in said
