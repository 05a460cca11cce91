"""Takes the answer of one peer into staging, block by block, and looks at each before anybody has it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import aclosing

from federation.config import Limits
from federation.counters import Samples, counters
from federation.errors import PeerError
from federation.interruptible import interruptible
from federation.limits.errors import LateError
from federation.limits.ticket import Ticket
from federation.stopwatch import Stopwatch
from federation.telemetry import SPAN_PEER_PULL, SPAN_TRANSFER_VERIFY, span
from federation.transfer.ask import NobodyWaits, Wanted
from federation.transfer.dispatch import Turn
from federation.transfer.frames import HEADER_BYTES, Block, Decoder, Missing
from federation.transfer.hedge import Hedges
from federation.transfer.job import Job
from federation.transfer.landing import Taken
from federation.transfer.speed import Speeds
from federation.transfer.staging import StagedBlock, Staging
from federation.transfer.verify import verify
from local_group.holdings import HOPS_MAX
from moonmesh.v1 import peer_pb2

LISTEN_MORE_SECONDS = 0.02
"""A pull is listened to for this much longer than the silence that is held against a peer: timers are
not exact."""


class Intake:
    """See the module. A block that does not match its digest goes no further than this.

    Args:
        settle: told of each block, and who waits for it, once it is in staging.
        came: told of the bytes of each message once they are dealt with.
        unattested: fingerprints of namespaces of which such blocks are taken.
    """

    def __init__(
        self,
        *,
        staging: Staging,
        settle: Callable[[bytes, Wanted, StagedBlock], None],
        came: Callable[[Turn, int], None],
        limits: Limits,
        unattested: Collection[bytes],
    ) -> None:
        self._staging = staging
        self._settle = settle
        self._came = came
        self._limits = limits
        self._unattested = frozenset(unattested)
        self.speeds = Speeds(limits.peer_bytes_per_s)
        """What it takes to pull from each peer."""
        self.hedges = Hedges()
        """When a peer is late, and who is asked then."""
        self.pull_ms = Samples()
        """From the decision to pull a block until it has landed, in ms."""

    async def take(self, ticket: Ticket, job: Job) -> None:
        """Takes one answer; what came of it is in `job`.

        The peer is listened to for `peer_silence_ms` at least, whatever the deadline: a caller in a hurry
        finds out nothing about the peer, and the next ones have to know.

        Raises:
            NobodyWaits: before the end, all who asked have left, or their time is over.
            PeerError: what the peer sent, or that it did not.
            NoRoomError: there is no room in staging.
        """
        source, part = job.source, job.part
        loop = asyncio.get_running_loop()
        job.began = began = loop.time()
        owed = self._limits.peer_silence_ms / 1000 + LISTEN_MORE_SECONDS
        seconds = max(job.deadline - began, owed)
        job.stream_ends = began + seconds
        claim = job.turn.claim
        timed = self.speeds.begin(source.name, began, claim.pull_class.name)
        asked_at = time.monotonic()
        room = _Room(self._staging, source.name)
        ended, landed = False, 0
        untouched: Iterator[Block | Missing] = iter(())
        """Blocks of a message that another process took apart, which nobody has looked at."""
        decoder = Decoder(
            [w.max_size for w in part],
            self._limits.message_bytes + HEADER_BYTES * (1 + len(part)),
            room.take,
        )
        request = peer_pb2.PullRequest(
            fingerprint=job.fingerprint,
            keys=[w.key for w in part],
            max_sizes=[w.max_size for w in part],
            unattested=job.fingerprint in self._unattested,
            pull_class=claim.pull_class.name,
            credit=0 if claim.free else claim.initial,
        )
        allowance = None if claim.free else job.turn.allowance
        try:
            with span(
                SPAN_PEER_PULL,
                {
                    "moonmesh.peer": source.name,
                    "moonmesh.keys": len(part),
                    "moonmesh.class": claim.pull_class.name,
                },
            ) as here:
                verifying = Stopwatch()
                with interruptible() as job.stream:
                    async with aclosing(source.pull(request, seconds, allowance, room)) as messages:
                        async for message in messages:
                            if isinstance(message, Taken):
                                size, events = message.size, iter(message.events)
                                untouched = events
                            else:
                                size, events = len(message), decoder.feed(message)
                            for event in events:
                                source.guard.useful(time.monotonic())
                                if job.silent:
                                    self.hedges.came(source.name, loop.time() - began)
                                wanted = part[event.index]
                                if not isinstance(event, Block):
                                    self._lacks(job, wanted)
                                    continue
                                with verifying:
                                    block = self._land(job, wanted, event, asked_at)
                                if block is None:
                                    continue
                                if (rival := job.rival) is not None and not rival.lost:
                                    rival.lose(rival.began + owed)
                                self.pull_ms.add(1000 * (loop.time() - began))
                                landed += len(block.data)
                                self._settle(job.fingerprint, wanted, block)
                            now = loop.time()
                            timed.came(size, now)
                            told = job.arrived or job.missing or now - began >= owed
                            if told and job.abandoned(now):
                                raise NobodyWaits(job.arrived, job.missing)
                            if pause := ticket.spend(size, time.monotonic()):
                                # Not reading slows the peer down, once its window is full.
                                left = max(0.0, job.deadline - loop.time())
                                await asyncio.sleep(min(pause, left))
                            self._came(job.turn, size)
                            ended = message.ended if isinstance(message, Taken) else decoder.ended
                if job.late:
                    raise LateError(f"nothing came for {owed:g} s", where=source.name)
                if job.stream.interrupted:
                    raise NobodyWaits(job.arrived, job.missing)
                if not ended:
                    raise PeerError("the answer was cut short", where=source.name)
                here.set_attribute("moonmesh.blocks", job.arrived)
                here.set_attribute("moonmesh.bytes", landed)
                verifying.record(SPAN_TRANSFER_VERIFY, {"moonmesh.blocks": job.arrived})
        finally:
            if job.lost and job.silent:  # it would have been later still
                self.hedges.came(source.name, loop.time() - began)
            if job.arrived:
                timed.done()
            self._staging.release(decoder.unfinished_bytes, source.name)
            for event in untouched:
                if isinstance(event, Block):
                    room.give(len(event.data))

    def _lacks(self, job: Job, wanted: Wanted) -> None:
        """The peer says that it does not have a block."""
        job.missing += 1
        job.view.refute(wanted.key_hash, time.monotonic(), wanted.max_size)
        counters.add("moonmesh_pull_missing_total")

    def _land(self, job: Job, wanted: Wanted, block: Block, asked_at: float) -> StagedBlock | None:
        """The block in staging; None if another peer brought it before."""
        source, fingerprint = job.source, job.fingerprint
        size = len(block.data)
        try:
            verify(
                source,
                fingerprint,
                wanted.key,
                block,
                hop_limit=self._limits.hop_limit,
                unattested=fingerprint in self._unattested,
            )
        except PeerError:
            self._staging.release(size, source.name)
            raise
        job.arrived += 1
        job.view.came(size)
        counters.add("moonmesh_peer_blocks_total")
        counters.add("moonmesh_peer_bytes_total", size)
        if wanted.landed.done() and wanted.landed.result() is not None:
            self._staging.release(size, source.name)
            return None
        staged = StagedBlock(
            fingerprint,
            wanted.key,
            block.data,
            block.digest,
            source.name,
            source.epoch,
            asked_at,
            time.monotonic(),
            block.hops + 1 if block.attested else HOPS_MAX,
        )
        self._staging.land(staged, size)
        return staged


class _Room:
    """Memory of staging for what one peer sends: see `federation.transfer.landing.Room`."""

    def __init__(self, staging: Staging, origin: str) -> None:
        self._staging = staging
        self._origin = origin

    def take(self, index: int, size: int) -> memoryview | None:
        return self._staging.reserve(size, time.monotonic(), self._origin)

    def give(self, size: int) -> None:
        self._staging.release(size, self._origin)
