"""Serving peers is the first thing to give way when the group's own Mooncake gets slow; sans-IO.

How long the master and the stores take is learned, for each kind and size of a question, and for how many
windows are read beside it, by itself: so what peers alone do to each other is the usual. When
that rises, what is read for peers at once, in windows, is cut by a part; when it is well again, it grows by
steps, which double for as long as it stays so. Below one window there are pauses between windows.

It is slow where most questions are, or where those that are slow take most of the time of those who ask:
while a master stands still nobody gets to ask it more, and when it runs, for a moment, it answers many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

TICK_SECONDS: Final = 0.25
"""Between two decisions."""
CUT: Final = 0.7
"""What is left of the windows after a cut."""
STEP: Final = 0.05
"""Of the windows that were left, what comes back at a tick, at first ..."""
DOUBLES_TICKS: Final = 4
"""... and twice as much after so many ticks without a cut."""
SAMPLES_FEW: Final = 3
"""Questions without which nothing is cut: one alone proves nothing."""
GATHER_TICKS: Final = 4
"""For which they are gathered, where there are fewer, and over which their time is added up."""
SLOW_MAX: Final = 256
"""Slow ones looked at in a tick; more tell nothing new."""
CLASSES_MAX: Final = 256
"""Kinds, sizes and windows that are read beside it, which are told apart: by powers of two."""
FALLS: Final = 0.2
"""Of the difference, what a baseline takes over from a question that was faster ..."""
RISES_PER_SECOND: Final = 0.002
"""... and by how much of itself it rises a second where all are slower: doubled in six minutes, so that a
load of minutes is not learned as the usual, and one for good is."""
AGAIN_SECONDS: Final = (0.1, 2.0)
"""What a peer is told to wait: with one window at a time, and at most."""
REMEMBERED_SECONDS: Final = 2 * AGAIN_SECONDS[1]
"""For which a peer that was refused has its turn before others that were served since."""
PAUSE_SECONDS_MAX: Final = 5.0
"""After a window."""


@dataclass(frozen=True)
class SheddingLimits:
    """The numbers.

    Attributes:
        windows_max: read at once for all peers together where all is well.
        windows_min: at the least; below 1 a part of the time.
        times: a question that takes so many times its baseline is slow ...
        rise_s: ... if it takes so many seconds more, too.
    """

    windows_max: float
    windows_min: float
    times: float
    rise_s: float


@dataclass
class _Tick:
    """What was asked between two decisions."""

    count: int = 0
    seconds: float = 0.0
    """That all of it took; `elapsed`, as it went by."""
    slow: list[tuple[float, float]] = field(default_factory=list)
    """Seconds, and the baseline before it, of what may have been slow."""
    elapsed: float = 0.0
    own_delay: float = 0.0


class Shedding:
    """See the module."""

    def __init__(self, limits: SheddingLimits, now: float) -> None:
        self._limits = limits
        self._baselines: dict[tuple[str, int, int], float] = {}
        self._tick = _Tick()
        self._ticks: deque[_Tick] = deque(
            maxlen=GATHER_TICKS
        )  # since the last cut; the latest last
        self._ticked_at = now
        self._calm = 0
        self._step = 0.0
        self._pause_until = float("-inf")
        self._open: dict[str, int] = {}
        self._served_at: dict[str, float] = {}
        self._refused_at: dict[str, float] = {}
        self.windows = limits.windows_max
        """Read at once for all peers, now."""
        self.cuts = 0
        """Times that it was cut."""
        self.refused = 0
        """Windows that were refused."""

    def __repr__(self) -> str:
        return f"Shedding({self.windows:.2f} windows, {self._open} open, {self.cuts} cuts)"

    @property
    def at_rest(self) -> bool:
        """Whether all may be read that is asked for."""
        return self.windows >= self._limits.windows_max

    @property
    def knows(self) -> bool:
        """Whether anything has been learned yet."""
        return bool(self._baselines)

    # What is seen

    def took(self, kind: str, size: int, seconds: float) -> None:
        """A question of this kind, of so many keys or bytes, took so long."""
        name = (kind, max(0, size).bit_length(), sum(self._open.values()).bit_length())
        baseline = self._baselines.get(name)
        if baseline is None:
            if len(self._baselines) >= CLASSES_MAX:
                return
            baseline = self._baselines[name] = min(seconds, self._expected(*name))
        slow = self._took_long(seconds, baseline, 0.0)
        if not slow or len(self._tick.slow) < SLOW_MAX:
            self._tick.count += 1
            self._tick.seconds += seconds
            if slow:
                self._tick.slow.append((seconds, baseline))
        if seconds < baseline:
            self._baselines[name] = baseline + FALLS * (seconds - baseline)

    def tick(self, now: float, own_delay: float = 0.0) -> None:
        """Decides. To be called every `TICK_SECONDS`.

        Args:
            own_delay: seconds by which this process itself was late: it is not Mooncake that took them.
        """
        elapsed, self._ticked_at = max(0.0, now - self._ticked_at), now
        self._tick.elapsed, self._tick.own_delay = elapsed, own_delay
        self._ticks.append(self._tick)
        self._tick = _Tick()
        asked = any(tick.count for tick in self._ticks)
        if self._is_slow():
            self._cut()
        else:
            self._grow()
        rise = 1 + RISES_PER_SECOND * min(elapsed, 10 * TICK_SECONDS)
        if asked:
            for name in self._baselines:
                self._baselines[name] *= rise

    # What is asked

    def enter(self, peer: str, now: float) -> float:
        """Whether a window may be read for a peer now: 0, and it ends with `leave`; else the seconds after
        which it may be asked again."""
        if (wait := self.refuses(peer, now)) > 0:
            return wait
        self._refused_at.pop(peer, None)
        self._served_at[peer] = now
        self._open[peer] = self._open.get(peer, 0) + 1
        return 0.0

    def refuses(self, peer: str, now: float) -> float:
        """`enter`, for one that does not begin yet: the answer alone, before any work is done for it."""
        room = max(1, int(self.windows))
        full = sum(self._open.values()) >= room or now < self._pause_until
        if not self.at_rest and (full or self._is_others_turn(peer, now)):
            self.refused += 1
            self._refused_at[peer] = now
            return min(AGAIN_SECONDS[1], AGAIN_SECONDS[0] / min(1.0, self.windows))
        return 0.0

    def leave(self, peer: str, began: float, now: float) -> None:
        """It was read, or could not be."""
        self._open[peer] -= 1
        if not self._open[peer]:
            del self._open[peer]
        if self.windows < 1:
            pause = (now - began) * (1 / self.windows - 1)
            self._pause_until = now + min(PAUSE_SECONDS_MAX, pause)

    def status(self) -> dict[str, Any]:
        """For `moonmesh status`, in JSON's types."""
        return {
            "windows": round(self.windows, 2),
            "windows_max": self._limits.windows_max,
            "cuts": self.cuts,
            "refused": self.refused,
            "usual_ms": {
                kind: round(1000 * min(s for (k, *_), s in self._baselines.items() if k == kind), 3)
                for kind in sorted({kind for kind, *_ in self._baselines})
            },
            "told_apart": len(self._baselines),
        }

    def _expected(self, kind: str, size: int, beside: int) -> float:
        """Of what is new, going by the same beside fewer windows: twice as many, twice the time."""
        known = [
            seconds * 2.0 ** (beside - fewer)
            for (k, s, fewer), seconds in self._baselines.items()
            if (k, s) == (kind, size) and fewer < beside
        ]
        return min(known, default=float("inf"))

    def _took_long(self, seconds: float, usual: float, own_delay: float) -> bool:
        rise = self._limits.rise_s + own_delay
        return seconds > self._limits.times * usual and seconds > usual + rise

    def _is_slow(self) -> bool:
        """By the latest ticks with enough of them in number, and by the time of all of them."""
        ticks = list(self._ticks)
        for first in reversed(range(len(ticks))):
            asked = sum(tick.count for tick in ticks[first:])
            if asked >= SAMPLES_FEW:
                if 2 * len(self._slow_of(ticks[first:])) > asked:
                    return True
                break
        slow = self._slow_of(ticks)
        # Of those who ask one after the other, which is what `seconds` adds up to where they do so all the
        # time; where they do not, a few slow ones among many that took no time must not be most of it.
        whole = max(sum(tick.seconds for tick in ticks), sum(tick.elapsed for tick in ticks))
        return len(slow) >= SAMPLES_FEW and 2 * sum(slow) > whole

    def _slow_of(self, ticks: Sequence[_Tick]) -> list[float]:
        """Seconds of each slow question, less what this process itself was late."""
        return [
            seconds
            for tick in ticks
            for seconds, usual in tick.slow
            if self._took_long(seconds, usual, tick.own_delay)
        ]

    def _cut(self) -> None:
        self._ticks.clear()  # what it comes to is seen from now on
        self.windows = max(self._limits.windows_min, CUT * self.windows)
        self._step = STEP * self.windows
        self._calm = 0
        self.cuts += 1

    def _grow(self) -> None:
        self._calm += 1
        if self._calm % DOUBLES_TICKS == 0:
            self._step *= 2
        self.windows = min(self._limits.windows_max, self.windows + self._step)

    def _is_others_turn(self, peer: str, now: float) -> bool:
        """Whether another one was refused lately and has waited for longer: nobody takes all that is left."""
        mine = self._served_at.get(peer, float("-inf"))
        return any(
            other != peer
            and now - at < REMEMBERED_SECONDS
            and self._served_at.get(other, float("-inf")) < mine
            for other, at in self._refused_at.items()
        )
