"""A peer in memory, as who goes by a link to it sees one: its hellos, its catalog, and its blocks.

`tests/conformance/test_peer_link.py` holds it to `federation.peers.link.PeerLink`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any

import numpy as np

from federation.catalog.answers import Answers
from federation.catalog.log import HoldingsLog
from federation.catalog.view import CatalogView
from federation.catalog.wire import position_to_wire
from federation.config import Limits
from federation.errors import PeerError
from federation.identity import Fingerprint, block_digest, key_hash
from federation.limits.errors import ShedError
from federation.limits.guard import Guard
from federation.limits.guards import PeerGuards
from federation.limits.names import Failure, Kind
from federation.limits.ticket import Cost, Refusal, Ticket
from federation.transfer.allowance import Allowance
from federation.transfer.frames import Encoder
from federation.transfer.landing import Answer, Room
from moonmesh.v1 import peer_pb2

FP = Fingerprint(b"f" * 16)
SIZE = 1000
HELLO = Cost(kind=Kind.HELLO)
PAGE = 1000
"""Blocks of a page of a catalog."""

Script = Callable[[peer_pb2.PullRequest], AsyncGenerator[bytes, None]]


def data_of(key: str) -> bytes:
    """A block."""
    return (key * SIZE)[:SIZE].encode()


class Recorded(Guard):
    """A real guard that remembers what each pull said of its peer."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.verdicts: list[str] = []

    def end(self, ticket: Ticket, failure: Failure | None, now: float, **facts: Any) -> None:
        kinds = {None: "succeeded", Failure.OURS: "abandoned", Failure.SHED: "shed"}
        self.verdicts.append(kinds.get(failure, "failed"))
        super().end(ticket, failure, now, **facts)


def guard_for(name: str, limits: Limits | None = None) -> Recorded:
    """Of a link to that peer."""
    found = PeerGuards(limits or Limits(), name, random.Random(1)).outgoing
    return Recorded(name, found._parts)


