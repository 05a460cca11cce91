"""One breaker for the whole federation, as an engine has it: gateway gone or slow, local only; sans-IO.

A pull may be without a word for long and the gateway be well: its peers are slow. So a silent call is no
verdict, it is a reason to ask: "are you there?", which a gateway that is well answers at once. Nobody
waits for that answer: from some silence on new calls are not made, and when it fails those that wait end.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from local_group.breaker import Breaker, BreakerLimits, BreakerState, Rng

ASK_SECONDS: Final = 0.05
"""Silence of a call after which the gateway is asked whether it is there."""
DOUBT_SECONDS: Final = 0.15
"""Silence of a call, and of all others since it began, after which no new one is made."""
PONG_SECONDS: Final = 0.3
"""For which the answer is waited for; then the breaker opens."""
SLOW_SECONDS: Final = 0.2
"""An answer that takes longer is one of a gateway that is slow."""
SLOW_PONGS: Final = 3
"""So many of them open the breaker ..."""
SLOW_WITHIN_SECONDS: Final = 10.0
"""... within this time. One alone may be this process's own doing."""
LOOK_AGAIN_SECONDS: Final = 0.5
"""Between two looks for a gateway that is gone or slow, at most: it is back within a second or two; a look
costs an attachment on a socket of this host."""
_LIMITS: Final = BreakerLimits(failures=1, window=8, open_s=0.25, open_max_s=LOOK_AGAIN_SECONDS)


class Asked:
    """One call to the gateway."""

    __slots__ = ("heard_at",)

    def __init__(self, began: float) -> None:
        self.heard_at = began
        """When something of its answer came last, or it began."""


class FederationBreaker:
    """Whether the federation is asked. Not thread-safe: its owner calls it under a lock.

    Args:
        rng: for the jitter of pauses.
        doubts: False, for a test alone: only a gateway that is gone opens it.
    """

    def __init__(self, rng: Rng, *, doubts: bool = True) -> None:
        self._breaker = Breaker(_LIMITS, rng)
        self._doubts = doubts
        self._heard_at = float("-inf")
        self._open: dict[Asked, None] = {}  # the one that has been silent for longest is the first
        self._slow: deque[float] = deque(maxlen=SLOW_PONGS)
        self.slow_pongs = 0
        """Answers ever that took too long."""

    def __repr__(self) -> str:
        return f"FederationBreaker({self._breaker!r}, {len(self._open)} open)"

    @property
    def opened(self) -> int:
        """Times that it opened."""
        return self._breaker.opened

    @property
    def open(self) -> int:
        """Calls under way."""
        return len(self._open)

    def state(self, now: float) -> BreakerState:
        """The breaker's."""
        return self._breaker.state(now)

    def passes(self, now: float) -> bool:
        """Whether a call may be made."""
        closed = self._breaker.state(now) is BreakerState.CLOSED
        return closed and not (self._doubts and self._silence(now) >= DOUBT_SECONDS)

    # Calls

    def begin(self, now: float) -> Asked:
        """One is made."""
        call = Asked(now)
        self._open[call] = None
        return call

    def heard(self, call: Asked, now: float) -> None:
        """Something of its answer came: the gateway is there."""
        self._heard_at = call.heard_at = now
        if self._open.pop(call, self) is None:
            self._open[call] = None

    def end(self, call: Asked) -> None:
        """It is over, in whatever way."""
        self._open.pop(call, None)

    def left(self, now: float) -> list[Asked]:
        """Calls that nobody should wait for any more: without a word, and the breaker has opened."""
        if self._breaker.state(now) is BreakerState.CLOSED:
            return []
        return [call for call in self._open if now - call.heard_at >= ASK_SECONDS]

    # The question

    def asks(self, now: float) -> bool:
        """Whether it is time to ask the gateway whether it is there."""
        return self._doubts and self._silence(now) >= ASK_SECONDS

    def may_probe(self, now: float) -> bool:
        """Whether it may be asked at all: an open breaker has its pauses."""
        return self._breaker.allow(now)

    def retry_in(self, now: float) -> float:
        """Seconds until then."""
        return self._breaker.retry_in(now)

    def answered(self, began: float, now: float) -> None:
        """It answered the question that was asked at `began`."""
        self._heard_at = now
        if self._doubts and now - began > SLOW_SECONDS:
            self.slow_pongs += 1
            self._slow.append(now)
            many = len(self._slow) == SLOW_PONGS and now - self._slow[0] <= SLOW_WITHIN_SECONDS
            if many or self._breaker.state(now) is not BreakerState.CLOSED:
                self._breaker.failure(now)
                return
        self._breaker.success(now)

    def lost(self, now: float) -> None:
        """It did not, in time or at all; or nobody is at the other end of a call: no matter of counting."""
        self._breaker.failure(now)

    def _silence(self, now: float) -> float:
        """Seconds for which the oldest call that waits has waited, and nothing at all came."""
        oldest = next(iter(self._open), None)
        return 0.0 if oldest is None else now - max(oldest.heard_at, self._heard_at)
