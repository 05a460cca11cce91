"""A client of the master's admin HTTP: health, segments, key listings, lease-free queries."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import quote

import aiohttp
from yarl import URL

from local_group.process_errors import AdminError

QUERY_KEYS_MAX = 500
"""Keys in one `/batch_query_keys`: 1,000 take the master 4 ms, and others wait meanwhile."""
QUERY_URL_BYTES_MAX = 60_000
"""Bytes of one URL: the master reads it whole before it looks at it."""
ANSWER_BYTES_MAX = 16 << 20
"""Bytes of any other answer; 500 keys are about 110 kB."""
LISTING_BYTES_MAX = 256 << 20
"""Bytes of a key listing, unless the caller says otherwise."""
LISTING_SILENCE_S = 30.0
"""Seconds for which the master may send nothing of a key listing. It makes all of it first: 100,000 keys take
0.1 s."""
LISTING_BYTES_PER_S_MIN = 4_000_000
"""Bytes a second of a key listing at least, besides such a silence: so long may all of it take at most."""

_CHUNK = 1 << 18
_LISTING_CHUNK = 1 << 15
_NOT_FOUND = "OBJECT_NOT_FOUND"


@dataclass(frozen=True)
class Health:
    """The master's own word on itself."""

    service_ready: bool
    role: str
    ha_state: str


@dataclass(frozen=True)
class Segment:
    """Memory that a store has given to the pool."""

    name: str
    endpoint: str
    """`host:port` at which the store answers for it."""
    size: int
    """Bytes."""
    used: int
    """Bytes."""
    status: str
    """`OK`, or Mooncake's word for what is wrong."""
    id: str = ""
    """Drawn for it when its store has given it; one master has it."""

    @property
    def ok(self) -> bool:
        """Is it in use?"""
        return self.status == "OK"


