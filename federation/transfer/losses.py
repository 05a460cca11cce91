"""Whether serves show that most of what this group holds is gone: then it has to be listed; sans-IO."""

from __future__ import annotations

LOST_BLOCKS_MIN = 16
"""Blocks found gone that it takes: a few are eviction, and the next listing is soon enough. Less than a peer
needs to call this group dishonest."""


FORGET_BLOCKS = 4096
"""Blocks found, after which it counts anew: what was well for long must not hide a loss."""


class Losses:
    """Counts what serves find of what they look for."""

    def __init__(self) -> None:
        self._here = 0
        self._gone = 0

    def note(self, here: int, gone: int) -> bool:
        """Whether a listing is due at once: a good many are gone, and more than are here."""
        self._here += here
        self._gone += gone
        due = gone > 0 and self._gone >= LOST_BLOCKS_MIN and self._gone > self._here
        if due or self._here >= FORGET_BLOCKS:
            self._here = self._gone = 0
        return due
