"""Pulls blocks of peers into staging: who is asked, one pull a block, what becomes of what arrives.

An `Ask` joins what is staged or under way already and plans the rest from the catalog views alone; no
peer is asked whether it has a block. A block that does not match its digest never leaves this module.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing

from federation.catalog.plan import plan
from federation.catalog.view import CatalogView
from federation.config import Limits
from federation.counters import Samples, counters
from federation.errors import PeerError
from federation.identity import key_hash
from federation.limits.errors import ShedError
from federation.limits.names import Failure, GuardName
from federation.limits.ticket import Cost, Refusal, Ticket
from federation.request_limits import RequestLimits
from federation.stopwatch import Stopwatch
from federation.telemetry import SPAN_GATEWAY_LOCATE, SPAN_PEER_PULL, SPAN_TRANSFER_VERIFY, span
from federation.transfer.ask import Ask, NobodyWaits, Wanted
from federation.transfer.frames import HEADER_BYTES, Block, Decoder, NoRoomError
from federation.transfer.source import Holder, Source
from federation.transfer.speed import Speeds
from federation.transfer.staging import StagedBlock, Staging
from federation.transfer.turns import Turns
from federation.transfer.verify import verify
from local_group.holdings import HOPS_MAX
from moonmesh.v1 import peer_pb2

__all__ = ["Ask", "Holder", "Puller", "Source"]

log = logging.getLogger(__name__)

LISTEN_MORE_SECONDS = 0.02
"""A pull is listened to for this much longer than the silence that is held against a peer: timers are
not exact."""


class Puller:
    """Pulls under way of this gateway.

    Args:
        holders: usable peers with their views of a namespace, the preferred one first.
        landed: told of each block once it is in staging.
        unattested: fingerprints of namespaces of which such blocks are taken.
    """

    def __init__(
        self,
        *,
        staging: Staging,
        holders: Callable[[bytes], Sequence[Holder]],
        landed: Callable[[StagedBlock], None],
        limits: Limits,
        unattested: Collection[bytes] = frozenset(),
    ) -> None:
        self._staging = staging
        self._unattested = frozenset(unattested)
        self._holders = holders
        self._landed = landed
        self._limits = limits
        self._fits = RequestLimits(
            keys=limits.peer_request_keys_max, message_bytes=limits.control_message_bytes_max
        )
        self._under_way: dict[tuple[bytes, str], Wanted] = {}
        self._turns = Turns()
        self._jobs: dict[str, set[asyncio.Task[None]]] = {}
        self.speeds = Speeds(limits.peer_bytes_per_s)
        """What it takes to pull from each peer."""
        self.pull_ms = Samples()
        """From the decision to pull a block until it has landed, in ms."""
        self.view_age_ms = Samples()
        """Age of the freshest view that a look-up was answered from, in ms."""

    @property
    def under_way(self) -> int:
        """Blocks being pulled now."""
        return len(self._under_way)

    @property
    def waiting(self) -> int:
        """Pulls that run or wait, of the peer with most of them."""
        return max(map(len, self._jobs.values()), default=0)

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
        blocks: list[StagedBlock | Wanted | None] = [
            self._staging.get(fingerprint, key) or self._under_way.get((fingerprint, key))
            for key in keys
        ]
        fresh = [index for index, found in enumerate(blocks) if found is None]
        if fresh:
            wanted = {
                keys[index]: Wanted(
                    keys[index],
                    key_hash(fingerprint, keys[index]),
                    max_sizes[index],
                    asyncio.get_running_loop().create_future(),
                )
                for index in fresh  # a key that is asked for twice is wanted once
            }
            in_order = list(wanted.values())
            started = {in_order[p].key for p in self._start(fingerprint, in_order, now + timeout)}
            for key in started:
                self._under_way[(fingerprint, key)] = wanted[key]
            for index in fresh:
                blocks[index] = wanted[keys[index]] if keys[index] in started else None
        # A gap ends what a prefix can use: what lies behind it is not waited for.
        end = next((i for i, found in enumerate(blocks) if found is None), len(blocks))
        blocks[end:] = [None] * (len(blocks) - end)
        for slot in blocks[:end]:
            if isinstance(slot, Wanted):
                slot.waiters += 1
                slot.background_until = max(slot.background_until, now + background)
        return Ask(blocks)

    async def close(self) -> None:
        """Ends every pull."""
        tasks = [task for tasks in self._jobs.values() for task in tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, fingerprint: bytes, wanted: Sequence[Wanted], deadline: float) -> set[int]:
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
            for piece in self._fits.pieces([wanted[index].key for index in run.indices]):
                if len(jobs) >= self._limits.pulls_waiting_per_peer:
                    counters.add("moonmesh_pulls_shed_total")
                    return started  # what follows would lie behind a gap
                indices = run.indices[piece]
                part = [wanted[index] for index in indices]
                task = asyncio.create_task(
                    self._pull(sources[run.peer], views[run.peer], fingerprint, part, deadline)
                )
                jobs.add(task)
                task.add_done_callback(jobs.discard)
                started.update(indices)
        return started

    async def _pull(
        self,
        source: Source,
        view: CatalogView,
        fingerprint: bytes,
        part: Sequence[Wanted],
        deadline: float,
    ) -> None:
        """One stream, and what remains after it: asked of another holder, or given up."""
        loop = asyncio.get_running_loop()
        # Whoever waits is told at the deadline; the stream may be listened to for a moment more.
        give_up = loop.call_at(deadline, self._give_up, fingerprint, part)
        others = False
        """Whether what is left may be asked of another holder."""
        try:
            cost = Cost(retry=any(wanted.asked for wanted in part))
            ticket = await self._turns.admit(source.guard, cost, deadline)
            if not isinstance(ticket, Refusal):
                await self._with_ticket(ticket, source, view, fingerprint, part, deadline)
                source.absolve()
            elif ticket.passes:
                counters.add("moonmesh_pulls_shed_total")
            others = True
        except NoRoomError:
            counters.add("moonmesh_staging_full_total")
            source.guard.refuse(GuardName.STAGING, time.monotonic())
        except NobodyWaits:
            pass
        except PeerError as error:
            counters.add("moonmesh_pull_errors_total")
            source.blame(error)
            others = True
        except Exception:
            # A defect of ours: whoever waits must not wait for it, nor the peer be blamed.
            counters.add("moonmesh_pull_defects_total")
            log.exception("a pull from %s ended by a defect", source.name)
        finally:
            give_up.cancel()
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

    async def _with_ticket(
        self,
        ticket: Ticket,
        source: Source,
        view: CatalogView,
        fingerprint: bytes,
        part: Sequence[Wanted],
        deadline: float,
    ) -> None:
        """A stream, with what it says of the peer told to its guard, however it ends."""
        for wanted in part:
            wanted.asked = True
        how, retry_after = Failure.OURS, 0.0
        try:
            missing = await self._stream(ticket, source, view, fingerprint, part, deadline)
            ticket.done(time.monotonic(), promised=len(part), kept=len(part) - missing)
        except NobodyWaits as end:
            told = end.arrived + end.missing
            if told:  # late for its callers, and well all the same
                ticket.done(time.monotonic(), promised=told, kept=end.arrived)
            raise
        except PeerError as error:
            how = Failure(error.failure)
            retry_after = error.retry_after if isinstance(error, ShedError) else 0.0
            raise
        finally:
            ticket.done(time.monotonic(), ok=False, kind_of_failure=how, retry_after=retry_after)

    async def _stream(
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
                            timed.came(len(block.data), loop.time())
                            view.came(len(block.data))
                            self.pull_ms.add(1000 * (loop.time() - began))
                            counters.add("moonmesh_peer_blocks_total")
                            counters.add("moonmesh_peer_bytes_total", len(block.data))
                            self._settle(fingerprint, wanted, block)
                            self._landed(block)
                        now = loop.time()
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

    def _give_up(self, fingerprint: bytes, part: Sequence[Wanted]) -> None:
        """The deadline has passed: what has not landed is not waited for any more."""
        for wanted in part:
            self._settle(fingerprint, wanted, None)

    def _settle(self, fingerprint: bytes, wanted: Wanted, block: StagedBlock | None) -> None:
        name = (fingerprint, wanted.key)
        if self._under_way.get(name) is wanted:  # it may be asked for anew by now
            del self._under_way[name]
        if not wanted.landed.done():
            wanted.landed.set_result(block)