class FakeLink:
    """One peer.

    Args:
        held: keys of blocks that can be pulled.
        script: what is sent for a pull, instead of those.
        blocks: how many the catalog has at first.
        seed: of the catalog's blocks and its log's name.
        ring: changes that the catalog's log keeps.
    """

    def __init__(
        self,
        name: str = "west",
        held: Iterable[str] = (),
        script: Script | None = None,
        *,
        blocks: int = 0,
        seed: int = 1,
        ring: int = 1024,
    ) -> None:
        self.name = name
        self.guard = guard_for(name)
        self.epoch = 3
        self.reason = ""
        self.alive = True
        """Whether gossip hears it."""
        self.error: PeerError | None = None
        """What each call ends with."""
        self.failures: list[PeerError] = []
        self.blamed: list[PeerError] = []

        self.on_answer: Callable[[peer_pb2.HelloReply], None] = lambda reply: None
        self.on_silence: Callable[[], None] = lambda: None
        self.on_room: Callable[[], None] = lambda: None
        self.said: list[peer_pb2.HelloRequest] = []
        self.reply: peer_pb2.HelloReply | None = None
        """Its answer to each hello; without one nothing comes of them, but what a test says came."""
        self.is_full = False
        self.hushes = 0
        self.backs = 0

        self.questions: list[peer_pb2.CatalogRequest] = []
        self.hangs = False
        """It takes questions, and answers none."""
        self.breaks_at = -1
        """Page of an answer after which the connection is lost."""
        self.pages = 0
        self.open = self.open_most = 0
        self.changed = asyncio.Event()
        self.rng = np.random.default_rng(seed)
        self.log = HoldingsLog(bytes([seed]) * 16, ring)
        self.answers = Answers(self.log, PAGE)
        self.hashes: list[int] = []

        self.held = set(held)
        self.script = script or self.honest
        self.asked: list[peer_pb2.PullRequest] = []
        self.timeout = 0.0
        """Of the latest pull."""
        self.add(blocks)

    # What it is

    def usable(self, now: float) -> bool:
        return self.alive and self.guard.ready(Kind.PULL, now)

    def failed(self, error: PeerError) -> None:
        self.failures.append(error)
        self.guard.note(Failure(error.failure), time.monotonic())
        self.blame(error)

    def blame(self, error: PeerError) -> None:
        self.blamed.append(error)
        self.reason = error.what

    def absolve(self) -> None:
        self.reason = ""

    @property
    def verdicts(self) -> list[str]:
        """What each pull said of it."""
        return self.guard.verdicts

    async def close(self) -> None:
        return

    # Hellos

    def back(self) -> None:
        self.backs += 1

    def greet(self, hello: peer_pb2.HelloRequest) -> None:
        now = time.monotonic()
        self._unless(self.guard.go_on(HELLO, now))
        self.said.append(hello)
        if self.error is not None:
            self.guard.unanswered(HELLO, Failure(self.error.failure), now, retry_after=0.0)
            asyncio.get_running_loop().call_soon(self.on_silence)
        elif self.reply is not None:
            asyncio.get_running_loop().call_soon(self.on_answer, self.reply)

    def full(self, now: float) -> bool:
        return self.is_full

    def hush(self) -> None:
        self.hushes += 1

    # Its catalog

    def add(self, blocks: int) -> list[int]:
        """So many more that nobody has; their hashes."""
        hashes = self.rng.integers(0, 1 << 64, blocks, dtype=np.uint64)
        self._list(hashes.tolist())
        return list(hashes.tolist())

    def hold(self, *keys: str) -> None:
        """These are in its catalog, and can be pulled."""
        self.held |= set(keys)
        self._list([key_hash(FP, key) for key in keys])

    def hello(self) -> peer_pb2.NamespacePosition:
        """Where its log stands, as a hello says it."""
        position = position_to_wire(self.log.position)
        return peer_pb2.NamespacePosition(fingerprint=FP, position=position, blocks=len(self.log))

    def prints(self, view: CatalogView) -> int:
        """Blocks that the view can tell apart."""
        return len({each >> (64 - view.bits) for each in self.hashes})

    async def catalog(
        self, request: peer_pb2.CatalogRequest, timeout: float
    ) -> AsyncGenerator[peer_pb2.CatalogPage, None]:
        cost = Cost(kind=Kind.CATALOG, lane=request.fingerprint)
        self._unless(self.guard.check(cost, time.monotonic()))
        self.questions.append(request)
        self.open += 1
        self.open_most = max(self.open_most, self.open)
        try:
            if self.error is not None:
                raise self.error
            while self.hangs or request.after == position_to_wire(self.log.position):
                self.changed.clear()
                await self.changed.wait()
            async for page in self.tell(request):
                yield page
        finally:
            self.open -= 1

    async def tell(
        self, request: peer_pb2.CatalogRequest
    ) -> AsyncGenerator[peer_pb2.CatalogPage, None]:
        """The pages of an answer."""
        after = None
        if request.HasField("after"):
            after = self.log.position._replace(n=request.after.n)
        for number, raw in enumerate(self.answers.since(after)):
            if number == self.breaks_at:
                raise PeerError("the connection is lost")
            self.pages += 1
            yield peer_pb2.CatalogPage.FromString(raw)
            await asyncio.sleep(0)

    def _list(self, hashes: Sequence[int]) -> None:
        self.log.extend(np.array(hashes, dtype=np.uint64))
        self.hashes += hashes
        self.changed.set()

    # Its blocks

    @property
    def requests(self) -> list[list[str]]:
        """The keys of each pull."""
        return [list(request.keys) for request in self.asked]

    async def pull(
        self,
        request: peer_pb2.PullRequest,
        timeout: float,
        allowance: Allowance | None = None,
        room: Room | None = None,
    ) -> Answer:
        self.asked.append(request)
        self.timeout = timeout
        if self.error is not None:
            raise self.error
        async for message in self.script(request):
            yield message

    async def honest(self, request: peer_pb2.PullRequest) -> AsyncGenerator[bytes, None]:
        """What it holds, and that this is all."""
        encoder = Encoder(1 << 20)
        for index, key in enumerate(request.keys):
            if key in self.held:
                data = data_of(key)
                for message in encoder.block(index, block_digest(FP, key, data), memoryview(data)):
                    yield message
            else:
                for message in encoder.missing(index):
                    yield message
            for message in encoder.flush():
                yield message
        yield encoder.end()

    def _unless(self, refusal: Refusal | None) -> None:
        if refusal is not None:
            raise ShedError("left alone for now", retry_after=refusal.retry_after, where=self.name)
