"""What a hostile peer does by itself, with its own certificate: floods, and asking for everything."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence

import grpc.aio

from chaos.hostile.books import Books
from chaos.hostile.holding import Holder
from chaos.hostile.names import Attack, Greeting
from federation.identity import Fingerprint
from federation.peers.asking import ASKED
from federation.peers.wire import CATALOG_METHOD, HELLO_METHOD, PULL_METHOD
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
LOOK_UPS = 8
SNAPSHOTS = 2
HELD_STREAMS = 12


TASKS = {Attack.LOOKUPS: LOOK_UPS, Attack.SNAPSHOTS: SNAPSHOTS, Attack.DRAIN: 2}
"""Calls open at once, where it is not `FLOOD_TASKS`."""
GREETINGS: dict[Attack, Sequence[Greeting]] = {
    Attack.HELLOS: [Greeting.PLAIN],
    Attack.GREETINGS: list(Greeting),
    Attack.POSITIONS: [Greeting.POSITIONS, Greeting.CROWD],
    Attack.RELAYED: [Greeting.STALE],
    Attack.SIGNATURES: [Greeting.SIGNATURE],
}
"""Kinds of hellos, in turn."""


class Attacker:
    """Calls to the target.

    Args:
        channel: makes a connection of its own to the target.
        hello: a hello of a kind, encoded.
        address: of the target, for connections without TLS.
        keys: what the target is believed to hold.
    """

    def __init__(
        self,
        channel: Callable[[], grpc.aio.Channel],
        hello: Callable[[Greeting], bytes],
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
        self._kinds: Iterator[Greeting] = itertools.cycle([Greeting.PLAIN])
        self.books = Books(window_s)

    async def run(self, attack: Attack) -> None:
        """Attacks until it is cancelled."""
        began = time.monotonic()
        try:
            await self._run(attack)
        finally:
            self.books.seconds = time.monotonic() - began

    async def _run(self, attack: Attack) -> None:
        if attack is Attack.CONNECTIONS:
            await self._connections()
            return
        if attack is Attack.PIN:
            await self._pin()
            return
        if attack in (Attack.POLLS, Attack.HOLD):
            await Holder(self._channel, self.books, self._snapshot(), self._pull(self._keys)).run(
                streams=HELD_STREAMS if attack is Attack.HOLD else 0
            )
            return
        works = {
            Attack.REQUESTS: self._one_request,
            Attack.CATALOGS: self._one_catalog,
            Attack.SLOW_READER: self._take_nothing,
            Attack.LOOKUPS: self._one_lookup,
            Attack.SNAPSHOTS: self._one_catalog,
            Attack.DRAIN: self._drain,
        }
        if attack in GREETINGS:
            self._kinds = itertools.cycle(GREETINGS[attack])
            works[attack] = self._greet
        tasks = TASKS.get(attack, FLOOD_TASKS)
        if attack in works:
            channels = [self._channel() for _ in range(4)]
            async with contextlib.AsyncExitStack() as stack:
                for channel in channels:
                    await stack.enter_async_context(channel)
                await asyncio.gather(
                    *(self._again(works[attack], channels[i % 4]) for i in range(tasks))
                )

    async def _again(self, work: Callable[..., object], channel: grpc.aio.Channel) -> None:
        while True:
            self.books.calls += 1
            try:
                await work(channel)  # type: ignore[misc]
                self.books.served += 1
            except (grpc.aio.AioRpcError, EOFError):
                self.books.refused += 1
                await asyncio.sleep(PAUSE_S)

    async def _greet(self, channel: grpc.aio.Channel) -> None:
        """Hello after hello on one stream, until it is ended. Each asks for its answer, and is booked where
        the target has read it, whatever it thought of it."""
        call = channel.stream_stream(HELLO_METHOD)(timeout=CALL_S)
        try:
            while True:
                kind = next(self._kinds)
                try:
                    with contextlib.suppress(asyncio.InvalidStateError):  # it is over: see why
                        await call.write(self._hello(kind) + ASKED)
                    answer = await call.read()
                except grpc.aio.AioRpcError as error:
                    if (
                        error.code() is grpc.StatusCode.PERMISSION_DENIED
                    ):  # not sent away for its rate
                        self.books.read(kind)
                    raise
                if answer is grpc.aio.EOF:
                    raise EOFError("the target has ended the stream")
                self.books.read(kind)
                self.books.calls += 1
                self.books.served += 1
        finally:
            call.cancel()

    async def _one_request(self, channel: grpc.aio.Channel) -> None:
        request = peer_pb2.PullRequest(
            fingerprint=self._fingerprint,
            keys=[os.urandom(8).hex() for _ in range(FLOOD_KEYS)],
            max_sizes=[1 << 20],
        )
        await self._stream(channel, PULL_METHOD, request.SerializeToString())

    async def _one_catalog(self, channel: grpc.aio.Channel) -> None:
        await self._stream(channel, CATALOG_METHOD, self._snapshot())

    async def _one_lookup(self, channel: grpc.aio.Channel) -> None:
        await self._stream(channel, PULL_METHOD, self._pull([os.urandom(8).hex()]))

    async def _drain(self, channel: grpc.aio.Channel) -> None:
        await self._stream(channel, PULL_METHOD, self._pull(self._keys[:FLOOD_KEYS]))

    def _snapshot(self) -> bytes:
        return bytes(peer_pb2.CatalogRequest(fingerprint=self._fingerprint).SerializeToString())

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
        asked = time.monotonic()
        async for message in channel.unary_stream(method)(raw, timeout=CALL_S):
            self.books.got(len(message), asked)

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
