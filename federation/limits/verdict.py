"""What a call proves about a peer: feeds its breaker; sans-IO."""

from __future__ import annotations

from collections import Counter, deque

from federation.limits.names import BLAMELESS, Failure, GuardName, Kind
from local_group.breaker import Breaker, BreakerLimits, BreakerState, Rng

FAIR_SECONDS = 0.02
"""A peer that was given less than this before the deadline has shown nothing: it is not blamed."""
HONESTY_PULLS = 32
"""Pulls over which promises are compared with what was there."""
HONESTY_BLOCKS_MIN = 32
"""Promises that it takes to call a peer dishonest: one evicted chain is none."""


class Verdicts:
    """A breaker, and the rules by which calls count as good or bad.

    Pulls open and close it. Catalog questions only open it, by answers that cannot be: their long polls
    would be probes that hold pulls up, and an answer to one does not show that blocks come. Hellos pass
    always and prove nothing: they are how a peer is found again.

    Args:
        limits: of the breaker.
        slow_s: seconds after which the speed of a pull is looked at.
        slow_rate: bytes a second below which it was too slow.
        dishonest: share (0..1) of promises not kept above which a pull fails.
        off: guards that are switched off.
    """

    def __init__(
        self,
        limits: BreakerLimits,
        rng: Rng,
        *,
        slow_s: float,
        slow_rate: float,
        dishonest: float,
        off: frozenset[GuardName] = frozenset(),
    ) -> None:
        self._breaker = Breaker(limits, rng)
        self._slow_s = slow_s
        self._slow_rate = slow_rate
        self._dishonest = dishonest
        self._off = off
        self._promises: deque[tuple[int, int]] = deque(maxlen=HONESTY_PULLS)
        self._promised = 0
        self._broken = 0
        self.failures: Counter[Failure] = Counter()
        """Failures ever, by kind; the blameless ones too."""

    @property
    def era(self) -> int:
        """How often it has opened: a call that began in an earlier era says nothing of this one."""
        return self._breaker.opened

    def state(self, now: float) -> BreakerState:
        """The breaker's; closed where it is switched off."""
        return BreakerState.CLOSED if GuardName.BREAKER in self._off else self._breaker.state(now)

    def wait(self, kind: Kind, now: float) -> float:
        """Seconds for which a call of this kind is held back; 0: it may go."""
        if GuardName.BREAKER in self._off or kind is Kind.HELLO:
            return 0.0
        if kind is Kind.CATALOG and self._breaker.state(now) is not BreakerState.OPEN:
            return 0.0  # it is no probe, and does not wait for one
        return self._breaker.retry_in(now)

    def begin(self, kind: Kind, now: float) -> bool:
        """A call that was not held back begins; True if it is the one probe."""
        if kind is not Kind.PULL or GuardName.BREAKER in self._off:
            return False
        probe = self._breaker.state(now) is BreakerState.HALF_OPEN
        self._breaker.allow(now)
        return probe

    def end(
        self,
        kind: Kind,
        failure: Failure | None,
        now: float,
        *,
        era: int,
        probe: bool,
        seconds: float = 0.0,
        moved: int = 0,
        promised: int = 0,
        kept: int = 0,
    ) -> Failure | None:
        """A call ended; the failure that it counts as, None for a success or no verdict.

        Args:
            era: the era at its beginning.
            probe: what `begin` said.
            seconds: that it took.
            moved: bytes of blocks that came.
            promised: blocks asked for because the catalog has them.
            kept: those of them that the owner did have or did not deny.
        """
        found = self._judge(kind, failure, seconds, moved, promised, kept)
        if found is not None:
            self.failures[found] += 1
        good = found is None and kind is Kind.PULL
        bad = found is not None and self._blames(kind, found)
        if GuardName.BREAKER not in self._off and era == self.era:
            if good:
                self._breaker.success(now)
            elif bad:
                self._breaker.failure(now)
            elif probe:
                self._breaker.release(now)
        return found

    def note(self, failure: Failure, now: float) -> None:
        """A failure that no call ended with."""
        self.failures[failure] += 1
        if GuardName.BREAKER not in self._off and failure not in BLAMELESS:
            self._breaker.failure(now)

    @property
    def broken_share(self) -> float:
        """Share (0..1) of the latest promises that were not kept."""
        return self._broken / self._promised if self._promised else 0.0

    def _blames(self, kind: Kind, failure: Failure) -> bool:
        if kind is Kind.PULL:
            return failure not in BLAMELESS
        return kind is Kind.CATALOG and failure is Failure.PROTOCOL

    def _judge(
        self,
        kind: Kind,
        failure: Failure | None,
        seconds: float,
        moved: int,
        promised: int,
        kept: int,
    ) -> Failure | None:
        if kind is not Kind.PULL:
            return failure
        broken = promised - kept
        self._remember(promised, broken)
        if failure is Failure.TIMEOUT and seconds < FAIR_SECONDS:
            return Failure.OURS
        slow = seconds >= self._slow_s and moved < self._slow_rate * seconds
        if failure in (None, Failure.OURS) and slow and GuardName.SLOW not in self._off:
            return Failure.SLOW
        if failure is None and broken and self._is_dishonest():
            return Failure.DISHONEST
        return failure

    def _is_dishonest(self) -> bool:
        return (
            GuardName.HONESTY not in self._off
            and self._promised >= HONESTY_BLOCKS_MIN
            and self._broken > self._dishonest * self._promised
        )

    def _remember(self, promised: int, broken: int) -> None:
        if not promised:
            return
        if len(self._promises) == self._promises.maxlen:
            was_promised, was_broken = self._promises[0]
            self._promised -= was_promised
            self._broken -= was_broken
        self._promises.append((promised, broken))
        self._promised += promised
        self._broken += broken
