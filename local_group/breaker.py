"""A circuit breaker: after failures it answers "no" at once, and asks again one probe at a time.

Sans-IO: time is an argument (seconds, monotonic), and so is randomness. Not thread-safe: its
owner calls it under a lock or from one thread.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class BreakerState(enum.Enum):
    """closed: all pass; open: none pass; half_open: one probe at a time may pass."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Rng(Protocol):
    """What is used of `random.Random`."""

    def random(self) -> float:
        """A number in [0, 1)."""
        ...


@dataclass(frozen=True)
class BreakerLimits:
    """When a breaker opens and for how long.

    Attributes:
        failures: this many failures among the last `window` verdicts, all within `within_s`, open
            it. More than one, because a single slow call on a busy host proves nothing.
        window: verdicts remembered. A few successes between failures must not hide them, so it is
            not a count of consecutive failures.
        within_s: seconds for which a verdict is remembered: failures hours apart are no outage.
            Long enough for `failures` calls in a row that each end by Mooncake's own timeouts.
        open_s: seconds it stays open the first time.
        open_max_s: the most it stays open: each failed probe doubles the time up to here.
        jitter: share of the time that is random (0..1), so that many engines do not probe at once.
        probe_s: seconds after which a probe without a verdict no longer holds the others back.
        calm_times: closed for so many times as long as it was open before, the next opening starts
            from `open_s` again; 0: only probes that fail make it longer.
    """

    failures: int = 5
    window: int = 20
    within_s: float = 30.0
    open_s: float = 0.5
    open_max_s: float = 10.0
    jitter: float = 0.2
    probe_s: float = 5.0
    calm_times: float = 5.0

    def __post_init__(self) -> None:
        if not 1 <= self.failures <= self.window:
            raise ValueError("1 <= failures <= window")
        if self.within_s <= 0:
            raise ValueError("0 < within_s")
        if not 0 < self.open_s <= self.open_max_s:
            raise ValueError("0 < open_s <= open_max_s")
        if not 0 <= self.jitter <= 1:
            raise ValueError("0 <= jitter <= 1")
        if self.calm_times < 0:
            raise ValueError("0 <= calm_times")


class Breaker:
    """See the module. Every `allow` that said yes is followed by one verdict: `success`,
    `failure`, or `release` when the call proved nothing.

    Args:
        limits: see `BreakerLimits`.
        rng: for the jitter.
        on_change: told the new state at a change made by a verdict.
    """

    def __init__(
        self,
        limits: BreakerLimits,
        rng: Rng,
        on_change: Callable[[BreakerState], None] | None = None,
    ) -> None:
        self._limits = limits
        self._rng = rng
        self._on_change = on_change
        self._verdicts: deque[tuple[float, bool]] = deque(maxlen=limits.window)
        self._failures = 0  # False in _verdicts
        self._open_until: float | None = None  # None = closed
        self._probe_until: float | None = None  # a probe is out until then at most
        self._closed_since = float("-inf")
        self._opened_at = float("-inf")
        self._open_for = 0.0  # the latest time, in seconds
        self._openings = 0  # in a row, without a calm time between; the exponent
        self.opened = 0  # ever

    def __repr__(self) -> str:
        return (
            f"Breaker(open_until={self._open_until}, failures={self._failures}, "
            f"openings={self._openings})"
        )

    def state(self, now: float) -> BreakerState:
        """The state at `now`."""
        if self._open_until is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self._open_until else BreakerState.HALF_OPEN

    def allow(self, now: float) -> bool:
        """Whether a call may be tried. In half-open a yes is the one probe."""
        if self._open_until is None:
            return True
        if now < self._open_until:
            return False
        if self._probe_until is not None and now < self._probe_until:
            return False
        self._probe_until = now + self._limits.probe_s
        return True

    def retry_in(self, now: float) -> float:
        """Seconds until `allow` may say yes again; 0 when it may now."""
        if self._open_until is None:
            return 0.0
        until = max(self._open_until, self._probe_until or self._open_until)
        return max(0.0, until - now)

    def success(self, now: float, began: float | None = None) -> None:
        """A call went well. `began`: when; a call from before the last opening says nothing."""
        if self._too_old(began):
            return
        if self._open_until is None:
            if self._failures:
                self._remember(True, now)
            return
        if now < self._open_until:
            return  # began before it opened: too old to close it
        self._open_until = None
        self._probe_until = None
        self._closed_since = now
        self._verdicts.clear()
        self._failures = 0
        self._changed(BreakerState.CLOSED)

    def failure(self, now: float, began: float | None = None) -> None:
        """A call failed, or took too long. `began`: as in `success`."""
        if self._too_old(began):
            return
        if self._open_until is None:
            self._remember(False, now)
            if self._failures >= self._limits.failures:
                if now - self._closed_since >= self._limits.calm_times * self._open_for:
                    self._openings = 0
                self._open(now)
        elif now >= self._open_until:
            self._open(now)

    def release(self, now: float, began: float | None = None) -> None:
        """The call proved nothing: another probe may go. `began`: as in `success`."""
        del now
        if not self._too_old(began):
            self._probe_until = None

    def reconsider(self, now: float) -> bool:
        """There is reason to think that things are well again: the next call is a probe, at once.

        It is not closed, and the back-off is kept. False if it is not open, so that nothing changed.
        """
        if self.state(now) is not BreakerState.OPEN:
            return False
        self._open_until = now
        self._changed(BreakerState.HALF_OPEN)
        return True

    def _too_old(self, began: float | None) -> bool:
        # At the very moment of the opening, too: what was let in then, was let in before it.
        return began is not None and began <= self._opened_at

    def _remember(self, good: bool, now: float) -> None:
        # Successes are only remembered while a failure is: the usual case costs nothing.
        verdicts = self._verdicts
        while verdicts and (
            len(verdicts) == verdicts.maxlen or now - verdicts[0][0] > self._limits.within_s
        ):
            self._failures -= not verdicts.popleft()[1]
        verdicts.append((now, good))
        if not good:
            self._failures += 1

    def _open(self, now: float) -> None:
        limits = self._limits
        # 2**exponent is capped before it is computed: it must not overflow after a long outage.
        exponent = min(self._openings, 30)
        seconds = min(limits.open_max_s, limits.open_s * 2.0**exponent)
        seconds *= 1.0 - limits.jitter * self._rng.random()
        self._open_until = now + seconds
        self._open_for = seconds
        self._opened_at = now
        self._probe_until = None
        self._openings += 1
        self.opened += 1
        self._verdicts.clear()
        self._failures = 0
        self._changed(BreakerState.OPEN)

    def _changed(self, state: BreakerState) -> None:
        if self._on_change is not None:
            self._on_change(state)
