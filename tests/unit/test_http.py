"""GETs on connections that are kept, against a server that answers byte for byte what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from local_group.http import HEAD_BYTES_MAX, IDLE_MAX, Http, HttpError, SilenceError
from tests.support.wait import wait_for_async

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
HUNG_UP = b""


class Server:
    """Gives each question the next answer, and hangs up after an empty one."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.last = False
        """It hangs up after each answer, without a word of it."""
        self.hangs = False
        self.asked: list[bytes] = []
        self.connections = 0
        self.closed = 0
        self.url = ""

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                self.asked.append(await reader.readuntil(b"\r\n\r\n"))
                answer = self.answers.pop(0) if self.answers else OK
                writer.write(answer)
                if self.hangs:
                    await reader.read()
                if self.last or not answer:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.closed += 1
            writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with Server() as made:
        yield made


@pytest.fixture
async def http(server: Server) -> AsyncIterator[Http]:
    made = Http(server.url)
    yield made
    await made.close()


async def ask(http: Http, path: str = "/", **options: float) -> tuple[int, bytes]:
    told: list[int] = []
    body = bytearray()
    await http.get(path, body.extend, told.append, **options)  # type: ignore[arg-type]
    (status,) = told
    return status, bytes(body)


async def test_questions_one_after_the_other_are_on_one_connection(
    server: Server, http: Http
) -> None:
    for path in ("/a?b=%20c", "/d"):
        assert await ask(http, path) == (200, b"hello")
    assert server.connections == 1
    assert [each.split(b"\r\n")[0] for each in server.asked] == [
        b"GET /a?b=%20c HTTP/1.1",
        b"GET /d HTTP/1.1",
    ]
    assert b"\r\nHost: " + server.url.removeprefix("http://").encode() in server.asked[0]


async def test_of_many_at_once_so_many_connections_are_kept(server: Server, http: Http) -> None:
    await asyncio.gather(*(ask(http) for _ in range(IDLE_MAX + 4)))
    assert server.connections == IDLE_MAX + 4
    await wait_for_async(lambda: server.closed == 4, 5, "them to be closed")
    assert len(http._idle) == IDLE_MAX
    await http.close()
    await wait_for_async(lambda: server.closed == IDLE_MAX + 4, 5, "them to be closed")


async def test_a_connection_that_was_closed_meanwhile_is_replaced(
    server: Server, http: Http
) -> None:
    server.last = True
    for _ in range(3):
        assert await ask(http) == (200, b"hello")
        await asyncio.sleep(0)
    assert server.connections == 3
    server.answers = [HUNG_UP] * 2
    with pytest.raises(HttpError, match="closed without an answer"):
        await ask(http)


@pytest.mark.parametrize(
    ("answer", "body", "kept"),
    [
        (b"HTTP/1.1 503 No\r\ncontent-length:2\r\n\r\nno", b"no", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"", True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi", b"hi", False),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"3\r\nabc\r\n10;x=y\r\n0123456789abcdef\r\n0\r\nx: y\r\n\r\n",
            b"abc0123456789abcdef",
            True,
        ),
    ],
)
async def test_answers_are_read_to_their_end(
    server: Server, http: Http, answer: bytes, body: bytes, kept: bool
) -> None:
    server.answers = [answer]
    assert await ask(http, part=4) == (int(answer[9:12]), body)
    assert len(http._idle) == kept
    assert await ask(http) == (200, b"hello")


async def test_one_without_a_length_ends_with_its_connection(server: Server, http: Http) -> None:
    server.answers, server.last = [b"HTTP/1.0 200 OK\r\n\r\nall of it"], True
    assert await ask(http) == (200, b"all of it")
    assert http._idle == []


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"SSH-2.0-x\r\n\r\n", "no answer of HTTP"),
        (b"HTTP/1.1 OK\r\n\r\n", "invalid literal"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "a body of -1 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", "4 bytes before its end"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nz\r\n", "invalid literal"),
        (b"HTTP/1.1 200 OK\r\nx: " + bytes(2 * HEAD_BYTES_MAX), "limit"),
        (b"HTTP/1.1 200 OK\r\n", "bytes read"),
    ],
)
async def test_what_is_no_answer_is_an_error_and_its_connection_is_not_used_again(
    server: Server, http: Http, answer: bytes, says: str
) -> None:
    server.answers, server.last = [answer], True
    with pytest.raises(HttpError, match=says):
        await ask(http)
    assert http._idle == []


async def test_nobody_there_is_an_error() -> None:
    with pytest.raises(HttpError):
        await ask(Http("http://127.0.0.1:1"))


async def test_silence_ends_a_question_and_what_is_cancelled_leaves_no_connection(
    server: Server, http: Http
) -> None:
    server.hangs = True
    server.answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhell"] * 2
    with pytest.raises(SilenceError, match=r"nothing came for 0\.1 s"):
        await ask(http, silence=0.1)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(ask(http), 0.1)
    assert http._idle == []
    await wait_for_async(lambda: server.closed == 2, 5, "them to be closed")
