"""One guard: everything that is limited between this group and one peer, in one direction; sans-IO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from federation.limits.bucket import TokenBucket
from federation.limits.budget import LeaseBudget, RetryBudget, hops_allowed
from federation.limits.bulkhead import Bulkhead, Shares
from federation.limits.names import Failure, GuardName, Kind
from federation.limits.orders import AGAIN_SECONDS, Order
from federation.limits.recent import Recent
from federation.limits.shared import Book
from federation.limits.ticket import Cost, Refusal, Ticket
from federation.limits.verdict import Verdicts

BUSY_SECONDS = 0.1
"""What a peer is told to wait when places are taken: they come free, and nobody knows when."""
_Word = TypeVar("_Word", GuardName, Failure)


@dataclass(frozen=True)
class Parts:
    """What a guard is made of; None for what has no meaning in its direction.

    Attributes:
        memory: bytes of this peer's part of staging (outgoing) or of bounce buffers (incoming).
        hop_limit: borders that a block may have crossed when it is here.
        retry_after_max: seconds for which a peer can have us leave it alone.
    """

    verdicts: Verdicts
    requests: Bulkhead
    streams: Bulkhead
    catalogs: Bulkhead
    catalog_bytes: Bulkhead
    request_rate: TokenBucket
    hello_rate: TokenBucket
    byte_rate: TokenBucket
    catalog_rate: TokenBucket
    memory: Shares
    hop_limit: int
    retry_after_max: float
    retries: RetryBudget | None = None
    leases: LeaseBudget | None = None


class Guard:
    """See the module. Not thread-safe: it belongs to one event loop.

    Args:
        name: of the peer.
        parts: see `Parts`.
        off: guards that are switched off; they let everything pass.
        on_refusal: told of each refusal that was said.
    """

    def __init__(
        self,
        name: str,
        parts: Parts,
        *,
        off: frozenset[GuardName] = frozenset(),
        on_refusal: Callable[[str, GuardName], None] = lambda peer, guard: None,
    ) -> None:
        self.name = name
        self.refusals: Counter[GuardName] = Counter()
        """Refusals ever, by guard."""
        self._lately: Recent[GuardName] = Recent()
        self.on_release: Callable[[], None] = lambda: None
        """Called when something is free again: who waits may look."""
        self.order = Order.ON
        """What an operator has ordered; hellos pass whatever it is."""
        self._parts = parts
        self._off = off
        self._on_refusal = on_refusal
        self._pauses: dict[Kind, float] = {}
        self._open: Counter[Kind] = Counter()

    def __repr__(self) -> str:
        return f"Guard({self.name}, {dict(self._open)} open, {dict(self.refusals)} refused)"

    # Before a call

    def check(self, cost: Cost, now: float) -> Refusal | None:
        """What `admit` would refuse, None for nothing; changes and counts nothing."""
        parts = self._parts
        if self._switched_off and cost.kind is not Kind.HELLO:
            return Refusal(GuardName.SWITCH, AGAIN_SECONDS)
        if (paused := self._paused(cost.kind, now)) is not None:
            return paused
        if (wait := parts.verdicts.wait(cost.kind, now)) > 0:
            return Refusal(GuardName.BREAKER, wait)
        for guard, bucket, n in self._rates(cost):
            if self._on(guard) and not bucket.has(n, now):
                return Refusal(guard, bucket.wait(n, now))
        for guard, places, n, lane in self._places(cost):
            if self._on(guard) and not places.fits(n, lane):
                return Refusal(guard, BUSY_SECONDS)
        if cost.retry and parts.retries and self._on(GuardName.RETRIES) and not parts.retries.has():
            return Refusal(GuardName.RETRIES, BUSY_SECONDS)
        return None

    def ready(self, kind: Kind, now: float) -> bool:
        """Whether the peer is well enough to plan on. Says nothing about room."""
        paused = now < self._pauses.get(kind, now) and self._on(GuardName.RETRY_AFTER)
        return not (paused or self._switched_off) and self._parts.verdicts.wait(kind, now) == 0

    def admit(self, cost: Cost, now: float) -> Ticket | Refusal:
        """Lets a call begin, or says why not. A ticket ends with its `done`."""
        refusal = self.check(cost, now)
        if refusal is not None:
            self.refuse(refusal.reason, now)
            return refusal
        parts = self._parts
        for guard, bucket, n in self._rates(cost):
            if self._on(guard):
                bucket.charge(n, now)
        # A guard that is switched off still counts what it lets pass: the books have to balance.
        for guard, places, n, lane in self._places(cost):
            places.take(n, lane, forced=not self._on(guard))
        if parts.retries is not None and cost.kind is Kind.PULL:
            if not cost.retry:
                parts.retries.request()
            elif self._on(GuardName.RETRIES):
                parts.retries.take()
        self._open[cost.kind] += 1
        probe = parts.verdicts.begin(cost.kind, now)
        return Ticket(self, cost, now, probe=probe)

    def go_on(self, cost: Cost, now: float) -> Refusal | None:
        """Lets one more message of a call pass that has its place already, or says why not."""
        refusal = self._paused(cost.kind, now)
        for guard, bucket, n in self._rates(cost):
            if refusal is None and self._on(guard) and not bucket.take(n, now):
                refusal = Refusal(guard, bucket.wait(n, now))
        if refusal is not None:
            self.refuse(refusal.reason, now)
        return refusal

    def unanswered(
        self, cost: Cost, failure: Failure, now: float, *, retry_after: float = 0.0
    ) -> None:
        """Such a message was not answered."""
        self._pause(cost.kind, failure, retry_after, now)
        self._parts.verdicts.end(cost.kind, failure, now, began=now, probe=False)

    # Apart from calls

    def refuse(self, reason: GuardName, now: float) -> None:
        """Counts a refusal that was said by somebody who holds to this guard."""
        self.refusals[reason] += 1
        self._lately.add(reason, now)
        self._on_refusal(self.name, reason)

    def on(self, guard: GuardName) -> bool:
        """Whether a guard is switched on, as all are outside of tests."""
        return self._on(guard)

    def note(self, failure: Failure, now: float) -> None:
        """The peer did something that shows it unwell or hostile, and no ticket tells of it."""
        self._parts.verdicts.note(failure, now)

    def heard(self, now: float) -> None:
        """Some byte of an answer of the peer came."""
        self._parts.verdicts.pulse.heard(now)

    def useful(self, now: float) -> None:
        """A block of the peer came, or its word that it does not have it."""
        self._parts.verdicts.pulse.useful(now)

    def back(self, now: float) -> bool:
        """The peer is heard anew; see `Verdicts.second_chance`. Whether it changed anything."""
        return self._parts.verdicts.second_chance(now)

    def hops(self, hops: int, now: float) -> bool:
        """Whether a block may come that has crossed `hops` borders at its sender."""
        if not self._on(GuardName.HOPS) or hops_allowed(hops, self._parts.hop_limit):
            return True
        self.refuse(GuardName.HOPS, now)
        return False

    def resize_pool(self, pool: int) -> None:
        """The local pool has `pool` bytes now; what may be under lease follows."""
        if self._parts.leases is not None:
            self._parts.leases.resize(pool)

    def join(self, book: Book, now: float) -> None:
        """One of several processes that hold to this guard, each with a book of the same peer."""
        parts = self._parts
        if parts.leases is not None:
            parts.leases.carry_on(book.leases, now, book.beside)
        parts.streams.share(book.streams)
        parts.requests.share(book.requests)
        parts.request_rate.share(book.request_rate)
        parts.hello_rate.share(book.hello_rate)
        parts.byte_rate.share(book.byte_rate)
        parts.catalog_rate.share(book.catalog_rate)

    def breaker(self, now: float) -> str:
        """closed, open or half_open."""
        return self._parts.verdicts.state(now).value

    def open(self, kind: Kind) -> int:
        """Calls that are open now."""
        return self._open[kind]

    def status(self, now: float) -> dict[str, Any]:
        """For `moonmesh status`, in JSON's types."""
        parts = self._parts
        pauses = {k.value: round(t - now, 3) for k, t in self._pauses.items() if t > now}
        found: dict[str, Any] = {
            "order": self.order.value,
            "breaker": self.breaker(now),
            "open": {kind.value: n for kind, n in self._open.items() if n},
            "memory_bytes": parts.memory.used(self.name),
            "catalog_bytes": parts.catalog_bytes.used,
            "refusals": _named(self.refusals),
            "failures": _named(parts.verdicts.failures),
            "lately": {
                "refusals": _named(self._lately.counts(now)),
                "failures": _named(parts.verdicts.lately.counts(now)),
            },
            "paused_s": pauses,
            "broken_promises": round(parts.verdicts.broken_share, 3),
        }
        if parts.retries is not None:
            found["retries_left"] = parts.retries.left
            found["retries_few"] = parts.retries.few
        if parts.leases is not None:
            found["leased_bytes"] = parts.leases.leased_at(now)
            found["leased_bytes_allowed"] = parts.leases.allowed
        if self._off:
            found["off"] = sorted(guard.value for guard in self._off)
        return found

    # For tickets

    def hold(self, what: GuardName, n: int, now: float, lane: Hashable) -> Refusal | None:
        """See `Ticket.hold`."""
        if what is GuardName.WINDOW:
            taken = self._parts.memory.take(self.name, n)
        else:
            taken = self._places_of(what).take(n, lane, forced=not self._on(what))
        return None if taken else Refusal(what, BUSY_SECONDS)

    def give(self, what: GuardName, n: int, lane: Hashable) -> None:
        """See `Ticket.give`."""
        if what is GuardName.WINDOW:
            self._parts.memory.give(self.name, n)
        else:
            self._places_of(what).give(n, lane)
        self.on_release()

    def pay(self, kind: Kind, n: int, now: float) -> Refusal | None:
        """See `Ticket.pay`."""
        guard, bucket = self._moving(kind)
        if not self._on(guard) or bucket.take(n, now):
            return None
        return Refusal(guard, bucket.wait(n, now))

    def spend(self, kind: Kind, n: int, now: float) -> float:
        """See `Ticket.spend`."""
        guard, bucket = self._moving(kind)
        return bucket.charge(n, now) if self._on(guard) else 0.0

    def lease(self, n: int, now: float) -> Refusal | None:
        """See `Ticket.lease`."""
        leases = self._parts.leases
        if leases is None or leases.take(n, now, forced=not self._on(GuardName.LEASES)):
            return None
        return Refusal(GuardName.LEASES, leases.wait(n, now))

    def end(
        self,
        ticket: Ticket,
        failure: Failure | None,
        now: float,
        *,
        retry_after: float,
        promised: int,
        kept: int,
        seconds: float,
        moved: int,
    ) -> None:
        """See `Ticket.done`, which calls it once."""
        cost = ticket.cost
        for _, places, n, lane in self._places(cost):
            places.give(n, lane)
        self._open[cost.kind] -= 1
        self._pause(cost.kind, failure, retry_after, now)
        self._parts.verdicts.end(
            cost.kind,
            failure,
            now,
            began=ticket.started,
            probe=ticket.probe,
            seconds=seconds,
            moved=moved,
            promised=promised,
            kept=kept,
        )
        self.on_release()

    def _on(self, guard: GuardName) -> bool:
        return guard not in self._off

    @property
    def _switched_off(self) -> bool:
        return self.order is not Order.ON and self._on(GuardName.SWITCH)

    def _paused(self, kind: Kind, now: float) -> Refusal | None:
        pause = self._pauses.get(kind, now) - now
        if pause > 0 and self._on(GuardName.RETRY_AFTER):
            return Refusal(GuardName.RETRY_AFTER, pause)
        return None

    def _pause(self, kind: Kind, failure: Failure | None, retry_after: float, now: float) -> None:
        """The peer has said when to come back, if it has no room."""
        if failure is Failure.SHED:
            pause = min(self._parts.retry_after_max, max(0.0, retry_after))
            self._pauses[kind] = max(self._pauses.get(kind, now), now + pause)

    def _places_of(self, what: GuardName) -> Bulkhead:
        if what is GuardName.CATALOGS:
            return self._parts.catalogs
        if what is GuardName.CATALOG_BYTES:
            return self._parts.catalog_bytes
        raise ValueError(f"{what.value} is not held by a ticket")

    def _moving(self, kind: Kind) -> tuple[GuardName, TokenBucket]:
        if kind is Kind.PULL:
            return GuardName.BYTE_RATE, self._parts.byte_rate
        return GuardName.CATALOG_RATE, self._parts.catalog_rate

    def _rates(self, cost: Cost) -> Iterator[tuple[GuardName, TokenBucket, int]]:
        if cost.kind is Kind.HELLO:
            yield GuardName.HELLO_RATE, self._parts.hello_rate, cost.requests
            return
        yield GuardName.REQUEST_RATE, self._parts.request_rate, cost.requests
        yield *self._moving(cost.kind), cost.bytes

    def _places(self, cost: Cost) -> Iterator[tuple[GuardName, Bulkhead, int, Hashable]]:
        yield GuardName.REQUESTS, self._parts.requests, cost.requests, None
        if cost.kind is Kind.PULL:
            yield GuardName.STREAMS, self._parts.streams, cost.streams, None
        elif cost.kind is Kind.CATALOG and cost.lane is not None:
            yield GuardName.CATALOGS, self._parts.catalogs, cost.requests, cost.lane


def _named(counts: Mapping[_Word, int]) -> dict[str, int]:
    return {what.value: n for what, n in sorted(counts.items())}
