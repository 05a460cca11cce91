"""Where a chain can be had, by what is believed of the peers; sans-IO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from federation.catalog.prints import Hashes
from federation.catalog.view import CatalogView

LOOK_FIRST: Final = 512
"""Keys that are looked up first in a view. Most views do not have the first of them."""
LOOK_GROWTH: Final = 8
"""If all are there, so many times as many next."""


class Run(NamedTuple):
    """Blocks to be asked of one peer in one go: their places in the chain, in order."""

    peer: str
    indices: list[int]


def plan(
    key_hashes: Sequence[int],
    views: Sequence[tuple[str, CatalogView]],
    now: float,
) -> list[Run]:
    """Which peer to ask for which blocks of a chain: longest runs first, up to the first gap.

    Args:
        key_hashes: the chain, in order.
        views: usable peers with their views, the preferred one first.

    Returns:
        Runs in chain order. A block that no peer has ends the plan: what follows it is of no use to
        an engine, which computes from the first gap on.
    """
    chain = _Chain(key_hashes, now)
    rows = [(peer, _Row(chain, view)) for peer, view in views]
    runs: list[Run] = []
    at = 0
    while at < len(chain):
        end, best = at, ""
        for peer, row in rows:
            # Whoever does not have what the best so far lacks has no longer run: one look-up instead of many.
            if end - at >= LOOK_FIRST and not row.knows(at) and not row.has(end):
                continue
            until = row.end(at)
            if until > end:
                end, best = until, peer
                if end == len(chain):
                    break
        if end == at:
            break
        runs.append(Run(best, list(range(at, end))))
        at = end
    return runs


def locate(key_hashes: Sequence[int], views: Sequence[CatalogView], now: float) -> list[int]:
    """Length of the leading run of a chain that each peer is believed to hold, in blocks."""
    chain = _Chain(key_hashes, now)
    return [_Row(chain, view).end(0) for view in views]


class _Part:
    """Some blocks of a chain in the order in which they are looked up fastest, for all views."""

    def __init__(self, key_hashes: Sequence[int]) -> None:
        self._key_hashes = key_hashes
        self.hashes: Hashes = np.array(key_hashes, dtype=np.uint64)
        self.order = np.argsort(self.hashes)
        self.ordered = self.hashes[self.order]
        self._set: set[int] | None = None

    @property
    def set(self) -> set[int]:
        if self._set is None:
            self._set = set(self._key_hashes)
        return self._set


class _Chain:
    def __init__(self, key_hashes: Sequence[int], now: float) -> None:
        self._key_hashes = key_hashes
        self._parts: dict[tuple[int, int], _Part] = {}
        self.now = now

    def __len__(self) -> int:
        return len(self._key_hashes)

    def __getitem__(self, place: int) -> int:
        return self._key_hashes[place]

    def part(self, first: int, end: int) -> _Part:
        found = self._parts.get((first, end))
        if found is None:
            found = self._parts[(first, end)] = _Part(self._key_hashes[first:end])
        return found


class _Row:
    """Which blocks of a chain a view has, found out as far as somebody asks."""

    def __init__(self, chain: _Chain, view: CatalogView) -> None:
        self._chain = chain
        self._view = view
        self._first = self._until = 0
        self._size = LOOK_FIRST
        self._ends: npt.NDArray[np.intp] = np.empty(0, dtype=np.intp)

    def knows(self, at: int) -> bool:
        """Whether the block has been looked up."""
        return self._first <= at < self._until

    def has(self, at: int) -> bool:
        """Looks up one block."""
        return self._view.has(self._chain[at], self._chain.now)

    def end(self, at: int) -> int:
        """Where the run ends that begins at `at`; `at` itself if the block is not there. Ask in order."""
        while True:
            if at >= self._until:
                if at >= len(self._chain):
                    return at
                self._look(at)
            at = int(self._ends[at - self._first])
            if at < self._until:
                return at

    def _look(self, first: int) -> None:
        end = min(first + self._size, len(self._chain))
        part = self._chain.part(first, end)
        held = np.empty(end - first, dtype=np.bool_)
        held[part.order] = self._view.holds(part.ordered)
        if len(self._view.misses):
            refuted = self._view.misses.among(part.set, self._chain.now)
            if refuted:
                held &= ~np.isin(part.hashes, np.array(refuted, dtype=np.uint64))
        # Of each block the next that is not there.
        gaps = np.where(held, end, np.arange(first, end))
        self._ends = np.minimum.accumulate(gaps[::-1])[::-1]
        self._first, self._until = first, end
        self._size *= LOOK_GROWTH
