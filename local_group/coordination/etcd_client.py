"""The connection to etcd: etcd3aio's channel, kv, leases and the stub of its watch; one try of one call."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc.aio
from etcd3aio._protobuf import Compare, WatchCreateRequest, WatchRequest, WatchStub
from etcd3aio.connections import ConnectionManager
from etcd3aio.errors import EtcdError
from etcd3aio.kv import KVService, prefix_range_end
from etcd3aio.lease import LeaseService

from local_group.coordination.base import CALL_SECONDS, RETRY_SECONDS, timeout
from local_group.process_errors import CoordinationError, CoordinationGone

TRY_SECONDS = 1.0
"""For one request: etcd answers in some ms, or it is being elected anew."""
RECEIVE_BYTES_MAX = 16 << 20
"""Of one answer; etcd's own limit of a request is 1.5 MiB."""
RECONNECT_MS = (100, 1000)
"""First and longest pause before a connection is made anew; gRPC's own grow to two minutes."""

T = TypeVar("T")


class EtcdClient:
    """Usable between `start` and `close`.

    Args:
        endpoints: `host:port` of one or more members of one etcd cluster.
        ca, certificate, key: PEM files for TLS and for our side of it; none of them: plain text.
        server_name: in etcd's certificates, where it is not the host of the first endpoint.

    Attributes:
        kv, leases: of etcd3aio, without its retries.
        watches: the stub of the watch service.
    """

    kv: KVService
    leases: LeaseService
    watches: WatchStub

    def __init__(
        self,
        endpoints: tuple[str, ...],
        ca: Path | None,
        certificate: Path | None,
        key: Path | None,
        server_name: str,
    ) -> None:
        self._endpoints = endpoints
        self._files = ca, certificate, key
        self._server_name = server_name or endpoints[0].rpartition(":")[0]
        self._channel: grpc.aio.Channel | None = None

    async def start(self) -> None:
        """Make the channel. Raises CoordinationError: a file cannot be read, a name has no address."""
        ca, certificate, key = (_load(file) for file in self._files)
        manager = ConnectionManager(await self._addresses(), keepalive_timeout_ms=3000)
        manager.grpc_options += [
            ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
            ("grpc.initial_reconnect_backoff_ms", RECONNECT_MS[0]),
            ("grpc.min_reconnect_backoff_ms", RECONNECT_MS[1]),
            ("grpc.max_reconnect_backoff_ms", RECONNECT_MS[1]),
        ]
        channel = manager.get_channel(ca, key, certificate, self._server_name if ca else None)
        self._channel = channel
        self.kv = KVService(channel, max_attempts=1)
        self.leases = LeaseService(channel, max_attempts=1)
        self.watches = WatchStub(channel)

    async def close(self) -> None:
        """Close the channel."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    async def patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """A call that changes nothing, until it is answered or `CALL_SECONDS` have passed."""
        async with deadline():
            while True:
                try:
                    return await self.call(call())
                except CoordinationGone:
                    await asyncio.sleep(RETRY_SECONDS)

    async def call(self, call: Awaitable[T]) -> T:
        """One try. Raises CoordinationGone if it was not answered, CoordinationError if refused."""
        try:
            async with timeout(TRY_SECONDS):
                return await call
        except (EtcdError, asyncio.TimeoutError, grpc.aio.AioRpcError) as error:
            raise CoordinationGone(
                f"etcd does not answer: {str(error)[:200] or type(error).__name__}",
                where=", ".join(self._endpoints),
                hint="is it up, and may this gateway reach it?",
            ) from error

    async def _addresses(self) -> list[str]:
        """The endpoints with addresses for names: etcd3aio takes nothing else."""
        loop = asyncio.get_running_loop()
        found = []
        for endpoint in self._endpoints:
            host, _, port = endpoint.rpartition(":")
            try:
                infos = await loop.getaddrinfo(
                    host, int(port), family=socket.AF_INET, type=socket.SOCK_STREAM
                )
            except OSError as error:
                raise CoordinationGone(f"{host} has no address: {error}", where=endpoint) from error
            found.append(f"{infos[0][4][0]}:{port}")
        return found


def _load(file: Path | None) -> bytes | None:
    try:
        return None if file is None else file.read_bytes()
    except OSError as error:
        raise CoordinationError(f"cannot be read: {error.strerror}", where=str(file)) from error


@contextlib.asynccontextmanager
async def deadline() -> AsyncIterator[None]:
    """`CALL_SECONDS` for what is inside, then CoordinationGone."""
    try:
        async with timeout(CALL_SECONDS):
            yield
    except asyncio.TimeoutError as error:
        raise CoordinationGone(f"etcd did not answer for {CALL_SECONDS:g} s") from error


def unchanged(key: str, revision: int) -> Any:
    """The key was last changed at this revision; 0: it is not there."""
    return Compare(
        result=Compare.EQUAL, target=Compare.MOD, key=key.encode(), mod_revision=revision
    )


async def ask(first: bytes, revision: int) -> AsyncIterator[Any]:
    """What a watch is opened with; the stream lasts as long as this does."""
    create = WatchCreateRequest(
        key=first,
        range_end=prefix_range_end(first),
        start_revision=revision,
        fragment=True,
    )
    yield WatchRequest(create_request=create)
    await asyncio.Event().wait()
