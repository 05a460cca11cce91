"""Which blocks of peers are worth a place in the local pool; sans-IO.

A copy of everything that was ever pulled pushes out what only this group has: on Mooncake's conversation
trace, over eight groups that hold a tenth of its blocks, copying all of it serves 92 % of what one pool
would, and copying what engines were given twice 97 %, with an eighth of the copies. What came over a line
that is much slower than others is copied at once: that saves a quarter of what crosses such lines. `moonmesh
bench admission` replays both.
"""

from __future__ import annotations

from typing import Final

from federation.config import Admit

REMEMBERED_BLOCKS: Final = 262_144
"""Blocks of which it is remembered that an engine was given them; twice as many at most for a while."""


class AdmissionPolicy:
    """Told of each block that lands, and of each that an engine is given.

    Args:
        remembered: blocks of which the first hit is remembered; the oldest half goes when there are more
            than twice as many.
    """

    def __init__(self, admit: Admit, remembered: int = REMEMBERED_BLOCKS) -> None:
        self._admit = admit
        self._limit = remembered
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
        for seen in (self._young, self._old):
            if key_hash in seen:
                seen.discard(key_hash)
                return True
        self._young.add(key_hash)
        if len(self._young) >= self._limit:
            self._old, self._young = self._young, set()
        return False