class AdminClient:
    """The master's admin HTTP, for asyncio; bound to the event loop that first uses it.

    Every call but `list_keys` ends within `timeout` seconds; each raises AdminError for whatever goes wrong.

    Args:
        url: e.g. `http://127.0.0.1:7401`.
        timeout: seconds for one HTTP request, from connecting to the last byte.
        listing_silence: seconds without a byte after which `list_keys` ends. All of it ends after as many
            more as the most bytes that it may have take at `LISTING_BYTES_PER_S_MIN`.
    """

    def __init__(
        self, url: str, timeout: float = 2.0, listing_silence: float = LISTING_SILENCE_S
    ) -> None:
        self.url = url
        self._timeout = timeout
        self._listing_silence = listing_silence
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> AdminClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close its connections."""
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    async def health(self) -> Health:
        """What the master says of itself; one that does not serve yet has `service_ready` False."""
        return _parse_health(await self._json("/health", also=(503,)), self.url)

    async def segments(self) -> list[Segment]:
        """All segments that the master knows, healthy or not."""
        return _parse_segments(await self._json("/get_segments_detail"), self.url)

    async def query(self, keys: Iterable[str]) -> dict[str, int | None]:
        """Which of `keys` the group holds, without granting leases: key to bytes.

        An absent key is not in the answer. 0: it is here, on SSD alone, of which no size is told. None means
        unknown: this endpoint cannot be asked for a key with a comma, and the master may answer an error.
        """
        askable, answer = _split_askable(keys)
        for batch in _batches(askable):
            answer.update(_parse_query(await self._json(_query_path(batch)), batch, self.url))
        return answer

    async def kv_events(self) -> bool:
        """Whether the master publishes KV events: a build without them says no, whatever its flags."""
        answer = await self._json("/kv_events/status", also=(404,))
        return bool(answer.get("enabled")) if isinstance(answer, dict) else False

    async def list_keys(
        self, take: Callable[[list[bytes]], None], max_bytes: int = LISTING_BYTES_MAX
    ) -> int:
        """Every key of the default tenant, some hundred at a time, between which other tasks get their turn.
        (A key with a line feed in it comes out as two.)

        Args:
            take: called with the next keys. What it was given of a listing that fails is of no use: what is
                lacking would be taken for removed.

        Returns:
            Bytes of the listing.

        Raises:
            AdminError: also for a listing above `max_bytes`, cut short, or too slow.
        """
        listing = _Listing(max_bytes, self.url, take)
        path, silence = "/get_all_keys", self._listing_silence
        whole = silence + max_bytes / LISTING_BYTES_PER_S_MIN
        try:
            await asyncio.wait_for(
                self._get(path, listing.feed, chunk=_LISTING_CHUNK, silence=silence), whole
            )
        except aiohttp.ServerTimeoutError as error:
            raise listing.too_slow(f"the master sent nothing of it for {silence:g} s") from error
        except asyncio.TimeoutError as error:
            raise listing.too_slow(f"it was not all there after {whole:.3g} s") from error
        except (aiohttp.ClientError, ValueError, OSError) as error:
            raise _no_answer(error, f"{self.url}{path}", whole) from error
        listing.end()
        return listing.bytes

    async def _json(self, path: str, also: Sequence[int] = ()) -> Any:
        body = _Body(f"{self.url}{path[:80]}")
        await self._read(path, body.feed, self._timeout, also)
        return body.json()

    async def _read(
        self,
        path: str,
        feed: Callable[[bytes], None],
        timeout: float,
        also: Sequence[int] = (),
    ) -> None:
        try:
            await asyncio.wait_for(self._get(path, feed, also), timeout)
        except (asyncio.TimeoutError, aiohttp.ClientError, ValueError, OSError) as error:
            raise _no_answer(error, f"{self.url}{path[:80]}", timeout) from error

    async def _get(
        self,
        path: str,
        feed: Callable[[bytes], None],
        also: Sequence[int] = (),
        chunk: int = _CHUNK,
        silence: float | None = None,
    ) -> None:
        if self._http is None:
            # trust_env is off: no proxy of the environment may come between a group and its own master.
            self._http = aiohttp.ClientSession()
        address = URL(f"{self.url}{path}", encoded=True)
        patience = aiohttp.ClientTimeout(sock_connect=silence, sock_read=silence)
        async with self._http.get(address, allow_redirects=False, timeout=patience) as response:
            _check_status(response, also)
            async for part in response.content.iter_chunked(chunk):
                feed(part)
                # More may be here already, and then nobody else would run.
                await asyncio.sleep(0)


class SyncAdminClient:
    """`AdminClient` for code without an event loop: the same calls, blocking."""

    def __init__(self, url: str, timeout: float = 2.0) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = AdminClient(url, timeout)

    def __enter__(self) -> SyncAdminClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections."""
        self._loop.run_until_complete(self._client.close())
        self._loop.close()

    def health(self) -> Health:
        """See `AdminClient.health`."""
        return self._loop.run_until_complete(self._client.health())

    def segments(self) -> list[Segment]:
        """See `AdminClient.segments`."""
        return self._loop.run_until_complete(self._client.segments())

    def query(self, keys: Iterable[str]) -> dict[str, int | None]:
        """See `AdminClient.query`."""
        return self._loop.run_until_complete(self._client.query(keys))


