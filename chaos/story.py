"""The course of a run, in bins of time, small enough for a report: what was broken, what came of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from chaos.load.spec import Sample
from chaos.record import MOMENT_S, PROBE, Pass, Record
from chaos.steps import Step, told

BIN_S = 0.25
BINS_MAX = 160
"""Of longer runs the bins are wider."""
UNSEEN = frozenset({"unheard", "down", "no answer"})
"""States of a place that nobody was in: it is left out."""
GONE = "no answer"
"""What a gateway says of its peers that does not answer."""


def story(record: Record) -> dict[str, Any]:
    """The first pass with the fault, as numbers and short texts: JSON."""
    one, scenario = record.fault, record.scenario
    ends = [s.at for calls in one.samples.values() for s in calls]
    seconds = max([*ends, one.fault_end, one.begin + 0.1]) - one.begin
    width = max(BIN_S, math.ceil(seconds / BINS_MAX / BIN_S) * BIN_S)
    count = max(1, math.ceil(seconds / width))
    local = list(one.of(PROBE, "local"))
    peer = [s for group in scenario.topology.groups for s in one.of(group, "peer")]
    return {
        "seconds": round(seconds, 2),
        "bin_s": width,
        "faults": [_fault(step, at - one.begin) for step, at in one.steps],
        "local_ms": _latencies(_binned(local, one, width, count)),
        "peer_ms": _latencies(_binned(peer, one, width, count)),
        "tiers": [
            [sum(s.local for s in b), sum(s.peer for s in b), sum(s.misses for s in b)]
            for b in _binned(peer, one, width, count)
        ],
        "peers": {
            f"{group} > {name}": _changes(seen, one.begin)
            for group, usage in sorted(one.usage.items())
            for name, seen in sorted(usage.peers.items())
            if any(state not in UNSEEN for _, state in seen)
        },
    }


def _fault(step: Step, at: float) -> list[Any]:
    """What, from when, and until when."""
    return [told(step), round(at, 2), round(at + (step.lasts or MOMENT_S), 2)]


def _binned(calls: Iterable[Sample], one: Pass, width: float, count: int) -> list[list[Sample]]:
    bins: list[list[Sample]] = [[] for _ in range(count)]
    for call in calls:
        place = int((call.at - one.begin) / width)
        if 0 <= place < count:
            bins[place].append(call)
    return bins


def _latencies(bins: Sequence[Sequence[Sample]]) -> list[list[float] | None]:
    """p50 and p99 of each bin in ms; None without a call."""
    return [
        [_quantile([s.ms for s in calls], 0.5), _quantile([s.ms for s in calls], 0.99)]
        if calls
        else None
        for calls in bins
    ]


def _quantile(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, math.ceil(q * len(ordered)) - 1)], 2)


def _changes(seen: Iterable[tuple[float, str]], begin: float) -> list[list[Any]]:
    """When it was first seen in each state, in turn."""
    found: list[list[Any]] = []
    for at, state in seen:
        if not found or found[-1][1] != state:
            found.append([round(max(0.0, at - begin), 2), state])
    return found
