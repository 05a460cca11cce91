"""Whether what a process uses grows for as long as it runs; arithmetic alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from local_group.config import MIB

WARM_UP: Final = 1 / 3
"""Of what is looked at, the first part: caches and pools fill, modules are loaded."""
BINS: Final = 50
"""Stretches of equal length, each of which counts with its median: a peak is no growth."""
SAMPLES_MIN: Final = 100
"""After the warm-up; of fewer nothing is said."""
NOISE_PERCENT: Final = (5, 95)
"""Noise is how far these percentiles of what the line leaves unexplained are apart."""
UNIT: Final[Mapping[str, float]] = {"rss": MIB, "descriptors": 1, "threads": 1}
"""The least growth that means anything, by figure."""


@dataclass(frozen=True)
class Trend:
    """One figure of one process.

    Attributes:
        process: e.g. `east gateway`.
        figure: rss (bytes), descriptors, threads.
        seconds: looked at, without the warm-up.
        begin: where the line begins.
        growth: from there to its end.
        noise: of the medians about the line.
        medians: of the `BINS` stretches.
    """

    process: str
    figure: str
    seconds: float
    begin: float
    growth: float
    noise: float
    medians: tuple[float, ...] = ()

    @property
    def allowed(self) -> float:
        """Growth that is not told from none."""
        return max(self.noise, UNIT[self.figure])

    @property
    def share(self) -> float:
        """Of what is allowed, in whole units: the line through one thread more is a little steeper."""
        unit = UNIT[self.figure]
        return max(0.0, round(self.growth / unit) * unit) / self.allowed

    @property
    def held(self) -> bool:
        """Whether there is none beyond the noise."""
        return self.share <= 1


def trend(
    process: str, figure: str, times: Sequence[float], values: Sequence[float]
) -> Trend | None:
    """The line through the medians of `BINS` stretches of time; None for too few samples.

    Its slope is the median of the slopes between all pairs (Theil 1950, Sen 1968), which a few
    stretches that are unlike the others do not move.

    Args:
        times: in seconds, ascending.
    """
    at, seen = np.asarray(times, float), np.asarray(values, float)
    if not len(at):
        return None
    kept = at >= at[0] + WARM_UP * (at[-1] - at[0])
    at, seen = at[kept], seen[kept]
    if len(at) < SAMPLES_MIN:
        return None
    parts = np.array_split(np.arange(len(at)), BINS)
    x = np.array([np.median(at[part]) for part in parts])
    y = np.array([np.median(seen[part]) for part in parts])
    left, right = np.triu_indices(BINS, 1)
    slope = float(np.median((y[right] - y[left]) / (x[right] - x[left])))
    rest = y - slope * x
    low, high = np.percentile(rest, NOISE_PERCENT)
    span = float(at[-1] - at[0])
    begin = float(np.median(rest)) + slope * float(at[0])
    return Trend(
        process, figure, span, begin, slope * span, float(high - low), tuple(map(float, y))
    )
