"""Admission to Mooncake and the verdict on what came back: breakers, counts, the closed flag."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from local_group import outcome as codes
from local_group.breaker import Breaker, BreakerState
from local_group.calls import Call, CallState, Refused, Tally
from local_group.native import StoreClosed
from local_group.store_config import StoreLimits

_REFUSED = {Refused.QUEUE_FULL: codes.QUEUE_FULL, Refused.STUCK_LIMIT: codes.STUCK_LIMIT}


def _nothing(began: float, ended: float) -> float:
    return 0.0


def _excuses(lost: float, seconds: float) -> bool:
    """Whether a call of so many seconds failed because this process stood still for most of them."""
    return lost > 0 and lost >= seconds / 2


@dataclass(frozen=True)
class StoreStats:
    """A snapshot of a client.

    Attributes:
        active: calls that have not returned to their caller yet, zero-copy ones included.
        queued: ... of these, waiting for a worker.
        running: calls inside Mooncake on workers, the stuck ones included.
        stuck: overdue calls still inside Mooncake.
        stuck_total: overdue calls ever.
        dropped_total: calls whose deadline passed before they began.
        quarantined_bytes: bounce memory of stuck calls.
        bounce_used_bytes: bounce memory in use, the quarantined included.
        bounce_bytes: all of it.
        breaker: state for data calls: "closed", "open" or "half_open".
        breaker_meta: state for exists and remove.
        breaker_opened_total: how often either opened.
        outcomes: keys by "<call>.<status or error name>", e.g. {"get.hit": 12, "put.stored": 3}.
    """

    active: int
    queued: int
    running: int
    stuck: int
    stuck_total: int
    dropped_total: int
    quarantined_bytes: int
    bounce_used_bytes: int
    bounce_bytes: int
    breaker: str
    breaker_meta: str
    breaker_opened_total: int
    outcomes: dict[str, int] = field(default_factory=dict)


class Gate:
    """What every call passes on its way in and out. Thread-safe.

    Data calls (get, put) and metadata calls (exists, remove) have a breaker each: a master that
    answers `exists` while its store nodes are frozen must not close the breaker for data. But with
    the data breaker open `exists` is refused too, or an engine would be told of blocks that it then
    cannot read, request after request. Once the data breaker would let a probe through, `exists`
    answers again: it is what makes an engine ask for a block, and so probe.

    What counts as a failure is as careful as the price is high: with a breaker open there are no local
    hits. Calls that were late together are one failure, however many threads waited in them. And time
    in which this process itself stood still is nobody's fault.

    Args:
        lost: seconds between two times in which this process did not run; see `stalls`.
        wake: called before each call.
    """

    def __init__(
        self,
        limits: StoreLimits,
        clock: Callable[[], float] = time.monotonic,
        lost: Callable[[float, float], float] = _nothing,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._lost = lost
        self._wake = wake
        self._late_at = {True: float("-inf"), False: float("-inf")}  # by `meta`
        rng = random.Random()
        # Whether bytes have moved since the start, and since the data breaker last opened: with no
        # connection to a frozen node yet, Mooncake's handshake takes 62 s, whatever is set.
        self.warm = False
        self._data = Breaker(limits.breaker, rng, self._data_changed)
        self._meta = Breaker(limits.breaker, rng)
        self.tally = Tally(limits.stuck_calls_max)
        self._outcomes: Counter[str] = Counter()

    def enter(self) -> None:
        """A call of the client begins. Raises `StoreClosed`."""
        with self.tally.lock:
            if self.tally.closed:
                raise StoreClosed
            self.tally.active += 1
        self._wake()

    def idle(self) -> bool:
        """Whether no call is under way, not even one that its caller has given up."""
        return not self.tally.active and not self.tally.running

    def leave(self) -> None:
        """... and has ended, for its caller."""
        with self.tally.lock:
            self.tally.active -= 1
            if not self.tally.active:
                self.tally.idle.notify_all()

    def admit(self, meta: bool) -> bool:
        """Whether Mooncake may be tried. After a yes: `verdict`, `overdue` or `no_verdict`."""
        now = self._clock()
        with self.tally.lock:
            if not meta:
                return self._data.allow(now)
            if self._data.state(now) is BreakerState.OPEN:
                return False
            return self._meta.allow(now)

    def no_verdict(self, meta: bool) -> None:
        """The call never reached Mooncake, or was none of its fault."""
        with self.tally.lock:
            (self._meta if meta else self._data).release(self._clock())

    def overdue(self, meta: bool, began: float, *, starved: bool = False) -> None:
        """The call was abandoned, inside Mooncake since `began`; 0: it was not inside yet.

        Args:
            starved: it never got in, because overdue calls held all workers since before `began`.
        """
        now = self._clock()
        inside = now - began if began else 0.0
        lost = self._lost(began, now) if began else 0.0
        proven = (starved or inside - lost >= self._limits.proof_s) and not _excuses(lost, inside)
        with self.tally.lock:
            breaker = self._meta if meta else self._data
            if proven and self._is_another(meta, began, now):
                breaker.failure(now, began)
            else:
                breaker.release(now, began or None)

    def verdict(
        self, meta: bool, results: Sequence[int], began: float, ended: float, size: int
    ) -> None:
        """The call returned `results` for `size` bytes.

        It is a failure when it was slow, or when no key went well and some code says that Mooncake
        is unwell. Some keys that failed among others that went well are one store node of several:
        their blocks are lost, the cache is not.
        """
        limits = self._limits
        now, seconds = self._clock(), ended - began
        allowed = limits.slow_call_s + size / limits.slow_bytes_per_s
        answers = codes.distinct(results)
        unwell = max(answers, default=0) < 0 and not codes.UNWELL.isdisjoint(answers)
        # Looked up for the few calls that may need the excuse.
        lost = self._lost(began, ended) if unwell or seconds > allowed else 0.0
        slow = seconds - lost > allowed
        with self.tally.lock:
            self.tally.came_back(began, ended, limits.stall_s)
            breaker = self._meta if meta else self._data
            if unwell and _excuses(lost, seconds):
                breaker.release(now, began)  # Mooncake's timeouts ran out while nobody ran here
            elif unwell or slow:
                if unwell or self._is_another(meta, began, now):
                    breaker.failure(now, began)
            else:
                breaker.success(now, began)
                if not meta and max(answers) >= 0:
                    self.warm = True

    def _is_another(self, meta: bool, began: float, now: float) -> bool:
        """Whether a late call is a failure of its own: it began after the last one that counted was
        found late, or is found late a good while after it."""
        last = self._late_at[meta]
        another = began > last or now - last >= self._limits.incident_s
        if another:
            self._late_at[meta] = now
        return another

    def _data_changed(self, state: BreakerState) -> None:
        if state is BreakerState.OPEN:
            self.warm = False

    def count(self, call: str, outcomes: Sequence[codes.Outcome]) -> None:
        """Adds to the counts by outcome."""
        # By identity: equal outcomes of one call are mostly one object, and hashing an enum member
        # is slow.
        if outcomes and outcomes.count(outcomes[0]) == len(outcomes):
            found = {self._label(call, outcomes[0]): len(outcomes)}
        else:
            distinct = {id(outcome): outcome for outcome in outcomes}
            labels = {key: self._label(call, outcome) for key, outcome in distinct.items()}
            found = dict(Counter(map(labels.__getitem__, map(id, outcomes))))
        with self.tally.lock:
            for name, n in found.items():
                self._outcomes[name] += n

    @staticmethod
    def _label(call: str, outcome: codes.Outcome) -> str:
        if outcome.status is codes.Status.ERROR:
            return f"{call}.{outcome.error_name}"
        return f"{call}.{outcome.status.value}"

    def stats(self, queued: int, bounce_used: int, bounce_bytes: int) -> StoreStats:
        """A snapshot."""
        now = self._clock()
        with self.tally.lock:
            tally = self.tally
            return StoreStats(
                active=tally.active,
                queued=queued,
                running=tally.running,
                stuck=tally.stuck,
                stuck_total=tally.stuck_total,
                dropped_total=tally.dropped_total,
                quarantined_bytes=tally.quarantined_bytes,
                bounce_used_bytes=bounce_used,
                bounce_bytes=bounce_bytes,
                breaker=self._data.state(now).value,
                breaker_meta=self._meta.state(now).value,
                breaker_opened_total=self._data.opened + self._meta.opened,
                outcomes=dict(self._outcomes),
            )


def ended(
    gate: Gate, call: Call, refused: Refused | None, size: int, meta: bool
) -> list[int] | codes.Outcome:
    """What a call came to that was refused, or that ended (or was dropped) before it was abandoned.

    Mooncake's results: the call's memory is the caller's, to use and give back. An outcome: it has
    been given back.
    """
    if refused is None and call.state is CallState.DONE and call.result is not None:
        gate.verdict(meta, call.result, call.began, call.ended, size)
        return call.result
    if call.give_back is not None:
        call.give_back()
    if call.starved:
        gate.overdue(meta, call.queued, starved=True)
    else:
        gate.no_verdict(meta)
    if refused is not None:
        return codes.failed(_REFUSED[refused])
    if call.error is None:
        return codes.failed(codes.DEADLINE_PASSED)
    if isinstance(call.error, (TypeError, ValueError)):  # such as a key that is not UTF-8
        return codes.failed(codes.INVALID_PARAMS)
    raise call.error
