"""Takes the answer of one peer into staging, block by block, and looks at each before anybody has it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing

from federation.catalog.view import CatalogView
from federation.config import Limits
from federation.counters import Samples, counters
from federation.errors import PeerError
from federation.limits.ticket import Ticket
from federation.stopwatch import Stopwatch
from federation.telemetry import SPAN_PEER_PULL, SPAN_TRANSFER_VERIFY, span
from federation.transfer.ask import NobodyWaits, Wanted
from federation.transfer.frames import HEADER_BYTES, Block, Decoder
from federation.transfer.source import Source
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
        settle: told of each block, of whom it was wanted, once it is in staging.
        unattested: fingerprints of namespaces of which such blocks are taken.
    """

    def __init__(
        self,
        *,
        staging: Staging,
        settle: Callable[[bytes, Wanted, StagedBlock], None],
        limits: Limits,
        unattested: Collection[bytes],
    ) -> None:
        self._staging = staging
        self._settle = settle
        self._limits = limits
        self._unattested = frozenset(unattested)
        self.speeds = Speeds(limits.peer_bytes_per_s)
        """What it takes to pull from each peer."""
        self.pull_ms = Samples()
        """From the decision to pull a block until it has landed, in ms."""

    async def take(
        self,
        ticket: Ticket,
        source: Source,
        view: CatalogView,
        fingerprint: bytes,
        part: Sequence[Wanted],
        deadline: float,
    ) -> int:
        """Takes one answer; how many blocks the peer does not have.

        It is listened to for `peer_silence_ms` at least, whatever the deadline: a caller in a hurry
        finds out nothing about the peer, and the next ones have to know.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        owed = self._limits.peer_silence_ms / 1000 + LISTEN_MORE_SECONDS
        seconds = max(deadline - began, owed)
        timed = self.speeds.begin(source.name, began)
        asked_at = time.monotonic()
        decoder = Decoder(
            [w.max_size for w in part],
            self._limits.message_bytes + HEADER_BYTES * (1 + len(part)),
            lambda index, size: self._staging.reserve(size, time.monotonic(), source.name),
        )
        request = peer_pb2.PullRequest(
            fingerprint=fingerprint,
            keys=[w.key for w in part],
            max_sizes=[w.max_size for w in part],
            unattested=fingerprint in self._unattested,
        )
        try:
            with span(
                SPAN_PEER_PULL, {"moonmesh.peer": source.name, "moonmesh.keys": len(part)}
            ) as here:
                verifying = Stopwatch()
                arrived = missing = 0
                async with aclosing(source.pull(request, seconds)) as messages:
                    async for message in messages:
                        for event in decoder.feed(message):
                            source.guard.useful(time.monotonic())
                            wanted = part[event.index]
                            if not isinstance(event, Block):
                                missing += 1
                                view.refute(wanted.key_hash, time.monotonic(), wanted.max_size)
                                counters.add("moonmesh_pull_missing_total")
                                continue
                            with verifying:
                                block = self._land(source, fingerprint, wanted, event, asked_at)
                            arrived += 1
                            view.came(len(block.data))
                            self.pull_ms.add(1000 * (loop.time() - began))
                            counters.add("moonmesh_peer_blocks_total")
                            counters.add("moonmesh_peer_bytes_total", len(block.data))
                            self._settle(fingerprint, wanted, block)
                        now = loop.time()
                        if arrived:
                            timed.came(len(message), now)
                        told = arrived or missing or now - began >= owed
                        if told and self._abandoned(part, deadline, now):
                            raise NobodyWaits(arrived, missing)
                        if pause := ticket.spend(len(message), time.monotonic()):
                            # Not reading slows the peer down, once its window is full.
                            await asyncio.sleep(min(pause, max(0.0, deadline - loop.time())))
                if not decoder.ended:
                    raise PeerError("the answer was cut short", where=source.name)
                here.set_attribute("moonmesh.blocks", arrived)
                here.set_attribute("moonmesh.bytes", decoder.payload_bytes)
                verifying.record(SPAN_TRANSFER_VERIFY, {"moonmesh.blocks": arrived})
                return missing
        finally:
            timed.done()
            self._staging.release(decoder.unfinished_bytes, source.name)

    @staticmethod
    def _abandoned(part: Sequence[Wanted], deadline: float, now: float) -> bool:
        """Whether the time is over, or blocks are still to come and nobody waits for any of them."""
        left = [wanted for wanted in part if not wanted.landed.done()]
        return now >= deadline or (bool(left) and not any(wanted.wanted(now) for wanted in left))

    def _land(
        self, source: Source, fingerprint: bytes, wanted: Wanted, block: Block, asked_at: float
    ) -> StagedBlock:
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