class _Body:
    """A bounded JSON answer."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._data = bytearray()

    def feed(self, chunk: bytes) -> None:
        self._data += chunk
        if len(self._data) > ANSWER_BYTES_MAX:
            raise AdminError(
                f"the answer has more than {ANSWER_BYTES_MAX} bytes", where=self._where
            )

    def json(self) -> Any:
        try:
            return json.loads(self._data)
        except ValueError as error:
            raise AdminError(
                f"the answer is not JSON: {bytes(self._data[:80])!r}", where=self._where
            ) from error


class _Listing:
    """A bounded key listing, given on as it arrives: one key a line."""

    def __init__(self, max_bytes: int, where: str, take: Callable[[list[bytes]], None]) -> None:
        self._max_bytes = max_bytes
        self._where = where
        self._take = take
        self._rest = b""
        self.bytes = 0

    def feed(self, chunk: bytes) -> None:
        self.bytes += len(chunk)
        if self.bytes > self._max_bytes:
            raise AdminError(
                f"the key listing has more than {self._max_bytes} bytes",
                where=self._where,
                hint="raise listing_bytes_max in [limits]; without listings, blocks that are evicted "
                "are offered until a peer has asked for them in vain",
            )
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        self._take(lines)

    def too_slow(self, how: str) -> AdminError:
        return AdminError(
            f"the key listing came too slowly: {how}; {self.bytes} bytes had come",
            where=self._where,
            hint="the master or its host is overloaded, or it has stopped: look at the CPU of both; without "
            "listings, blocks that are evicted are offered until a peer has asked for them in vain",
        )

    def end(self) -> None:
        rest, self._rest = self._rest, b""
        self._take([rest])


def is_askable(key: str) -> bool:
    """Whether the master can be asked for a key without a lease: it takes a comma for the end of one."""
    return bool(key) and "," not in key


def _split_askable(keys: Iterable[str]) -> tuple[list[str], dict[str, int | None]]:
    """(keys to ask for, answers for the keys that cannot be asked for), without duplicates."""
    askable: list[str] = []
    unknown: dict[str, int | None] = {}
    for key in dict.fromkeys(keys):
        if is_askable(key):
            askable.append(key)
        else:
            unknown[key] = None
    return askable, unknown


def _quote(key: str) -> str:
    return quote(key, safe="", errors="surrogateescape")


def _query_path(batch: Sequence[str]) -> str:
    return "/batch_query_keys?keys=" + ",".join(_quote(key) for key in batch)


def _batches(keys: Iterable[str]) -> Iterator[list[str]]:
    """Keys in groups that fit one request."""
    batch: list[str] = []
    size = 0
    for key in keys:
        length = len(_quote(key)) + 1
        if batch and (len(batch) == QUERY_KEYS_MAX or size + length > QUERY_URL_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(key)
        size += length
    if batch:
        yield batch


def _parse_query(answer: Any, batch: Sequence[str], where: str) -> dict[str, int | None]:
    try:
        data = answer["data"]
        sizes: dict[str, int | None] = {}
        for key in batch:
            entry = data.get(key)
            if entry is None:
                sizes[key] = None
            elif entry["ok"]:
                values = entry["values"]  # of copies in memory
                sizes[key] = int(values[0]["size_"]) if values else 0
            elif entry["error"] != _NOT_FOUND:
                sizes[key] = None
        return sizes
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise _unexpected("/batch_query_keys", error, where) from error


def _parse_health(answer: Any, where: str) -> Health:
    try:
        return Health(
            service_ready=bool(answer["service_ready"]),
            role=str(answer["role"]),
            ha_state=str(answer["ha_state"]),
        )
    except (KeyError, TypeError) as error:
        raise _unexpected("/health", error, where) from error


def _parse_segments(answer: Any, where: str) -> list[Segment]:
    try:
        return [
            Segment(
                name=str(entry["segment_name"]),
                endpoint=str(entry["te_endpoint"]),
                size=int(entry["size_bytes"]),
                used=int(entry["allocator_used_bytes"] or 0),
                status=str(entry["status"]),
                id=str(entry["segment_id"]),
            )
            for entry in answer["segments"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise _unexpected("/get_segments_detail", error, where) from error


def _unexpected(path: str, error: Exception, where: str) -> AdminError:
    return AdminError(
        f"the answer to {path} is not as expected ({type(error).__name__}: {error})",
        where=where,
        hint="is this Mooncake 0.3.13?",
    )


def _check_status(response: aiohttp.ClientResponse, also: Sequence[int]) -> None:
    if response.status != 200 and response.status not in also:
        raise AdminError(f"the master answered {response.status}", where=str(response.url)[:120])


def _no_answer(error: Exception, where: str, timeout: float) -> AdminError:
    if isinstance(error, asyncio.TimeoutError):
        return AdminError(f"the master did not answer within {timeout:g} s", where=where)
    return AdminError(f"the master does not answer: {error or type(error).__name__}", where=where)
