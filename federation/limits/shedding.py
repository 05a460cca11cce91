"""Serving peers is the first thing to give way when the group's own Mooncake gets slow; sans-IO.

How long the master and the stores take is learned, for each kind and size of a question, and for how many
windows are read beside it, by itself: so what peers alone do to each other is the usual. When
that rises, what is read for peers at once, in windows, is cut by a part; when it is well again, it grows by
steps, which double for as long as it stays so. Below one window there are pauses between windows.
"""

from __future__ import annotations

from dataclasses import dataclass
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
"""For which they are gathered, where there are fewer."""
SAMPLES_MAX: Final = 256
"""Looked at in a tick; more tell nothing new."""
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


class Shedding:
    """See the module."""

    def __init__(self, limits: SheddingLimits, now: float) -> None:
        self._limits = limits
        self._baselines: dict[tuple[str, int, int], float] = {}
        self._samples: list[tuple[float, float]] = []  # seconds, and the baseline before it
        self._waited = 0  # ticks, for enough samples
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
        if len(self._samples) < SAMPLES_MAX:
            self._samples.append((seconds, baseline))
        if seconds < baseline:
            self._baselines[name] = baseline + FALLS * (seconds - baseline)

    def tick(self, now: float, own_delay: float = 0.0) -> None:
        """Decides. To be called every `TICK_SECONDS`.

        Args:
            own_delay: seconds by which this process itself was late: it is not Mooncake that took them.
        """
        elapsed, self._ticked_at = max(0.0, now - self._ticked_at), now
        samples = self._samples
        self._waited += 1
        if len(samples) >= SAMPLES_FEW or self._waited >= GATHER_TICKS:
            self._samples, self._waited = [], 0
        if self._is_slow(samples, own_delay):
            self._cut()
        else:
            self._grow()
        rise = 1 + RISES_PER_SECOND * min(elapsed, 10 * TICK_SECONDS)
        if samples:
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

    def _is_slow(self, samples: list[tuple[float, float]], own_delay: float) -> bool:
        if len(samples) < SAMPLES_FEW:
            return False
        rise = self._limits.rise_s + own_delay
        slow = sum(
            took > self._limits.times * usual and took > usual + rise for took, usual in samples
        )
        return 2 * slow > len(samples)

    def _cut(self) -> None:
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
