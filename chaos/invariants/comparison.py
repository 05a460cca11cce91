"""Local reads under a fault against the same reads beside a burner of equal CPU use.

A p99 of some hundred calls is noisy, and calls come in bursts. So stretches of the run are drawn anew,
with replacement, and the fault counts as worse only where 97.5 % of the draws are above what is allowed.
The report has the figures themselves and the spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chaos.record import SETTLED_S, Record

STRETCH_S = 0.1
DRAWS = 500
QUANTILE = 0.99
CONFIDENCE = 0.975
CALLS_MIN = 100


@dataclass(frozen=True)
class Compared:
    """The two p99s, in ms."""

    fault_ms: float | None
    burner_ms: float | None
    allowed_ms: float
    excess_ms: tuple[float, float] = (0.0, 0.0)
    """95 % of the draws of (p99 under the fault - what is allowed) are in here."""
    calls: tuple[int, int] = (0, 0)
    cores: tuple[float, float] = (0.0, 0.0)
    """CPU beside the engines: under the fault, and with the burner."""

    @property
    def worse(self) -> bool:
        """Beyond the spread; or there is too little to tell."""
        return min(self.calls) < CALLS_MIN or self.excess_ms[0] > 0

    def text(self) -> str:
        """For the report."""
        if self.fault_ms is None or self.burner_ms is None:
            return f"too few calls to compare: {self.calls[0]} and {self.calls[1]}"
        return (
            f"{self.fault_ms:.2f} ms under the fault, {self.burner_ms:.2f} ms with a burner; "
            f"beyond what is allowed by {self.excess_ms[0]:+.2f} to {self.excess_ms[1]:+.2f} ms; "
            f"{self.cores[0]:.2f} and {self.cores[1]:.2f} cores, "
            f"{self.calls[0]} and {self.calls[1]} calls"
        )


Stretches = list[npt.NDArray[np.float64]]


def compare(record: Record, group: str, ratio: float, plus_ms: float) -> Compared:
    """Compares the local reads of a group while the fault lasted with those beside the burner."""
    fault, burner = _stretches(record, group, "fault"), _stretches(record, group, "burner")
    calls = (sum(map(len, fault)), sum(map(len, burner)))
    if min(calls) < CALLS_MIN:
        return Compared(None, None, 0.0, calls=calls)
    fault_ms, burner_ms = _p99(fault), _p99(burner)
    rng = np.random.default_rng(0)

    def draw(stretches: Stretches) -> float:
        return _p99([stretches[i] for i in rng.integers(0, len(stretches), len(stretches))])

    excess = [
        draw(fault) - _allowed(draw(burner), ratio, plus_ms) for _ in range(DRAWS)
    ]  # both drawn anew
    low, high = np.quantile(excess, [1 - CONFIDENCE, CONFIDENCE])
    return Compared(
        fault_ms,
        burner_ms,
        _allowed(burner_ms, ratio, plus_ms),
        (float(low), float(high)),
        calls,
        (_cores(record, "fault"), _cores(record, "burner")),
    )


def _allowed(burner_ms: float, ratio: float, plus_ms: float) -> float:
    return max(ratio * burner_ms, burner_ms + plus_ms)


def _p99(stretches: Sequence[npt.NDArray[np.float64]]) -> float:
    return float(np.quantile(np.concatenate(stretches), QUANTILE))


def _stretches(record: Record, group: str, kind: str) -> Stretches:
    found: Stretches = []
    for one in record.passes:
        if one.kind != kind:
            continue
        begin = one.fault_at + SETTLED_S
        calls = [
            (int((s.at - begin) / STRETCH_S), s.ms)
            for s in one.of(group, "local")
            if begin <= s.at < one.fault_end and s.misses == 0
        ]
        places = sorted({place for place, _ in calls})
        found += [np.array([ms for p, ms in calls if p == place]) for place in places]
    return found


def _cores(record: Record, kind: str) -> float:
    passes = [one for one in record.passes if one.kind == kind]
    return sum(one.fault_cores + one.burner_cores for one in passes) / max(1, len(passes))
