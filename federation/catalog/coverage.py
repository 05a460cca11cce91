"""Who has which blocks of a chain, by what is believed of the peers; sans-IO."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from federation.catalog.prints import Hashes, Prints, prints_of
from federation.catalog.view import CatalogView

LOOK_FIRST: Final = 512
"""Keys that are looked up together, where a view has the first of them and not the last."""
LOOK_MOST: Final = 65_536
"""Keys that are looked up together, where it has both ends of those."""
TOGETHER_KEYS: Final = 2048
"""Keys from which on two threads look a chain up: for fewer, telling the other costs more than it brings."""
ENOUGH_VIEWS: Final = 4
"""Views in which a whole chain is looked up, where so many have it: to split it further brings little."""
VIEWS_MAX: Final = 64
"""Views that one chain is looked up in: a bit each."""
_PLACE_BITS: Final = 16
_PLACES = np.uint64((1 << _PLACE_BITS) - 1)

Holders: TypeAlias = npt.NDArray[np.uint64]
"""For each block of a chain who has it: bit n is of the n-th view."""


def cover(
    key_hashes: Sequence[int],
    views: Sequence[CatalogView],
    now: float,
    enough: int = ENOUGH_VIEWS,
) -> Holders:
    """Who has the blocks of a chain, up to the first that nobody has.

    What follows such a gap is of no use to an engine, which computes from there on. Not all is looked up that
    could be: of a block that `ENOUGH_VIEWS` of the first views have, nobody asks the others.

    Args:
        key_hashes: the chain, in order.
        views: at most `VIEWS_MAX`, the one that is of most use first.
        enough: so many; more than `ENOUGH_VIEWS` never are.
    """
    enough = min(enough, ENOUGH_VIEWS)
    assert len(views) <= VIEWS_MAX, f"{len(views)} views"
    chain = _Chain(key_hashes, now)
    parts: list[Holders] = [np.empty(0, dtype=np.uint64)]
    chosen: list[int] = []
    at = 0
    while at < len(chain):
        end = min(at + LOOK_FIRST, len(chain))
        middle = (at + end) // 2
        here = any(views[n].has(chain[at], now) for n in chosen)
        for n, view in enumerate(views):
            if n in chosen or (here and len(chosen) >= enough):
                continue
            has = view.has(chain[at], now)
            here |= has
            if has or (len(chosen) < enough and view.has(chain[middle], now)):
                chosen.append(n)
        if not here:
            break
        if any(views[n].has(chain[end - 1], now) for n in chosen):
            end = min(at + LOOK_MOST, len(chain))
        part = chain.part(at, end)
        held = np.zeros(end - at, dtype=np.uint64)
        for n in chosen:
            bit = np.uint64(1 << n)
            held |= bit
            held[part.gaps(views[n], now)] ^= bit
        gaps = np.flatnonzero(held == 0)
        if len(gaps):
            held = held[: gaps[0]]
        parts.append(held)
        at += len(held)
    return np.concatenate(parts)


def locate(key_hashes: Sequence[int], views: Sequence[CatalogView], now: float) -> list[int]:
    """Length of the leading run of a chain that each peer is believed to hold, in blocks.

    Most of what it takes is waiting for memory, in numpy, which lets other threads run: of long chains half
    of the views are looked up by another one. The views must not change meanwhile.
    """
    chain = _Chain(key_hashes, now)
    rows = [_Row(chain, view) for view in views]
    half = len(rows) // 2 if len(chain) >= TOGETHER_KEYS else 0
    if not half:
        return [row.end(0) for row in rows]
    chain.part(0, min(LOOK_MOST, len(chain)))  # most need it, and it is not to be made twice
    others = _another_thread().submit(lambda: [row.end(0) for row in rows[half:]])
    return [row.end(0) for row in rows[:half]] + others.result()


@lru_cache(maxsize=1)
def _another_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "moonmesh-locate")


class _Part:
    """Some blocks of a chain in the order in which they are looked up fastest, for all views.

    Prints are leading bits, so the last bits of a hash give way to its place: one sort orders both.
    """

    def __init__(self, key_hashes: Sequence[int]) -> None:
        self._key_hashes = key_hashes
        self._hashes: Hashes = np.array(key_hashes, dtype=np.uint64)
        self._ordered = self._hashes & ~_PLACES
        self._ordered |= np.arange(len(key_hashes), dtype=np.uint64)
        self._ordered.sort()
        self._prints: dict[int, Prints] = {}
        self._set: set[int] | None = None

    def gaps(self, view: CatalogView, now: float) -> npt.NDArray[np.intp]:
        """Places of the blocks that a view does not have, in order."""
        prints = self._prints.get(view.bits)
        if prints is None:
            prints = self._prints[view.bits] = prints_of(self._ordered, view.bits)
        found = view.believes(prints)
        missing = self._ordered[~found] & _PLACES
        gaps = np.sort(missing.astype(np.intp))
        if len(view.misses):
            if self._set is None:
                self._set = set(self._key_hashes)
            refuted = view.misses.among(self._set, now)
            if refuted:
                known = np.isin(self._hashes, np.array(refuted, dtype=np.uint64))
                gaps = np.union1d(gaps, np.flatnonzero(known))
        return gaps


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
        self._until = 0
        self._gaps: list[int] = []
        """Places of what is not there, of what has been looked up; from the last one to the first."""

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
            while self._gaps and self._gaps[-1] < at:
                self._gaps.pop()
            if self._gaps:
                return self._gaps[-1]
            at = self._until

    def _look(self, first: int) -> None:
        # Most views have none of a chain, and most of the others have all of it: two blocks tell.
        self._until = first + 1
        if not self.has(first):
            self._gaps = [first]
            return
        end = min(first + LOOK_FIRST, len(self._chain))
        if self.has(end - 1):
            end = min(first + LOOK_MOST, len(self._chain))
        gaps = self._chain.part(first, end).gaps(self._view, self._chain.now)
        self._gaps = (gaps[::-1] + first).tolist()
        self._until = end
