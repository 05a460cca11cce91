"""Pulls blocks of peers into staging: who is asked, one pull a block, what becomes of what arrives.

An `Ask` joins what is staged or under way already and plans the rest from the catalog views alone; no
peer is asked whether it has a block. A block that does not match its digest never leaves this module.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

from federation.catalog.view import CatalogView, plan
from federation.config import Limits
from federation.counters import Samples, counters
from federation.errors import PeerError
from federation.identity import block_digest, key_hash
from federation.telemetry import (
    SPAN_GATEWAY_LOCATE,
    SPAN_PEER_PULL,
    SPAN_TRANSFER_VERIFY,
    span,
    tracer,
)
from federation.timeouts import timeout_at
from federation.transfer.frames import HEADER_BYTES, Block, Decoder, NoRoomError
from federation.transfer.staging import StagedBlock, Staging
from moonmesh.v1 import peer_pb2

JOBS_PER_PEER_MAX = 256
"""Streams that may wait for one of `pulls_per_peer`; what comes after is shed at once."""


class Source(Protocol):
    """A peer to pull from, as the puller sees it. See `federation.peers.PeerLink`."""

    name: str

    @property
    def epoch(self) -> int:
        """Epoch of the peer's newest statement."""

    def pull(self, request: peer_pb2.PullRequest, timeout: float) -> AsyncGenerator[bytes, None]:
        """The raw messages of one answer. Raises PeerError (or a subclass) for every failure."""

    def succeeded(self) -> None:
        """A pull ended well."""

    def failed(self, error: PeerError) -> None:
        """A pull failed, and it was the peer's doing."""

    def abandoned(self) -> None:
        """A pull ended early for a reason of our own."""


Holder = tuple[Source, CatalogView]


@dataclass(slots=True)
class _Wanted:
    """One block under way, shared by all who ask for it."""

    key: str
    key_hash: int
    max_size: int
    landed: asyncio.Future[StagedBlock | None]
    waiters: int = 0
    background_until: float = 0.0
    """The pull goes on until then though nobody waits (loop time)."""
    tried: set[str] = field(default_factory=set)

    def wanted(self, now: float) -> bool:
        return self.waiters > 0 or now < self.background_until


class _NobodyWaits(Exception):  # noqa: N818 - it ends a pull, and is no error
    """All who asked have left before the end."""


class _Stopwatch:
    """Time spent in many short pieces, told as one span from the first of them on."""

    def __init__(self) -> None:
        self._first = 0
        self._entered = 0
        self._total = 0

    def __enter__(self) -> None:
        self._entered = time.time_ns()
        self._first = self._first or self._entered

    def __exit__(self, *_: object) -> None:
        self._total += time.time_ns() - self._entered

    def record(self, name: str, attributes: Mapping[str, int]) -> None:
        if self._first:
            made = tracer().start_span(name, start_time=self._first, attributes=attributes)
            made.end(self._first + self._total)


class Ask:
    """What one caller wants: per key the block, a future of it, or None where nobody has it."""

    def __init__(self, blocks: list[StagedBlock | _Wanted | None]) -> None:
        self._blocks = blocks

    def __len__(self) -> int:
        return len(self._blocks)

    async def block(self, index: int, give_up: float) -> StagedBlock | None:
        """The block at `index`, as soon as it is here; None if it will not come by `give_up`.

        `give_up` is in loop time.
        """
        slot = self._blocks[index]
        if not isinstance(slot, _Wanted):
            return slot
        if not slot.landed.done():
            # `wait`, unlike `wait_for`, leaves the future alone: others wait for it too.
            await asyncio.wait({slot.landed}, timeout=give_up - asyncio.get_running_loop().time())
        return slot.landed.result() if slot.landed.done() else None

    def landed(self, index: int) -> bool:
        """Whether the block at `index` is here now."""
        slot = self._blocks[index]
        if isinstance(slot, _Wanted):
            return slot.landed.done() and slot.landed.result() is not None
        return slot is not None

    async def settle(self, timeout: float) -> None:
        """Waits until nothing is under way any more, at most `timeout` seconds."""
        pending = {slot.landed for slot in self._blocks if isinstance(slot, _Wanted)}
        if pending:
            await asyncio.wait(pending, timeout=timeout)

    def leave(self) -> None:
        """The caller waits no longer; what nobody waits for is cancelled."""
        for slot in self._blocks:
            if isinstance(slot, _Wanted):
                slot.waiters -= 1
        self._blocks = []


