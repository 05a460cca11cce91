"""Pulls blocks of peers into staging: who is asked, one pull a block, what is done where one fails.

An `Ask` joins what is staged or under way already and plans the rest from the catalog views alone; no
peer is asked whether it has a block. What arrives is looked at in `federation.transfer.intake`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence

from federation.catalog.view import CatalogView
from federation.config import Limits
from federation.counters import Samples, counters
from federation.errors import PeerError
from federation.identity import key_hash
from federation.limits.errors import ShedError
from federation.limits.names import Failure, GuardName
from federation.limits.ticket import Cost, Refusal, Ticket
from federation.request_limits import RequestLimits
from federation.telemetry import SPAN_GATEWAY_LOCATE, span
from federation.transfer.ask import Ask, NobodyWaits, Wanted
from federation.transfer.frames import NoRoomError
from federation.transfer.intake import Intake
from federation.transfer.planner import Planner
from federation.transfer.source import Holder, Source
from federation.transfer.staging import StagedBlock, Staging
from federation.transfer.turns import Turns

__all__ = ["Ask", "Holder", "Puller", "Source"]

log = logging.getLogger(__name__)


class Puller:
    """Pulls under way of this gateway.

    Args:
        holders: usable peers with their views of a namespace, the preferred one first.
        landed: told of each block once it is in staging.
        unattested: fingerprints of namespaces of which such blocks are taken.
        block_seconds: what computing a block of a namespace takes an engine, where that is known.
    """

    def __init__(
        self,
        *,
        staging: Staging,
        holders: Callable[[bytes], Sequence[Holder]],
        landed: Callable[[StagedBlock], None],
        limits: Limits,
        unattested: Collection[bytes] = frozenset(),
        block_seconds: Callable[[bytes], float | None] = lambda _: None,
    ) -> None:
        self._staging = staging
        self._holders = holders
        self._landed = landed
        self._limits = limits
        self._fits = RequestLimits(
            keys=limits.peer_request_keys_max, message_bytes=limits.control_message_bytes_max
        )
        self._under_way: dict[tuple[bytes, str], Wanted] = {}
        self._turns = Turns()
        self._jobs: dict[str, set[asyncio.Task[None]]] = {}
        self._intake = Intake(
            staging=staging, settle=self._arrived, limits=limits, unattested=unattested
        )
        self.speeds = self._intake.speeds
        self.planner = Planner(self.speeds, block_seconds)
        """Says what is pulled from whom."""
        self.pull_ms = self._intake.pull_ms
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
        whatever_it_takes: bool = False,
    ) -> Ask:
        """Starts what has to be pulled of a chain; never waits.

        Args:
            keys: in chain order.
            max_sizes: bytes that the caller has room for, one per key.
            timeout: seconds after which the pulls end.
            background: seconds for which they go on although nobody waits any more.
            whatever_it_takes: also what is cheaper to compute.
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
            started = {
                in_order[place].key
                for place in self._start(fingerprint, in_order, now + timeout, whatever_it_takes)
            }
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

    def _start(
        self,
        fingerprint: bytes,
        wanted: Sequence[Wanted],
        deadline: float,
        whatever_it_takes: bool,
    ) -> set[int]:
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
            plan = self.planner.plan(
                fingerprint,
                [w.key_hash for w in wanted],
                [(name, view) for name, view in views.items() if name not in tried],
                now,
                whatever_it_takes=whatever_it_takes,
            )
            here.set_attributes(plan.attributes())
        counters.add("moonmesh_recompute_blocks_total", plan.left)
        counters.add("moonmesh_trial_blocks_total", plan.trial)
        started: set[int] = set()
        for run in plan.runs:
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
                # What lies behind it is on its way: it is worth what it takes.
                again = self._start(fingerprint, left, deadline, whatever_it_takes=True)
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
            missing = await self._intake.take(ticket, source, view, fingerprint, part, deadline)
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

    def _give_up(self, fingerprint: bytes, part: Sequence[Wanted]) -> None:
        """The deadline has passed: what has not landed is not waited for any more."""
        for wanted in part:
            self._settle(fingerprint, wanted, None)

    def _arrived(self, fingerprint: bytes, wanted: Wanted, block: StagedBlock) -> None:
        self._settle(fingerprint, wanted, block)
        self._landed(block)

    def _settle(self, fingerprint: bytes, wanted: Wanted, block: StagedBlock | None) -> None:
        name = (fingerprint, wanted.key)
        if self._under_way.get(name) is wanted:  # it may be asked for anew by now
            del self._under_way[name]
        if not wanted.landed.done():
            wanted.landed.set_result(block)
