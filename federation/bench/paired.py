"""Compares ways of doing one thing: all of them in each round, in drawn order, so that what the machine
does meanwhile meets all alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from federation.bench.tally import quantile

SEGMENTS: Final = 10
"""Parts of a run whose quantiles are compared, to see how far the same thing differs from itself."""

Way = Callable[[int], float]
"""Does it once, in the round of that number; the milliseconds that it took."""


def run_paired(
    ways: Mapping[str, Way],
    rounds: int,
    random: Random,
    *,
    first: int = 0,
    after: Callable[[int], object] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> dict[str, list[float]]:
    """Milliseconds of each round, by the name of the way.

    Args:
        first: the number of the first round.
        after: called after each round with its number.
        stopped: asked before each round; True ends the run early.
    """
    found: dict[str, list[float]] = {name: [] for name in ways}
    order = list(ways)
    for number in range(first, first + rounds):
        if stopped():
            break
        random.shuffle(order)
        for name in order:
            found[name].append(ways[name](number))
        if after is not None:
            after(number)
    return found


def ratio(ours: list[float], theirs: list[float], q: float) -> float | None:
    """The `q`-quantile of ours over that of theirs; None of nothing."""
    top, base = quantile(ours, q), quantile(theirs, q)
    return top / base if top is not None and base else None


def spread(first: list[float], second: list[float], q: float) -> float | None:
    """By how much the `q`-quantile of the same thing, done twice, differs from itself: the largest ratio
    between the two over the parts of the run; at least 1. None where there is too little of it."""
    size = min(len(first), len(second)) // SEGMENTS
    if size < SEGMENTS:
        return None
    largest = 1.0
    for part in range(SEGMENTS):
        here = slice(part * size, (part + 1) * size)
        found = ratio(first[here], second[here], q)
        if found:
            largest = max(largest, found, 1 / found)
    return largest
