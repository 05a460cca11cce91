"""GETs of HTTP/1.1 from one server of the group's own host or network, on connections that are kept.

A general client costs each process a fifth of its start (it makes two TLS contexts when it is loaded, and
nothing here is asked over TLS), and each question more than the answer is worth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Final
from urllib.parse import urlsplit

HEAD_BYTES_MAX: Final = 1 << 16
"""Of an answer: its status and headers, or the line before a chunk."""
IDLE_MAX: Final = 8
"""Connections that are kept while nothing is asked."""
HTTP_PORT: Final = 80


class HttpError(Exception):
    """No answer, or none that can be read."""


class SilenceError(HttpError):
    """Nothing came for as long as may be."""


class Http:
    """One server; bound to the event loop that first uses it.

    Args:
        url: `http://host:port`.
    """

    def __init__(self, url: str) -> None:
        found = urlsplit(url)
        self._host = found.hostname or ""
        self._port = found.port or HTTP_PORT
        self._at = found.netloc
        self._idle: list[_Connection] = []
        self._closed = False

    def __repr__(self) -> str:
        return f"Http({self._at}, {len(self._idle)} idle)"

    async def get(
        self,
        path: str,
        feed: Callable[[bytes], None],
        check: Callable[[int], None] = lambda status: None,
        *,
        part: int = 1 << 18,
        silence: float | None = None,
    ) -> None:
        """One question. A connection that its server has closed meanwhile is replaced by a new one.

        Args:
            path: quoted, with its query.
            feed: told the answer's body as it comes, at most `part` bytes at a time; other tasks run between.
            check: told the status before that; what it raises ends the question.
            silence: seconds in which something of the answer has to come; None for ever.

        Raises:
            HttpError: there is no answer, or it cannot be read.
        """
        while True:
            kept = self._idle.pop() if self._idle else None
            connection = kept or _Connection(silence)
            connection.silence = silence
            try:
                await self._ask(connection, path, feed, check, part)
            except _StaleError:
                connection.close()
                if kept is None:
                    raise HttpError("the connection was closed without an answer") from None
                continue
            except (OSError, EOFError, asyncio.LimitOverrunError, ValueError) as error:
                connection.close()
                raise HttpError(str(error) or type(error).__name__) from error
            except BaseException:
                connection.close()
                raise
            break
        if connection.lasts and not self._closed and len(self._idle) < IDLE_MAX:
            self._idle.append(connection)
        else:
            connection.close()

    async def close(self) -> None:
        """Closes what is idle, and the rest when its answer is over."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()
        await asyncio.sleep(0)  # in which the loop closes them

    async def _ask(
        self,
        connection: _Connection,
        path: str,
        feed: Callable[[bytes], None],
        check: Callable[[int], None],
        part: int,
    ) -> None:
        if connection.reader is None:
            await connection.open(self._host, self._port)
        connection.say(f"GET {path} HTTP/1.1\r\nHost: {self._at}\r\nAccept: */*\r\n\r\n")
        status, headers = _head(await connection.until(b"\r\n\r\n", first=True))
        check(status)
        connection.lasts = "close" not in headers.get("connection", "").lower()
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int((await connection.until(b"\r\n")).split(b";")[0], 16):
                await _body(connection, size, feed, part)
                await connection.until(b"\r\n")
            while await connection.until(b"\r\n") != b"\r\n":
                pass  # trailers
        elif "content-length" in headers:
            await _body(connection, int(headers["content-length"]), feed, part)
        else:
            connection.lasts = False
            while data := await connection.some(part):
                feed(data)
                await asyncio.sleep(0)


class _StaleError(Exception):
    """The connection ended before the first byte of an answer."""


class _Connection:
    """One, from before it is made.

    Attributes:
        silence: seconds in which something has to come.
        lasts: it can be asked again.
    """

    def __init__(self, silence: float | None) -> None:
        self.silence = silence
        self.lasts = True
        self.reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._gave_up = False

    async def open(self, host: str, port: int) -> None:
        self.reader, self._writer = await asyncio.open_connection(host, port, limit=HEAD_BYTES_MAX)

    def say(self, head: str) -> None:
        assert self._writer is not None
        self._writer.write(head.encode("ascii"))

    async def until(self, separator: bytes, first: bool = False) -> bytes:
        """All up to and with the separator.

        Raises:
            _StaleError: `first`, and nothing at all came before the end.
        """
        assert self.reader is not None
        try:
            return await self._in_time(self.reader.readuntil(separator))
        except asyncio.IncompleteReadError as error:
            if first and not error.partial:
                raise _StaleError from error
            raise
        except ConnectionError as error:
            if first:
                raise _StaleError from error
            raise

    async def some(self, most: int) -> bytes:
        """What is here, or comes next; b"" at the end."""
        assert self.reader is not None
        return await self._in_time(self.reader.read(most))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()

    async def _in_time(self, reading: Coroutine[None, None, bytes]) -> bytes:
        if self.silence is None:
            return await reading
        # No `wait_for`: before Python 3.12 it may take a cancellation from outside for its own.
        ends = asyncio.get_running_loop().call_later(self.silence, self._give_up)
        try:
            data = await reading
        except (EOFError, OSError) as error:
            if self._gave_up:
                raise self._silent() from error
            raise
        finally:
            ends.cancel()
        if self._gave_up:
            raise self._silent()
        return data

    def _give_up(self) -> None:
        self._gave_up = True
        self.close()  # which ends the reading

    def _silent(self) -> SilenceError:
        return SilenceError(f"nothing came for {self.silence:g} s")


async def _body(
    connection: _Connection, size: int, feed: Callable[[bytes], None], part: int
) -> None:
    if size < 0:
        raise ValueError(f"a body of {size} bytes")
    while size:
        data = await connection.some(min(size, part))
        if not data:
            raise EOFError(f"it was cut short, {size} bytes before its end")
        size -= len(data)
        feed(data)
        # More may be here already, and then nobody else would run.
        await asyncio.sleep(0)


def _head(raw: bytes) -> tuple[int, dict[str, str]]:
    """The status, and the headers by their names in small letters.

    Raises:
        ValueError: it is none.
    """
    first, *lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(f"no answer of HTTP: {first[:80]!r}")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return int(rest[:3]), headers
