"""What a hostile peer does by itself, with its own certificate: floods, and asking for everything."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
import time
from collections import deque
from collections.abc import Callable, Sequence

import grpc.aio

from federation.identity import Fingerprint
from federation.peers.link import CATALOG_METHOD, HELLO_METHOD, PULL_METHOD
from moonmesh.v1 import peer_pb2

FLOOD_TASKS = 32
"""Calls that a flood keeps open; each is made again as soon as it ends."""
FLOOD_KEYS = 4096
CONNECTIONS = 200
PIN_S = 5.0
PIN_KEYS = 512
CALL_S = 5.0
PAUSE_S = 0.001
"""After a call that was refused: a flood that starves itself is none."""


class Attack(str, enum.Enum):
    """What is done to the target."""

    NONE = "none"
    HELLOS = "hellos"
    """Greets as fast as it can."""
    REQUESTS = "requests"
    """Pulls, with as many keys as fit, as fast as it can, many at once."""
    CATALOGS = "catalogs"
    """Asks for whole catalogs, many at once."""
    CONNECTIONS = "connections"
    """Opens connections and says nothing on them."""
    PIN = "pin"
    """Pulls every block of the target every few seconds, so that all of them stay leased."""
    SLOW_READER = "slow-reader"
    """Pulls everything, and takes none of it: what is on its way stays in the target's memory."""


class Books:
    """What the attacker was given, for the report."""

    def __init__(self, window_s: float) -> None:
        self.calls = 0
        self.refused = 0
        self.bytes = 0
        self.window_bytes_max = 0
        """Most bytes within any `window_s`."""
        self._window_s = window_s
        self._recent: deque[tuple[float, int]] = deque()
        self._in_window = 0

    def got(self, size: int) -> None:
        """Bytes of blocks arrived."""
        now = time.monotonic()
        self.bytes += size
        self._recent.append((now, size))
        self._in_window += size
        while self._recent and self._recent[0][0] < now - self._window_s:
            self._in_window -= self._recent.popleft()[1]
        self.window_bytes_max = max(self.window_bytes_max, self._in_window)


class Attacker:
    """Calls to the target.

    Args:
        channel: makes a connection of its own to the target.
        hello: a fresh hello, encoded.
        address: of the target, for connections without TLS.
        keys: what the target is believed to hold.
    """

    def __init__(
        self,
        channel: Callable[[], grpc.aio.Channel],
        hello: Callable[[], bytes],
        address: tuple[str, int],
        fingerprint: Fingerprint,
        keys: Sequence[str],
        window_s: float,
        pin_s: float = PIN_S,
    ) -> None:
        self._channel = channel
        self._hello = hello
        self._address = address
        self._fingerprint = fingerprint
        self._keys = list(keys)
        self._pin_s = pin_s
        self.books = Books(window_s)

    async def run(self, attack: Attack) -> None:
        """Attacks until it is cancelled."""
        if attack is Attack.CONNECTIONS:
            await self._connections()
            return
        if attack is Attack.PIN:
            await self._pin()
            return
        works = {
            Attack.HELLOS: self._one_hello,
            Attack.REQUESTS: self._one_request,
            Attack.CATALOGS: self._one_catalog,
            Attack.SLOW_READER: self._take_nothing,
        }
        if attack in works:
            channels = [self._channel() for _ in range(4)]
            async with contextlib.AsyncExitStack() as stack:
                for channel in channels:
                    await stack.enter_async_context(channel)
                await asyncio.gather(
                    *(self._again(works[attack], channels[i % 4]) for i in range(FLOOD_TASKS))
                )

    async def _again(self, work: Callable[..., object], channel: grpc.aio.Channel) -> None:
        while True:
            self.books.calls += 1
            try:
                await work(channel)  # type: ignore[misc]
            except grpc.aio.AioRpcError:
                self.books.refused += 1
                await asyncio.sleep(PAUSE_S)

    async def _one_hello(self, channel: grpc.aio.Channel) -> None:
        await channel.unary_unary(HELLO_METHOD)(self._hello(), timeout=CALL_S)

    async def _one_request(self, channel: grpc.aio.Channel) -> None:
        request = peer_pb2.PullRequest(
            fingerprint=self._fingerprint,
            keys=[os.urandom(8).hex() for _ in range(FLOOD_KEYS)],
            max_sizes=[1 << 20],
        )
        await self._stream(channel, PULL_METHOD, request.SerializeToString())

    async def _one_catalog(self, channel: grpc.aio.Channel) -> None:
        request = peer_pb2.CatalogRequest(fingerprint=self._fingerprint)
        await self._stream(channel, CATALOG_METHOD, request.SerializeToString())

    async def _take_nothing(self, channel: grpc.aio.Channel) -> None:
        call = channel.unary_stream(PULL_METHOD)(
            self._pull(self._keys[:FLOOD_KEYS]), timeout=CALL_S
        )
        await asyncio.sleep(CALL_S)
        call.cancel()

    async def _pin(self) -> None:
        async with self._channel() as channel:
            while True:
                began = time.monotonic()
                for start in range(0, len(self._keys), PIN_KEYS):
                    self.books.calls += 1
                    part = self._pull(self._keys[start : start + PIN_KEYS])
                    try:
                        await self._stream(channel, PULL_METHOD, part)
                    except grpc.aio.AioRpcError:
                        self.books.refused += 1
                        await asyncio.sleep(0.05)
                await asyncio.sleep(max(0.01, self._pin_s - (time.monotonic() - began)))

    async def _stream(self, channel: grpc.aio.Channel, method: str, raw: bytes) -> None:
        async for message in channel.unary_stream(method)(raw, timeout=CALL_S):
            self.books.got(len(message))

    def _pull(self, keys: Sequence[str]) -> bytes:
        request = peer_pb2.PullRequest(
            fingerprint=self._fingerprint, keys=list(keys), max_sizes=[64 << 20]
        )
        return bytes(request.SerializeToString())

    async def _connections(self) -> None:
        writers: list[asyncio.StreamWriter] = []
        try:
            while True:
                if len(writers) < CONNECTIONS:
                    with contextlib.suppress(OSError):
                        _, writer = await asyncio.open_connection(*self._address)
                        writers.append(writer)
                        self.books.calls += 1
                        continue
                # Whoever was thrown out comes again.
                writers = [w for w in writers if not w.transport.is_closing()]
                await asyncio.sleep(0.05)
        finally:
            for writer in writers:
                writer.transport.abort()
