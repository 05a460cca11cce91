"""When silence becomes suspicion: of a peer, by how its statements came so far; and of ourselves.

A phi accrual detector (Hayashibara et al., 2004): arrivals are taken as normally distributed, and phi is
-log10 of the chance that a peer which is silent for so long is only late. Two things differ. Mean and
variance are weighted exponentially, which needs two numbers a peer where a window needs all of it. And
instead of phi at each tick, the silence at which it reaches the threshold is computed, when there is some.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Final

from gossip.config import GossipConfig

WEIGHT: Final = 1 / 16
"""Of the newest gap; the mean age of what counts is that of a window of 32."""
DEVIATION_MIN: Final = 0.5
"""Least standard deviation, in expected intervals: one lost hello is no surprise."""
MEAN_MIN: Final = 0.5
MEAN_MAX: Final = 3.0
"""Bounds of the mean, in expected intervals: nobody can train us to wait for ever, or not at all."""


class Silence:
    """What silence of a peer means, at one pace of its statements.

    Args:
        expected: seconds between two of its statements.
        pace: factor on the floor and the ceiling of the config.
    """

    __slots__ = ("_ceiling", "_deviations", "_floor", "expected", "gap_max")

    def __init__(self, expected: float, config: GossipConfig, pace: float = 1.0) -> None:
        self.expected = expected
        self._floor = config.suspect_floor * pace
        self._ceiling = config.suspect_ceiling * pace
        self._deviations = NormalDist().inv_cdf(1 - 10**-config.phi)
        self.gap_max = MEAN_MAX * expected

    def suspect_after(self, mean: float, variance: float) -> float:
        """Seconds of silence until it is SUSPECT."""
        mean = min(max(mean, MEAN_MIN * self.expected), MEAN_MAX * self.expected)
        deviation = max(math.sqrt(variance), DEVIATION_MIN * self.expected)
        return min(max(mean + self._deviations * deviation, self._floor), self._ceiling)


class Arrivals:
    """How the statements of one peer came."""

    __slots__ = ("_silence", "mean", "variance")

    def __init__(self, silence: Silence) -> None:
        self._silence = silence
        self.mean = silence.expected
        self.variance = 0.0

    @property
    def suspect_after(self) -> float:
        """Seconds of silence until it is SUSPECT."""
        return self._silence.suspect_after(self.mean, self.variance)

    def add(self, gap: float) -> None:
        """A newer statement came, `gap` seconds after the one before."""
        # A gap of a peer that was away says nothing about how it speaks.
        longest = self._silence.gap_max
        off = (gap if gap < longest else longest) - self.mean
        self.mean += WEIGHT * off
        self.variance = (1 - WEIGHT) * (self.variance + WEIGHT * off * off)

    def phi(self, silence: float) -> float:
        """-log10 of the chance that it is only late, after so many seconds of silence."""
        deviation = max(math.sqrt(self.variance), DEVIATION_MIN * self._silence.expected)
        late = 0.5 * math.erfc((silence - self.mean) / deviation / math.sqrt(2))
        return -math.log10(late) if late > 0 else math.inf


class LocalHealth:
    """How much we may trust our own clock of others (Lifeguard: Dadgar et al., 2018).

    A process that stalls hears nothing, and would suspect everybody. It suspects itself first: what it
    missed is not counted as silence, and while it keeps stalling it waits longer.
    """

    __slots__ = ("_calm_since", "_max", "_step", "score")

    def __init__(self, config: GossipConfig, now: float) -> None:
        self._max = config.health_max
        self._step = config.hello_interval
        self._calm_since = now
        self.score = 0

    @property
    def factor(self) -> float:
        """On every time after which a peer is suspected or called DOWN; 1 when all is well."""
        return 1 + self.score / 4

    def stalled(self, now: float) -> None:
        """We stood still, until now."""
        self.score = min(self.score + 1, self._max)
        self._calm_since = now

    def calm(self, now: float) -> None:
        """We did not."""
        if not self.score:
            self._calm_since = now
        elif now - self._calm_since >= self._step:
            self.score -= 1
            self._calm_since = now
