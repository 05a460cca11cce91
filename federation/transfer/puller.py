"""Pulls blocks of peers into staging: who is asked, one pull a block, what is done where one fails.

An `Ask` joins what is staged or under way already and plans the rest from the catalog views alone; no
peer is asked whether it has a block. What arrives is looked at in `federation.transfer.intake`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence

from federation.catalog.view import CatalogView
from federation.config import Limits
from federation.counters import Samples, counters
from federation.ending import ended
from federation.errors import PeerError
from federation.identity import key_hash
from federation.limits.errors import ShedError
from federation.limits.names import Failure, GuardName
from federation.limits.ticket import Cost, Refusal, Ticket
from federation.request_limits import RequestLimits
from federation.telemetry import SPAN_GATEWAY_LOCATE, span
from federation.transfer.ask import Ask, Carrier, NobodyWaits, Wanted
from federation.transfer.dispatch import Dispatch
from federation.transfer.fair import PullClass
from federation.transfer.frames import HEADER_BYTES, NoRoomError
from federation.transfer.intake import Intake
from federation.transfer.job import Job
from federation.transfer.planner import Plan, Planner, Run
from federation.transfer.schedule import LOWER_BLOCKS_MAX
from federation.transfer.source import Holder, Source
from federation.transfer.staging import StagedBlock, Staging

__all__ = ["Ask", "Holder", "Puller", "Source"]

log = logging.getLogger(__name__)


class Puller:
    """Pulls under way of this gateway.

    Args:
        holders: usable peers with their views of a namespace, the preferred one first.
        landed: told of each block once it is in staging.
        unattested: fingerprints of namespaces of which such blocks are taken.
        block_seconds: what computing a block of a namespace takes an engine, where that is known.
        idle: called whenever no block is being pulled any more.
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
        idle: Callable[[], None] = lambda: None,
    ) -> None:
        self._staging = staging
        self._holders = holders
        self._landed = landed
        self._limits = limits
        self._fits = RequestLimits(
            keys=limits.peer_request_keys_max, message_bytes=limits.control_message_bytes_max
        )
        self._under_way: dict[tuple[bytes, str], Wanted] = {}
        self._idle = idle
        self._dispatch = Dispatch(limits)
        self._jobs: dict[str, dict[asyncio.Task[None], Job]] = {}
        self._intake = Intake(
            staging=staging,
            settle=self._arrived,
            came=self._dispatch.came,
            limits=limits,
            unattested=unattested,
        )
        self.speeds = self._intake.speeds
        self.planner = Planner(self.speeds, block_seconds)
        """Says what is pulled from whom."""
        self.pull_ms = self._intake.pull_ms
        self.hedges = self._intake.hedges
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
        pull_class: PullClass = PullClass.BATCH,
        whatever_it_takes: bool = False,
    ) -> Ask:
        """Starts what has to be pulled of a chain; never waits.

        Args:
            keys: in chain order.
            max_sizes: bytes that the caller has room for, one per key.
            timeout: seconds after which the pulls end.
            background: seconds for which they go on although nobody waits any more.
            pull_class: how urgent it is. A pull that is under way already is lifted to it.
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
                    pull_class,
                    now + timeout,
                )
                for index in fresh  # a key that is asked for twice is wanted once
            }
            started = self._start(fingerprint, list(wanted.values()), whatever_it_takes)
            for key in started:
                self._under_way[(fingerprint, key)] = wanted[key]
            for index in fresh:
                blocks[index] = wanted[keys[index]] if keys[index] in started else None
        # A gap ends what a prefix can use: what lies behind it is not waited for.
        end = next((i for i, found in enumerate(blocks) if found is None), len(blocks))
        blocks[end:] = [None] * (len(blocks) - end)
        changed: dict[int, Carrier] = {}
        for slot in blocks[:end]:
            if isinstance(slot, Wanted):
                changes = slot.ask(pull_class, now + timeout, now + background)
                if changes and slot.carrier is not None:
                    changed[id(slot.carrier)] = slot.carrier
        for carrier in changed.values():
            carrier.reclass()
        return Ask(blocks, pull_class)

    def drop(self, peer: str) -> None:
        """Ends every pull from a peer, also those that wait; what they lack is asked of other holders."""
        for task, job in list(self._jobs.get(peer, {}).items()):
            job.dropped = True
            task.cancel()

    async def close(self) -> None:
        """Ends every pull."""
        await ended(task for tasks in self._jobs.values() for task in tasks)

    def _start(
        self,
        fingerprint: bytes,
        wanted: Sequence[Wanted],
        whatever_it_takes: bool,
    ) -> set[str]:
        """Plans over the holders and starts a stream a run; the keys that are now under way."""
        tried: set[str] = set().union(*(w.tried for w in wanted))
        plan, holders = self._plan(fingerprint, wanted, tried, whatever_it_takes)
        counters.add("moonmesh_recompute_blocks_total", plan.left)
        counters.add("moonmesh_trial_blocks_total", plan.trial)
        started: set[str] = set()
        for run in plan.runs:
            for indices in self._requests(run, wanted):
                part = [wanted[index] for index in indices]
                job = self._join(*holders[run.peer], fingerprint, part)
                if job is None:
                    counters.add("moonmesh_pulls_shed_total")
                    return started  # what follows would lie behind a gap
                self._run(job)
                started.update(each.key for each in part)
        return started

    def _plan(
        self,
        fingerprint: bytes,
        wanted: Sequence[Wanted],
        without: Collection[str],
        whatever_it_takes: bool,
    ) -> tuple[Plan, dict[str, Holder]]:
        """Whom to ask for what, and all who could be asked by their names."""
        with span(SPAN_GATEWAY_LOCATE, {"moonmesh.keys": len(wanted)}) as here:
            now = time.monotonic()
            holders = {source.name: (source, view) for source, view in self._holders(fingerprint)}
            ages = [age for _, view in holders.values() if (age := view.age(now)) is not None]
            if ages:
                self.view_age_ms.add(1000 * min(ages))
            plan = self.planner.plan(
                fingerprint,
                [w.key_hash for w in wanted],
                [(name, view) for name, (_, view) in holders.items() if name not in without],
                now,
                kind=min(w.pull_class for w in wanted).name,
                whatever_it_takes=whatever_it_takes,
            )
            here.set_attributes(plan.attributes())
        return plan, holders

    def _hedge(self, job: Job) -> None:
        """The peer is later than it ever is: another one that has all of it is asked as well."""
        part = job.part
        if not job.silent or not job.active or job.abandoned(asyncio.get_running_loop().time()):
            return
        if job.turn.claim.pull_class is not PullClass.FIRST_TOKEN:
            return  # who waited for it has left
        if any(wanted.hedged or wanted.landed.done() for wanted in part):
            return
        tried: set[str] = {job.source.name}.union(*(w.tried for w in part))
        # What lies behind it is on its way: it is worth what it takes.
        (runs, *_), holders = self._plan(job.fingerprint, part, tried, whatever_it_takes=True)
        if len(runs) != 1 or len(runs[0].indices) != len(part) or not self.hedges.take():
            return
        other = self._join(*holders[runs[0].peer], job.fingerprint, part)
        if other is None:
            return
        counters.add("moonmesh_pulls_hedged_total")
        other.hedge, other.rival, job.rival = True, job, other
        for wanted in part:
            wanted.hedged = True
        self._run(other)

    def _requests(self, run: Run, wanted: Sequence[Wanted]) -> Iterator[Sequence[int]]:
        """A run in what fits one request each."""
        for piece in self._fits.pieces([wanted[index].key for index in run.indices]):
            indices = run.indices[piece]
            lower = all(wanted[i].pull_class is not PullClass.FIRST_TOKEN for i in indices)
            step = LOWER_BLOCKS_MAX if lower else len(indices)
            for start in range(0, len(indices), step):
                yield indices[start : start + step]

    def _join(
        self,
        source: Source,
        view: CatalogView,
        fingerprint: bytes,
        part: Sequence[Wanted],
    ) -> Job | None:
        """A request that waits for its turn; None if there is no room for it."""
        cost = Cost(retry=any(wanted.asked for wanted in part))
        pull_class = min(wanted.pull_class for wanted in part)
        size = None if view.mean_size is None else int(view.mean_size) + HEADER_BYTES
        expects = None if size is None else size * len(part) + HEADER_BYTES
        turn = self._dispatch.join(source.guard, cost, pull_class, fingerprint, len(part), expects)
        if turn is None:
            return None
        job = Job(source, view, fingerprint, part, turn, self._dispatch)
        for each in part:
            each.carrier = job
        return job

    def _run(self, job: Job) -> None:
        jobs = self._jobs.setdefault(job.source.name, {})
        task = asyncio.create_task(self._pull(job))

        def ended(task: asyncio.Task[None]) -> None:
            del jobs[task]
            self._dispatch.leave(job.turn)  # here, for a task that ends before it runs
            if job.dropped and job.active:
                self._ended(job, others=True, same=False)

        jobs[task] = job
        task.add_done_callback(ended)

    async def _pull(self, job: Job) -> None:
        """One stream, and what remains after it: asked of another holder, or given up."""
        source = job.source
        self._give_up(job)
        others = same = False
        """Whether what is left may be asked of another holder, and of this one again."""
        try:
            ticket = await job.admitted()
            if not isinstance(ticket, Refusal):
                await self._with_ticket(ticket, job)
                source.absolve()
            elif ticket.passes:
                counters.add("moonmesh_pulls_shed_total")
            others = True
        except NoRoomError:
            counters.add("moonmesh_staging_full_total")
            source.guard.refuse(GuardName.STAGING, time.monotonic())
        except NobodyWaits:
            others = same = True  # somebody may have come since
        except PeerError as error:
            counters.add("moonmesh_pull_errors_total")
            source.blame(error)
            others = True
            # A stream that was under way and broke: its peer may be there all the same.
            lost = Failure(error.failure) is Failure.LOST
            same = lost or (not job.silent and Failure(error.failure) is Failure.UNREACHABLE)
        except Exception:
            # A defect of ours: whoever waits must not wait for it, nor the peer be blamed.
            counters.add("moonmesh_pull_defects_total")
            log.exception("a pull from %s ended by a defect", source.name)
        finally:
            if job.alarm is not None:
                job.alarm.cancel()
            self._dispatch.leave(job.turn)
            self._ended(job, others or job.dropped, same)
            job.part_with()

    def _ended(self, job: Job, others: bool, same: bool) -> None:
        """What is left of a request is asked of another holder, if it may be, or given up.

        Args:
            same: whether it may be of the same one, once.
        """
        job.active = False
        now = asyncio.get_running_loop().time()
        left = [wanted for wanted in job.part if not wanted.landed.done()]
        # Its time was that of those who waited as it began: the peer has done nothing wrong.
        cut = not job.silent and now >= job.stream_ends
        for wanted in left if not cut else ():
            if wanted.resumed or not same:
                wanted.tried.add(job.source.name)
            wanted.resumed |= same
        if job.lost or (job.rival is not None and job.rival.active and not job.rival.lost):
            return  # the other one brings it
        again: set[str] = set()
        in_time = [wanted for wanted in left if wanted.until > now]
        if others and any(w.wanted(now) for w in in_time):
            # What lies behind it is on its way: it is worth what it takes.
            again = self._start(job.fingerprint, in_time, whatever_it_takes=True)
        for wanted in left:
            if wanted.key not in again:
                self._settle(job.fingerprint, wanted, None)

    async def _with_ticket(self, ticket: Ticket, job: Job) -> None:
        """A stream, with what it says of the peer told to its guard, however it ends."""
        for wanted in job.part:
            wanted.asked = True
        how, retry_after = Failure.OURS, 0.0
        timer = self._when_late(job)
        try:
            await self._intake.take(ticket, job)
            promised = len(job.part)
            ticket.done(time.monotonic(), promised=promised, kept=promised - job.missing)
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
            if timer is not None:
                timer.cancel()
            ticket.done(time.monotonic(), ok=False, kind_of_failure=how, retry_after=retry_after)

    def _when_late(self, job: Job) -> asyncio.TimerHandle | None:
        """Looks at it once it is late, where a first token is waited for, and it is the first request."""
        if job.hedge or job.turn.claim.pull_class is not PullClass.FIRST_TOKEN:
            return None
        seconds = self.hedges.begin(job.source.name)
        if seconds is None:
            return None
        return asyncio.get_running_loop().call_later(seconds, self._hedge, job)

    def _give_up(self, job: Job) -> None:
        """Tells each whose time is over that it does not come; those who came later, in their time. The
        stream may be listened to for a moment more."""
        now = asyncio.get_running_loop().time()
        for wanted in job.part:
            if wanted.until <= now:
                self._settle(job.fingerprint, wanted, None)
        if job.deadline > now:
            job.alarm = asyncio.get_running_loop().call_at(job.deadline, self._give_up, job)

    def _arrived(self, fingerprint: bytes, wanted: Wanted, block: StagedBlock) -> None:
        self._settle(fingerprint, wanted, block)
        self._landed(block)

    def _settle(self, fingerprint: bytes, wanted: Wanted, block: StagedBlock | None) -> None:
        name = (fingerprint, wanted.key)
        if self._under_way.get(name) is wanted:  # it may be asked for anew by now
            del self._under_way[name]
            if not self._under_way:
                self._idle()
        if not wanted.landed.done():
            wanted.landed.set_result(block)
