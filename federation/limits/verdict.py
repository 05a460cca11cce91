"""What a call proves about a peer: feeds its breaker; sans-IO."""

from __future__ import annotations

from collections import Counter, deque

from federation.limits.names import BLAMELESS, Failure, GuardName, Kind
from federation.limits.pulse import Pulse
from federation.limits.recent import Recent
from local_group.breaker import Breaker, BreakerLimits, BreakerState, Rng


class Verdicts:
    """A breaker, and the rules by which calls count as good or bad.

    Pulls open and close it. Catalog questions only open it, by answers that cannot be: their long polls
    would be probes that hold pulls up, and an answer to one does not show that blocks come. Hellos pass
    always and prove nothing: they are how a peer is found again.

    Args:
        limits: of the breaker.
        pulse: what the peer was last heard of; fed by whoever hears it.
        slow_s: seconds after which the speed of a pull is looked at.
        slow_rate: bytes a second below which it was too slow.
        dishonest: share (0..1) of promises not kept above which a pull fails.
        honesty_pulls: pulls over which promises are compared with what was there.
        honesty_blocks_min: promises that it takes to call a peer dishonest.
        doubt_s: seconds for which promises are not looked at when the share is first exceeded.
        doubt_every_s: seconds after which that may be again.
        off: guards that are switched off.
    """

    def __init__(
        self,
        limits: BreakerLimits,
        rng: Rng,
        pulse: Pulse,
        *,
        slow_s: float,
        slow_rate: float,
        dishonest: float,
        honesty_pulls: int,
        honesty_blocks_min: int,
        doubt_s: float,
        doubt_every_s: float,
        off: frozenset[GuardName] = frozenset(),
    ) -> None:
        self._breaker = Breaker(limits, rng)
        self._second_chance_s = limits.open_s
        self._second_chance_at = float("-inf")
        self.pulse = pulse
        self._slow_s = slow_s
        self._slow_rate = slow_rate
        self._dishonest = dishonest
        self._honesty_blocks_min = honesty_blocks_min
        self._doubt_s = doubt_s
        self._doubt_every_s = doubt_every_s
        self._doubted_at = float("-inf")
        self._sure_from = float("-inf")
        self._off = off
        self._promises: deque[tuple[int, int]] = deque(maxlen=honesty_pulls)
        self._promised = 0
        self._broken = 0
        self.failures: Counter[Failure] = Counter()
        """Failures ever, by kind; the blameless ones too."""
        self.lately: Recent[Failure] = Recent()
        """Those that were the peer's doing, in the last while."""

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
        if kind is not Kind.PULL:
            return False
        self.pulse.asked(now)
        if GuardName.BREAKER in self._off:
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
        began: float,
        probe: bool,
        seconds: float = 0.0,
        moved: int = 0,
        promised: int = 0,
        kept: int = 0,
    ) -> Failure | None:
        """A call ended; the failure that it counts as, None for a success or no verdict.

        Args:
            began: when; a call from before the last opening says nothing.
            probe: what `begin` said.
            seconds: that it took.
            moved: bytes of blocks that came.
            promised: blocks asked for because the catalog has them.
            kept: those of them that the owner did have or did not deny.
        """
        if kind is Kind.PULL and failure is Failure.TIMEOUT and not self.pulse.to_blame(began, now):
            failure = Failure.OURS  # its caller had too little time, and that is all it shows
        if kind is Kind.PULL:
            self.pulse.ended(now)
        if kind is Kind.PULL and began >= self._sure_from:
            self._remember(promised, promised - kept)
        found = self._judge(kind, failure, now, seconds, moved, promised - kept)
        if found is not None:
            self._count(found, now)
        good = found is None and kind is Kind.PULL
        bad = found is not None and self._blames(kind, found)
        if GuardName.BREAKER not in self._off:
            if good:
                self._breaker.success(now, began)
            elif bad:
                self._breaker.failure(now, began)
            elif probe:
                self._breaker.release(now, began)
        return found

    def note(self, failure: Failure, now: float) -> None:
        """A failure that no call ended with."""
        self._count(failure, now)
        if GuardName.BREAKER not in self._off and failure not in BLAMELESS:
            self._breaker.failure(now)

    def second_chance(self, now: float) -> bool:
        """The peer is heard anew: an open breaker lets its one probe pass at once; whether it does.

        No more than that: it is not closed, and a probe that fails doubles the time as ever. And at
        most once in the time for which a breaker first stays open, so that a peer which bounces gains
        nothing.
        """
        if now - self._second_chance_at < self._second_chance_s or not self._breaker.reconsider(
            now
        ):
            return False
        self._second_chance_at = now
        return True

    @property
    def broken_share(self) -> float:
        """Share (0..1) of the latest promises that were not kept."""
        return self._broken / self._promised if self._promised else 0.0

    def _count(self, failure: Failure, now: float) -> None:
        self.failures[failure] += 1
        if failure not in BLAMELESS:
            self.lately.add(failure, now)

    def _blames(self, kind: Kind, failure: Failure) -> bool:
        if kind is Kind.PULL:
            return failure not in BLAMELESS
        return kind is Kind.CATALOG and failure is Failure.PROTOCOL

    def _judge(
        self,
        kind: Kind,
        failure: Failure | None,
        now: float,
        seconds: float,
        moved: int,
        broken: int,
    ) -> Failure | None:
        if kind is not Kind.PULL:
            return failure
        slow = seconds >= self._slow_s and moved < self._slow_rate * seconds
        if failure in (None, Failure.OURS) and slow and GuardName.SLOW not in self._off:
            return Failure.SLOW
        if failure is None and broken and self._is_dishonest(now):
            return Failure.DISHONEST
        return failure

    def _is_dishonest(self, now: float) -> bool:
        if (
            GuardName.HONESTY in self._off
            or self._promised < self._honesty_blocks_min
            or self._broken <= self._dishonest * self._promised
        ):
            return False
        if self._doubt_s == 0 or now - self._doubted_at < self._doubt_every_s:
            return True
        # It may have lost its blocks at once. What it claims when this is over, it stands for.
        self._doubted_at = now
        self._sure_from = now + self._doubt_s
        self._promises.clear()
        self._promised = self._broken = 0
        return False

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
