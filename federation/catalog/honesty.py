"""How far the promises of a catalog can be believed; sans-IO.

A promise that was not kept is no lie. The view may be old: then its owner takes it back, with the next
changes. Or two blocks may look alike: three in ten thousand do. What is promised on and on, although it was
asked for in vain, is more than that only where it is often so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np

from federation.catalog.prints import Found, Hashes

STANDS_SECONDS: Final = 5.0
"""Seconds after which a promise that was not kept should have been taken back: an owner that finds a block
gone withdraws it at once, and its subscribers know within a fraction of one."""
PENDING_MAX: Final = 4096
"""Broken promises that wait for it; of more, the oldest count as taken back."""
LATELY: Final = 16_384
"""Promises that are looked back on, about."""
EXPLAINED_SHARE: Final = 0.02
"""Share of promises that may stand although they were not kept: the form explains 0.0003."""
STANDING_MIN: Final = 16
"""Of them so many before anything is concluded."""


class Honesty:
    """Of one peer's catalog of one namespace."""

    def __init__(self) -> None:
        self._pending: deque[tuple[float, int]] = deque()
        self._promised_lately = 0.0
        self._standing_lately = 0.0
        self.kept = 0
        """Promised blocks that came, ever."""
        self.broken = 0
        """Promised blocks that the owner did not have."""
        self.standing = 0
        """Of those: promised still, long after."""

    @property
    def share(self) -> float:
        """Share (0..1) of the latest promises that stand although they were not kept."""
        return self._standing_lately / self._promised_lately if self._promised_lately else 0.0

    @property
    def dishonest(self) -> bool:
        """Whether that is far more than the form of catalogs and their age explain."""
        return self._standing_lately >= STANDING_MIN and self.share > EXPLAINED_SHARE

    def keep(self) -> None:
        """A promised block came."""
        self.kept += 1
        self._promise()

    def breach(self, key_hash: int, now: float, *, judged: bool = True) -> None:
        """The owner did not have one.

        Args:
            judged: False where it may have been our own fault.
        """
        self.broken += 1
        self._promise()
        if judged:
            self._pending.append((now, key_hash))
            if len(self._pending) > PENDING_MAX:
                self._pending.popleft()

    def judge(
        self, now: float, confirmed_at: float | None, holds: Callable[[Hashes], Found]
    ) -> int:
        """How many promises turn out to stand although they were not kept.

        Args:
            confirmed_at: when the owner last said that nothing newer exists; what it had no occasion to take
                back is judged later.
            holds: what the catalog promises now.
        """
        if confirmed_at is None:
            return 0
        due = []
        until = min(now, confirmed_at) - STANDS_SECONDS
        while self._pending and self._pending[0][0] <= until:
            due.append(self._pending.popleft()[1])
        if not due:
            return 0
        standing = int(holds(np.unique(np.array(due, dtype=np.uint64))).sum())
        self.standing += standing
        self._standing_lately += standing
        return standing

    def _promise(self) -> None:
        self._promised_lately += 1
        if self._promised_lately >= 2 * LATELY:
            self._promised_lately /= 2
            self._standing_lately /= 2
