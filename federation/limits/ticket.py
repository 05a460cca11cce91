"""What is asked of a guard, and its answer: a ticket or a refusal; sans-IO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from federation.limits.names import WAITABLE, Failure, GuardName, Kind

if TYPE_CHECKING:
    from federation.limits.guard import Guard


@dataclass(frozen=True, slots=True)
class Cost:
    """What a call will need.

    Attributes:
        kind: which rules hold.
        bytes: that it will move, as far as that is known beforehand.
        requests: calls that it is.
        streams: streams of blocks that it is.
        lane: the namespace of a catalog question; None where it is not known yet, and for all others.
        retry: whether a first peer has been asked already.
    """

    kind: Kind = Kind.PULL
    bytes: int = 0
    requests: int = 1
    streams: int = 1
    lane: Hashable = None
    retry: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """No. `reason` is the guard that said so, `retry_after` the seconds until it may say yes."""

    reason: GuardName
    retry_after: float

    @property
    def passes(self) -> bool:
        """Whether it is worth waiting for one's turn."""
        return self.reason in WAITABLE


class Ticket:
    """A call that was let in. Ends with `done`, once; only the first counts.

    What is held in its name is given back at its end, whatever the caller forgot.
    """

    __slots__ = ("_ended", "_guard", "_held", "cost", "era", "moved", "probe", "started")

    def __init__(self, guard: Guard, cost: Cost, now: float, *, era: int, probe: bool) -> None:
        self._guard = guard
        self._held: Counter[tuple[GuardName, Hashable]] = Counter()
        self._ended = False
        self.cost = cost
        self.era = era
        self.probe = probe
        self.started = now
        self.moved = 0
        """Bytes that have moved."""

    def __repr__(self) -> str:
        held = {what.value: n for (what, _), n in self._held.items() if n}
        state = "ended" if self._ended else f"holds {held}"
        return f"Ticket({self.cost.kind.value} of {self._guard.name}, {state})"

    @property
    def open(self) -> bool:
        """Whether it has not ended."""
        return not self._ended

    def hold(self, what: GuardName, n: int, now: float, lane: Hashable = None) -> Refusal | None:
        """Takes what only shows once a call is under way; None if it was given.

        Args:
            what: `WINDOW` or `CATALOG_BYTES` (bytes), or `CATALOGS` (places, in the lane of a namespace).
        """
        assert not self._ended, "a ticket that has ended holds nothing"
        refusal = self._guard.hold(what, n, now, lane)
        if refusal is None:
            self._held[what, lane] += n
        return refusal

    def give(self, what: GuardName, n: int, lane: Hashable = None) -> None:
        """Gives it back before the end.

        Raises:
            ValueError: more than is held: a defect of the caller.
        """
        if n > self._held[what, lane]:
            raise ValueError(f"{n} of {what.value} given back, {self._held[what, lane]} held")
        self._held[what, lane] -= n
        self._guard.give(what, n, lane)

    def pay(self, n: int, now: float) -> Refusal | None:
        """`n` bytes are about to move, and making them costs already; None if they may."""
        refusal = self._guard.pay(self.cost.kind, n, now)
        if refusal is None:
            self.moved += n
        return refusal

    def spend(self, n: int, now: float) -> float:
        """`n` bytes have moved; seconds to wait before more does."""
        self.moved += n
        return self._guard.spend(self.cost.kind, n, now)

    def lease(self, n: int, now: float) -> Refusal | None:
        """About to read `n` bytes out of the pool; None if that may be."""
        return self._guard.lease(n, now)

    def done(
        self,
        now: float,
        *,
        ok: bool = True,
        kind_of_failure: Failure = Failure.ERROR,
        retry_after: float = 0.0,
        promised: int = 0,
        kept: int = 0,
        seconds: float | None = None,
        bytes: int | None = None,
    ) -> bool:
        """The call has ended; False if it had already.

        Args:
            kind_of_failure: where not `ok`.
            retry_after: seconds that the peer asked for (`SHED`).
            promised: blocks asked for because the catalog has them.
            kept: those of them that the peer did not deny.
            seconds: that it took, if not since the ticket was given.
            bytes: that it moved, if not what `spend` was told.
        """
        if self._ended:
            return False
        self._ended = True
        for (what, lane), n in self._held.items():
            if n:
                self._guard.give(what, n, lane)
        self._held.clear()
        self._guard.end(
            self,
            None if ok else kind_of_failure,
            now,
            retry_after=retry_after,
            promised=promised,
            kept=kept,
            seconds=max(0.0, now - self.started) if seconds is None else seconds,
            moved=self.moved if bytes is None else bytes,
        )
        return True
