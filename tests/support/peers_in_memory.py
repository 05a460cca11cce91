"""Peers in memory, and a puller that pulls from them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from federation.catalog.view import CatalogView
from federation.config import Limits
from federation.errors import PeerError
from federation.identity import Fingerprint, block_digest, key_hash
from federation.limits.guard import Guard
from federation.limits.guards import PeerGuards
from federation.limits.names import Failure
from federation.limits.ticket import Ticket
from federation.transfer.allowance import Allowance
from federation.transfer.fair import PullClass
from federation.transfer.frames import Encoder
from federation.transfer.landing import Answer, Room
from federation.transfer.puller import Ask, Puller
from federation.transfer.staging import StagedBlock, Staging
from moonmesh.v1 import peer_pb2
from tests.support.catalogs import view_of

FP = Fingerprint(b"f" * 16)
KEYS = [f"k{i}" for i in range(6)]
SIZE = 1000


def data_of(key: str) -> bytes:
    return (key * SIZE)[:SIZE].encode()


Script = Callable[[peer_pb2.PullRequest], AsyncGenerator[bytes, None]]


class FakeSource:
    """A peer in memory. `held` is what it has; `script` may replace its answer."""

    def __init__(self, name: str, held: Sequence[str], script: Script | None = None) -> None:
        self.name = name
        self.held = set(held)
        self.epoch = 3
        self.requests: list[list[str]] = []
        self.asked: list[peer_pb2.PullRequest] = []
        self.guard = guard_for(name)
        self.script = script or self.honest
        self.timeout = 0.0
        """Of the latest pull."""

    async def pull(
        self,
        request: peer_pb2.PullRequest,
        timeout: float,
        allowance: Allowance | None = None,
        room: Room | None = None,
    ) -> Answer:
        self.requests.append(list(request.keys))
        self.asked.append(request)
        self.timeout = timeout
        async for message in self.script(request):
            yield message

    async def honest(self, request: peer_pb2.PullRequest) -> AsyncGenerator[bytes, None]:
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

    def blame(self, error: PeerError) -> None:
        pass

    def absolve(self) -> None:
        pass

    @property
    def verdicts(self) -> list[str]:
        return self.guard.verdicts


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
    found = PeerGuards(limits or Limits(), name, random.Random(1)).outgoing
    return Recorded(name, found._parts)


class Bench:
    """A puller over fake peers, whose views claim `claims` (what they hold, if not given)."""

    def __init__(
        self,
        *sources: FakeSource,
        claims: dict[str, Sequence[str]] | None = None,
        staging_bytes: int = 1 << 20,
        staging: Staging | None = None,
        limits: Limits | None = None,
    ) -> None:
        if limits is not None:
            for source in sources:
                source.guard = guard_for(source.name, limits)
        self.staging = Staging(bytes_max=staging_bytes, hold=10.0) if staging is None else staging
        self.landed: list[StagedBlock] = []
        self.views: dict[str, CatalogView] = {}
        for source in sources:
            claimed = (claims or {}).get(source.name, list(source.held))
            self.views[source.name] = view_of(key_hash(FP, key) for key in claimed)
        self.puller = Puller(
            staging=self.staging,
            holders=lambda _: [(source, self.views[source.name]) for source in sources],
            landed=self.landed.append,
            limits=limits or Limits(),
        )

    def ask(self, keys: Sequence[str] = KEYS, **options: Any) -> Ask:
        options = {"timeout": 5.0, "pull_class": PullClass.FIRST_TOKEN} | options
        return self.puller.ask(FP, keys, [SIZE] * len(keys), **options)

    async def collect(self, ask: Ask) -> list[bytes | None]:
        until = asyncio.get_running_loop().time() + 5.0
        blocks = [await ask.block(i, until) for i in range(len(ask))]
        ask.leave()
        return [None if block is None else bytes(block.data) for block in blocks]
