"""What this group believes its peers hold, and where a chain can be had; sans-IO.

Views are hints: a wrong one costs a wasted round trip, never wrong bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from federation.catalog.log import Answer, Position


class CatalogView:
    """What one peer is believed to hold in one namespace.

    Args:
        blocks_max: hashes kept.
        misses_max: refuted hashes remembered.
        miss_seconds: for how long a refuted hash is not asked for again.
    """

    def __init__(
        self, *, blocks_max: int, misses_max: int = 65536, miss_seconds: float = 10.0
    ) -> None:
        self._blocks_max = blocks_max
        self._misses_max = misses_max
        self._miss_seconds = miss_seconds
        self._hashes: set[int] = set()
        self._misses: OrderedDict[int, float] = OrderedDict()
        self.position: Position | None = None
        """Where the view stands; None before the first snapshot."""
        self.confirmed_at: float | None = None
        """When the owner last said that nothing newer exists (monotonic seconds)."""
        self.false_positives = 0
        """Blocks that this view promised and the owner did not have."""

    def __len__(self) -> int:
        return len(self._hashes)

    def apply(self, answer: Answer, now: float) -> None:
        """Brings the view to the answer's position."""
        if answer.snapshot:
            self._hashes = set(answer.added[: self._blocks_max])
        else:
            self._hashes.difference_update(answer.removed)
            self._hashes.update(answer.added[: max(0, self._blocks_max - len(self._hashes))])
        for key_hash in answer.added if not answer.snapshot else ():
            self._misses.pop(key_hash, None)
        self.position = answer.position
        self.confirmed_at = now

    def refute(self, key_hash: int, now: float) -> None:
        """The owner did not have a block that this view promised."""
        self.false_positives += 1
        self._misses[key_hash] = now + self._miss_seconds
        self._misses.move_to_end(key_hash)
        while len(self._misses) > self._misses_max:
            self._misses.popitem(last=False)

    def has(self, key_hash: int, now: float) -> bool:
        """Whether the peer is believed to hold the block."""
        if key_hash not in self._hashes:
            return False
        until = self._misses.get(key_hash)
        if until is None:
            return True
        if now < until:
            return False
        del self._misses[key_hash]
        return True

    def age(self, now: float) -> float | None:
        """Seconds since the view was known to be current; None before the first snapshot."""
        return None if self.confirmed_at is None else now - self.confirmed_at


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
    runs: list[Run] = []
    at = 0
    while at < len(key_hashes):
        best: Run | None = None
        for peer, view in views:
            indices: list[int] = []
            for place in range(at, len(key_hashes)):
                if not view.has(key_hashes[place], now):
                    break
                indices.append(place)
            if indices and (best is None or len(indices) > len(best.indices)):
                best = Run(peer, indices)
        if best is None:
            break
        runs.append(best)
        at = best.indices[-1] + 1
    return runs