class Puller:
    """Pulls under way of this gateway.

    Args:
        holders: usable peers with their views of a namespace, the preferred one first.
        landed: told of each block once it is in staging.
    """

    def __init__(
        self,
        *,
        staging: Staging,
        holders: Callable[[bytes], Sequence[Holder]],
        landed: Callable[[StagedBlock, int], None],
        limits: Limits,
    ) -> None:
        self._staging = staging
        self._holders = holders
        self._landed = landed
        self._limits = limits
        self._under_way: dict[tuple[bytes, str], _Wanted] = {}
        self._slots: dict[str, asyncio.Semaphore] = {}
        self._jobs: dict[str, set[asyncio.Task[None]]] = {}
        self.pull_ms = Samples()
        """From the decision to pull a block until it has landed, in ms."""
        self.view_age_ms = Samples()
        """Age of the freshest view that a look-up was answered from, in ms."""

    @property
    def under_way(self) -> int:
        """Blocks being pulled now."""
        return len(self._under_way)

    def ask(
        self,
        fingerprint: bytes,
        keys: Sequence[str],
        max_sizes: Sequence[int],
        *,
        timeout: float,
        background: float = 0.0,
    ) -> Ask:
        """Starts what has to be pulled of a chain; never waits.

        Args:
            keys: in chain order.
            max_sizes: bytes that the caller has room for, one per key.
            timeout: seconds after which the pulls end.
            background: seconds for which they go on although nobody waits any more.
        """
        now = asyncio.get_running_loop().time()
        blocks: list[StagedBlock | _Wanted | None] = [
            self._staging.get(fingerprint, key) or self._under_way.get((fingerprint, key))
            for key in keys
        ]
        fresh = [index for index, found in enumerate(blocks) if found is None]
        if fresh:
            wanted = [
                _Wanted(
                    keys[index],
                    key_hash(fingerprint, keys[index]),
                    max_sizes[index],
                    asyncio.get_running_loop().create_future(),
                )
                for index in fresh
            ]
            for place in self._start(fingerprint, wanted, now + timeout):
                blocks[fresh[place]] = wanted[place]
                self._under_way[(fingerprint, wanted[place].key)] = wanted[place]
        # A gap ends what a prefix can use: what lies behind it is not waited for.
        end = next((i for i, found in enumerate(blocks) if found is None), len(blocks))
        blocks[end:] = [None] * (len(blocks) - end)
        for slot in blocks[:end]:
            if isinstance(slot, _Wanted):
                slot.waiters += 1
                slot.background_until = max(slot.background_until, now + background)
        return Ask(blocks)

    async def close(self) -> None:
        """Ends every pull."""
        tasks = [task for tasks in self._jobs.values() for task in tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, fingerprint: bytes, wanted: Sequence[_Wanted], deadline: float) -> set[int]:
        """Plans over the holders and starts a stream a run; the places that are now under way."""
        with span(SPAN_GATEWAY_LOCATE, {"moonmesh.keys": len(wanted)}) as here:
            now = time.monotonic()
            holders = self._holders(fingerprint)
            sources = {source.name: source for source, _ in holders}
            views = {source.name: view for source, view in holders}
            ages = [age for view in views.values() if (age := view.age(now)) is not None]
            if ages:
                self.view_age_ms.add(1000 * min(ages))
            tried: set[str] = set().union(*(w.tried for w in wanted))
            runs = plan(
                [w.key_hash for w in wanted],
                [(name, view) for name, view in views.items() if name not in tried],
                now,
            )
            here.set_attribute("moonmesh.located", sum(len(run.indices) for run in runs))
            here.set_attribute("moonmesh.peers", [run.peer for run in runs])
        started: set[int] = set()
        for run in runs:
            jobs = self._jobs.setdefault(run.peer, set())
            if len(jobs) >= JOBS_PER_PEER_MAX:
                counters.add("moonmesh_pulls_shed_total")
                break  # what follows would lie behind a gap
            part = [wanted[index] for index in run.indices]
            task = asyncio.create_task(
                self._pull(sources[run.peer], views[run.peer], fingerprint, part, deadline)
            )
            jobs.add(task)
            task.add_done_callback(jobs.discard)
            started.update(run.indices)
        return started

    async def _pull(
        self,
        source: Source,
        view: CatalogView,
        fingerprint: bytes,
        part: Sequence[_Wanted],
        deadline: float,
    ) -> None:
        """One stream, and what remains after it: asked of another holder, or given up."""
        loop = asyncio.get_running_loop()
        slot = self._slots.setdefault(source.name, asyncio.Semaphore(self._limits.pulls_per_peer))
        others = False
        """Whether what is left may be asked of another holder."""
        try:
            async with timeout_at(deadline):
                await slot.acquire()
            try:
                await self._stream(source, view, fingerprint, part, deadline)
            finally:
                slot.release()
            source.succeeded()
            others = True
        except NoRoomError:
            counters.add("moonmesh_staging_full_total")
            source.abandoned()
        except _NobodyWaits:
            source.abandoned()
        except asyncio.CancelledError:
            source.abandoned()
            raise
        except asyncio.TimeoutError:
            counters.add("moonmesh_pulls_shed_total")
        except PeerError as error:
            counters.add("moonmesh_pull_errors_total")
            source.failed(error)
            others = True
        finally:
            left = [wanted for wanted in part if not wanted.landed.done()]
            for wanted in left:
                wanted.tried.add(source.name)
            now = loop.time()
            again: set[int] = set()
            if others and now < deadline and any(w.wanted(now) for w in left):
                again = self._start(fingerprint, left, deadline)
            for place, wanted in enumerate(left):
                if place not in again:
                    self._settle(fingerprint, wanted, None)

    async def _stream(
        self,
        source: Source,
        view: CatalogView,
        fingerprint: bytes,
        part: Sequence[_Wanted],
        deadline: float,
    ) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        asked_at = time.monotonic()
        decoder = Decoder(
            [w.max_size for w in part],
            self._limits.message_bytes + HEADER_BYTES * (1 + len(part)),
            lambda size: self._staging.reserve(size, time.monotonic()),
        )
        request = peer_pb2.PullRequest(
            fingerprint=fingerprint,
            keys=[w.key for w in part],
            max_sizes=[w.max_size for w in part],
        )
        try:
            with span(
                SPAN_PEER_PULL, {"moonmesh.peer": source.name, "moonmesh.keys": len(part)}
            ) as here:
                verifying = _Stopwatch()
                arrived = 0
                async with aclosing(source.pull(request, deadline - began)) as messages:
                    async for message in messages:
                        for event in decoder.feed(message):
                            wanted = part[event.index]
                            if not isinstance(event, Block):
                                view.refute(wanted.key_hash, time.monotonic())
                                counters.add("moonmesh_pull_missing_total")
                                continue
                            with verifying:
                                block = self._verify(source, fingerprint, wanted, event, asked_at)
                            arrived += 1
                            self.pull_ms.add(1000 * (loop.time() - began))
                            counters.add("moonmesh_peer_blocks_total")
                            counters.add("moonmesh_peer_bytes_total", len(block.data))
                            self._settle(fingerprint, wanted, block)
                            self._landed(block, event.hops + 1)
                        if self._abandoned(part, loop.time()):
                            raise _NobodyWaits
                if not decoder.ended:
                    raise PeerError("the answer was cut short", where=source.name)
                here.set_attribute("moonmesh.blocks", arrived)
                here.set_attribute("moonmesh.bytes", decoder.payload_bytes)
                verifying.record(SPAN_TRANSFER_VERIFY, {"moonmesh.blocks": arrived})
        finally:
            self._staging.release(decoder.unfinished_bytes)

    @staticmethod
    def _abandoned(part: Sequence[_Wanted], now: float) -> bool:
        """Whether blocks are still to come, and nobody waits for any of them."""
        left = [wanted for wanted in part if not wanted.landed.done()]
        return bool(left) and not any(wanted.wanted(now) for wanted in left)

    def _verify(
        self, source: Source, fingerprint: bytes, wanted: _Wanted, block: Block, asked_at: float
    ) -> StagedBlock:
        size = len(block.data)
        if block_digest(fingerprint, wanted.key, block.data) != block.digest:
            self._staging.release(size)
            counters.add("moonmesh_digest_mismatch_total")
            raise PeerError(
                f"block {wanted.key!r} does not match its digest; nothing of it is kept",
                where=source.name,
            )
        staged = StagedBlock(
            fingerprint,
            wanted.key,
            block.data,
            block.digest,
            source.name,
            source.epoch,
            asked_at,
            time.monotonic(),
        )
        self._staging.land(staged, size)
        return staged

    def _settle(self, fingerprint: bytes, wanted: _Wanted, block: StagedBlock | None) -> None:
        self._under_way.pop((fingerprint, wanted.key), None)
        if not wanted.landed.done():
            wanted.landed.set_result(block)
