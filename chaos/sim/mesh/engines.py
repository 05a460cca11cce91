"""Simulated engines: they read chains, local blocks first, and compute and put what nobody gives them.

As `federation.client` does it, which works on threads: what is local comes from Mooncake, whatever becomes of
the gateway; the rest is one call to it, with a deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import grpc
import grpc.aio

from chaos.sim.invariants import Broken
from chaos.sim.mesh.pipe import PIPE_SECONDS
from chaos.sim.mesh.truth import bytes_of
from federation.identity import block_digest
from federation.transfer.fair import PullClass
from federation.transfer.frames import Block, Decoder
from moonmesh.v1 import engine_pb2

if TYPE_CHECKING:
    from chaos.sim.mesh.group import SimGateway, SimGroup

EVERY_SECONDS: Final = 0.8
"""Between two requests of an engine, on average."""
DEADLINES: Final = (0.05, 0.2, 0.5, 1.0, 2.0)
CLASSES: Final = (PullClass.FIRST_TOKEN, PullClass.BATCH, PullClass.PREFETCH)
LOCAL_SECONDS: Final = 0.1
"""After which a local read is a miss."""
EXISTS_SHARE: Final = 0.2
WAIT_MS: Final = 100
"""For which an exists waits for what lands."""
LATE_SECONDS: Final = 0.002
"""What an answer may take from a gateway that has ended it in time."""
ROOM: Final = 64 * 1024
CALLS_SECONDS: Final = 5.0
"""For a report."""
KEPT_SHARE: Final = 0.9
"""Of `staging_hold_ms`, for which what exists is looked for again."""


class Answer(NamedTuple):
    """What came of a call to a gateway."""

    messages: list[bytes]
    ended: bool
    """It was ended by the gateway, in order."""


class EngineContext:
    """A context of gRPC, for one call of an engine."""

    def __init__(self, until: float, loop: Any) -> None:
        self.messages: list[bytes] = []
        self.refused = ""
        self._until = until
        self._loop = loop

    async def write(self, raw: bytes) -> None:
        self.messages.append(bytes(raw))

    async def abort(self, code: grpc.StatusCode, details: str = "", trailer: Any = ()) -> None:
        self.refused = details or code.name
        raise grpc.aio.AbortError

    def time_remaining(self) -> float:
        return max(0.0, self._until - float(self._loop.now))

    def invocation_metadata(self) -> tuple[Any, ...]:
        return ()


class SimEngine:
    """One engine of a group."""

    def __init__(self, group: SimGroup, random: Random) -> None:
        self.group = group
        self.world = group.world
        self.node = group.new_node("engine")
        self._random = random

    def start(self) -> None:
        """Begins, and never ends."""
        self.node.start(self.world.loop, self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._random.expovariate(1 / EVERY_SECONDS))
            fingerprint, keys = self.world.workload.next()
            deadline = self._random.choice(DEADLINES)
            pull_class = self._random.choice(CLASSES)
            if self._random.random() < EXISTS_SHARE:
                await self.exists(fingerprint, keys, pull_class)
            await self.request(fingerprint, keys, deadline, pull_class)

    async def request(
        self, fingerprint: bytes, keys: Sequence[str], deadline: float, pull_class: PullClass
    ) -> int:
        """Reads a chain, computes and writes what is missing; how many blocks came from peers."""
        tally = self.world.truth.tally
        tally.reads += 1
        here = await self.read_local(fingerprint, keys)
        came = await self.pull(fingerprint, keys[here:], deadline, pull_class, keys[:here])
        tally.local += here
        tally.peer += came
        tally.computed += len(keys) - here - came
        await self.write(fingerprint, keys[here + came :])
        return came

    async def read_local(self, fingerprint: bytes, keys: Sequence[str]) -> int:
        """The leading run that is in the local Mooncake."""
        loop, mooncake = self.world.loop, self.group.mooncake
        began = loop.now
        takes = min(mooncake.seconds(0), LOCAL_SECONDS)
        frozen = mooncake.seconds(0) > LOCAL_SECONDS
        await asyncio.sleep(takes)
        found = 0
        for key in keys if not frozen else ():
            data = mooncake.pool.get(self.stored(fingerprint, key), ROOM)
            if not isinstance(data, bytes):
                break
            self.world.truth.given(self.group.name, fingerprint, key, data, "by its own Mooncake")
            found += 1
        if loop.now - began > takes + 1e-9:
            detail = (
                f"a local read of {self.group.name} took {loop.now - began:.4f} s, not {takes:.4f}"
            )
            raise Broken("a local hit never waits", detail, self.group.name)
        return found

    async def pull(
        self,
        fingerprint: bytes,
        keys: Sequence[str],
        deadline: float,
        pull_class: PullClass,
        before: Sequence[str] = (),
    ) -> int:
        """The leading run that peers give."""
        if not keys:
            return 0
        request = engine_pb2.EnginePullRequest(
            fingerprint=fingerprint,
            keys=keys,
            max_sizes=[ROOM] * len(keys),
            pull_class=pull_class.name,
            before=before[-1] if before else "",
        )
        answer = await self._call("pull", request.SerializeToString(), deadline)
        if answer is None:
            return 0
        decoder = Decoder([ROOM] * len(keys), 1 << 22)
        tally = self.world.truth.tally
        came = 0
        for message in answer.messages:
            for event in decoder.feed(message):
                if not isinstance(event, Block) or event.index != came:
                    detail = f"an engine of {self.group.name} was given {event.index}, not {came}"
                    raise Broken("a leading run", detail, self.group.name)
                data = bytes(event.data)
                if block_digest(fingerprint, keys[came], data) != event.digest:
                    detail = f"{self.group.name} handed over {keys[came]} with another digest"
                    raise Broken("no wrong bytes", detail, self.group.name)
                self.world.truth.given(
                    self.group.name, fingerprint, keys[came], data, "by its gateway"
                )
                tally.peer_bytes += len(data)
                came += 1
        return came

    async def exists(self, fingerprint: bytes, keys: Sequence[str], pull_class: PullClass) -> None:
        """Asks which of a chain there are, and sees to it that they are."""
        request = engine_pb2.ExistsRequest(
            fingerprint=fingerprint, keys=keys, wait_ms=WAIT_MS, pull_class=pull_class.name
        )
        gateway = self.group.gateway
        answer = await self._call("exists", request.SerializeToString(), 1.0)
        if answer is None or not answer.ended or gateway is None:
            return
        landed = engine_pb2.ExistsReply.FromString(answer.messages[0]).landed
        chosen = [key for key, yes in zip(keys, landed, strict=True) if yes]
        self.world.truth.tally.existed += len(chosen)
        self._check_exists(gateway, fingerprint, chosen)

    def _check_exists(self, gateway: SimGateway, fingerprint: bytes, keys: list[str]) -> None:
        side, loop = gateway.side, self.world.loop
        assert side is not None, "it has answered"
        hold = self.group.config.limits.staging_hold_ms / 1000
        for key in keys:
            block = side.staging.get(fingerprint, key)
            if block is not None:
                until = block.landed_at - gateway.node.offset + KEPT_SHARE * hold
                if until > loop.now:
                    loop.at(until, None, self._check_kept, gateway, fingerprint, key)
            elif self.stored(fingerprint, key) not in self.group.mooncake.pool:
                detail = f"{self.group.name} said that {key} exists, and it is not there"
                raise Broken("what exists is here", detail, self.group.name)

    def _check_kept(self, gateway: SimGateway, fingerprint: bytes, key: str) -> None:
        side = gateway.side
        if not gateway.node.running or side is None:
            return
        if side.staging.get(fingerprint, key) is None:
            detail = f"{self.group.name} said that {key} exists, and did not hold it"
            raise Broken("what exists is here", detail, self.group.name)

    async def write(self, fingerprint: bytes, keys: Sequence[str]) -> None:
        """Computes blocks, puts those that do not exist here, and tells the gateway."""
        mooncake = self.group.mooncake
        if mooncake.seconds(0) > LOCAL_SECONDS:
            await asyncio.sleep(LOCAL_SECONDS)
            return
        await asyncio.sleep(mooncake.seconds(len(keys) * ROOM))
        written: list[engine_pb2.Written] = []
        for key in keys:
            data, stored = bytes_of(fingerprint, key), self.stored(fingerprint, key)
            fresh = stored not in mooncake.pool
            if mooncake.pool.put(stored, data) != 0:
                continue
            self.world.truth.put(self.group.name, fingerprint, key, stored, fresh=fresh)
            digest = block_digest(fingerprint, key, data)
            written.append(engine_pb2.Written(key=key, size=len(data), digest=digest))
        if written:
            report = engine_pb2.ReportRequest(fingerprint=fingerprint, written=written)
            await self._call("report", report.SerializeToString(), CALLS_SECONDS)

    def stored(self, fingerprint: bytes, key: str) -> str:
        """Under which key Mooncake has a block."""
        return self.world.naming.stored(fingerprint, key)

    async def _call(self, method: str, raw: bytes, seconds: float) -> Answer | None:
        """One call to the gateway, which has to end by its deadline; None if there is no gateway."""
        gateway, loop, tally = self.group.gateway, self.world.loop, self.world.truth.tally
        if gateway is None or not gateway.ready or gateway.side is None:
            tally.unanswered += 1
            return None
        await asyncio.sleep(PIPE_SECONDS)
        began = loop.now
        context = EngineContext(began + seconds, loop)

        async def serve() -> bool:
            service = gateway.side.engines  # type: ignore[union-attr]
            try:
                answer = await getattr(service, method)(raw, context)
            except grpc.aio.AbortError:
                return False
            if answer is not None:
                context.messages.append(answer)
            return True

        task = gateway.node.start(loop, serve())
        await asyncio.wait({task}, timeout=seconds)
        if task.done():
            ended = task.result()
            if context.refused:
                raise Broken("engines are not refused", context.refused, self.group.name)
            return Answer(context.messages, ended)
        tally.unanswered += 1
        gateway.node.run(loop.call_soon, task.cancel)
        disturbed = self.group.disturbed_at >= began or not gateway.node.running
        if method != "report" and not disturbed and not gateway.node.stalled:
            detail = f"{gateway.node} did not end a call of {seconds:g} s ({method})"
            raise Broken("deadlines are kept", detail, self.group.name)
        return Answer(list(context.messages), ended=False)
