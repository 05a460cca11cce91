"""Local reads under a fault against the same reads with something else in its place.

A p99 of some hundred calls is noisy, and calls come in bursts. So stretches of the run are drawn anew,
with replacement, and the fault counts as worse only where nearly all draws are above what is allowed.
The report has the figures themselves and the spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chaos.record import Record

DRAWS = 1000
DRAWS_AT_ONCE = 50
"""A row a draw, of as many numbers as there are reads: this many fit a core's cache."""
QUANTILE = 0.99
CONFIDENCE = 0.995
"""Of a suite of 30 scenarios, one in seven runs would be called broken by chance, were it 99.5 % for each
and nothing allowed; with 5 % allowed it is rarer."""
CALLS_MIN = 50


@dataclass(frozen=True)
class Compared:
    """The two p99s, in ms."""

    against: str
    """What the fault was compared with."""
    fault_ms: float | None
    other_ms: float | None
    allowed_ms: float
    excess_ms: tuple[float, float] = (0.0, 0.0)
    """99 % of the draws of (p99 under the fault - what is allowed) are in here."""
    calls: tuple[int, int] = (0, 0)
    cores: tuple[float, float] = (0.0, 0.0)
    """CPU beside the engines: under the fault, and with burners; 0 without any."""

    @property
    def worse(self) -> bool:
        """Beyond the spread; or there is too little to tell."""
        return min(self.calls) < CALLS_MIN or self.excess_ms[0] > 0

    @property
    def unsure(self) -> bool:
        """Above what is allowed, and not by more than the spread."""
        return not self.worse and self.excess_ms[1] > 0 and (self.fault_ms or 0) > self.allowed_ms

    def text(self) -> str:
        """For the report."""
        if self.fault_ms is None or self.other_ms is None:
            return f"too few calls to compare: {self.calls[0]} and {self.calls[1]}"
        return (
            f"{self.fault_ms:.2f} ms under the fault, {self.other_ms:.2f} ms {self.against}; "
            f"beyond what is allowed by {self.excess_ms[0]:+.2f} to {self.excess_ms[1]:+.2f} ms; "
            f"{self.cores[0]:.2f} and {self.cores[1]:.2f} cores, "
            f"{self.calls[0]} and {self.calls[1]} calls"
        )


Stretches = Sequence[Sequence[float]]


def compare(record: Record) -> Compared:
    """Compares the probe's reads while the fault lasted with those beside burners, or before it."""
    allowance = record.scenario.invariants.local_p99
    ratio, plus_ms = allowance.ratio, allowance.plus_ms
    fault = _while_it_lasted(record, "fault")
    burnt = any(one.kind == "burner" for one in record.passes)
    other = _while_it_lasted(record, "burner") if burnt else record.quiet
    against = "with burners" if burnt else "while nothing was broken"
    calls = (sum(map(len, fault)), sum(map(len, other)))
    if min(calls) < CALLS_MIN:
        return Compared(against, None, None, 0.0, calls=calls)
    fault_ms, other_ms = _p99(fault), _p99(other)
    rng = np.random.default_rng(0)
    drawn = _drawn_p99s(other, rng)
    allowed = np.maximum(ratio * drawn, drawn + plus_ms)
    excess = _drawn_p99s(fault, rng) - allowed
    low, high = np.quantile(excess, [1 - CONFIDENCE, CONFIDENCE])
    return Compared(
        against,
        fault_ms,
        other_ms,
        _allowed(other_ms, ratio, plus_ms),
        (float(low), float(high)),
        calls,
        (_cores(record, "fault"), _cores(record, "burner")),
    )


def _allowed(other_ms: float, ratio: float, plus_ms: float) -> float:
    return max(ratio * other_ms, other_ms + plus_ms)


def _p99(stretches: Stretches) -> float:
    return float(np.quantile(np.concatenate(stretches), QUANTILE))


def _drawn_p99s(stretches: Stretches, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """The p99s of `DRAWS` draws of as many stretches, with replacement."""
    values = np.concatenate(stretches)
    owners = np.repeat(np.arange(len(stretches)), [len(stretch) for stretch in stretches])
    order = np.argsort(values)
    values, owners = values[order], owners[order]
    p99s = np.empty(DRAWS)
    share = np.full(len(stretches), 1 / len(stretches))
    for start in range(0, DRAWS, DRAWS_AT_ONCE):
        # Drawing a stretch twice is counting its values twice: no copy, and sorted once for all draws.
        counts = rng.multinomial(len(stretches), share, size=DRAWS_AT_ONCE)
        ranks = np.cumsum(counts[:, owners], axis=1)
        below = ranks < QUANTILE * ranks[:, -1:]
        p99s[start : start + DRAWS_AT_ONCE] = values[below.sum(axis=1)]
    return p99s


def _while_it_lasted(record: Record, kind: str) -> list[list[float]]:
    passes = (one for one in record.passes if one.kind == kind)
    return [
        stretch
        for one in passes
        for stretch in one.stretches(*one.compared, record.scenario.workload)
    ]


def _cores(record: Record, kind: str) -> float:
    passes = [one for one in record.passes if one.kind == kind]
    return sum(one.cores for one in passes) / max(1, len(passes))
