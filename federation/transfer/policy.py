"""Which blocks of peers are worth a place in the local pool; sans-IO.

A copy of everything that was ever pulled pushes out what only this group has: on Mooncake's conversation
trace, over eight groups that hold a tenth of its blocks, copying all of it serves 89 % of what one pool
would, copying what engines were given twice 96 %, and what they were given twice in a short time 98 %. Short
is meant by what the pool has seen meanwhile: a copy that is of use less often than the pool is written anew
is evicted before it is of any. What came over a line that is much slower than others is copied at once.
`moonmesh bench admission` replays all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from federation.config import Admit

REMEMBERED_BLOCKS: Final = 262_144
"""Blocks of which it is remembered that an engine was given them; twice as many at most for a while."""
REMEMBERED_POOLS: Final = 1 / 8
"""For how long, in pools that were written since; twice as long at most."""


class AdmissionPolicy:
    """Told of each block that lands, and of each that an engine is given.

    First hits are remembered in two halves. When the young one has as many blocks as it may, or enough was
    written since it began, it becomes the old one, and that goes.

    Args:
        turnover: how often the pool could have been filled with what was written to it so far.
        remembered: blocks in one half.
    """

    def __init__(
        self,
        admit: Admit,
        turnover: Callable[[], float] = lambda: 0.0,
        remembered: int = REMEMBERED_BLOCKS,
    ) -> None:
        self._admit = admit
        self._turnover = turnover
        self._limit = remembered
        self._began = 0.0
        self._young: set[int] = set()
        self._old: set[int] = set()

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def landed(self) -> bool:
        """A block has come from a peer: whether to put it into the local pool now."""
        return self._admit == "always"

    def given(self, key_hash: int, dear: bool = False) -> bool:
        """An engine was given a block that came from a peer, now or lately: whether to put it into the
        local pool now. One that was admitted, and is gone again, begins anew.

        Args:
            dear: the line that it came over is one to be used as little as can be.
        """
        if self._admit != "second-hit":
            return False
        if dear:
            self._young.discard(key_hash)
            self._old.discard(key_hash)
            return True
        self._age()
        for seen in (self._young, self._old):
            if key_hash in seen:
                seen.discard(key_hash)
                return True
        self._young.add(key_hash)
        return False

    def _age(self) -> None:
        turnover = self._turnover()
        passed = turnover - self._began
        if passed >= REMEMBERED_POOLS or len(self._young) >= self._limit:
            self._old = self._young if passed < 2 * REMEMBERED_POOLS else set()
            self._young, self._began = set(), turnover
