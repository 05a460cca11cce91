"""How much memory the views of all peers may take, and how much of it each view has; sans-IO.

Fair shares, from the smallest wish up: who wants less than an even share has what it wants, and what it
leaves goes to the others. First between peers, whatever the number of their namespaces, then within each. So
a peer that claims more than there can be takes nothing from those that want no more than an even share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

BYTES_PER_BLOCK: Final = 8
"""Bytes for each block of a view: 3 at most in a snapshot, as much again while it is made anew, and changes
over it, which are merged when they are a thirty-second of it."""
GROWTH_PART: Final = 4
"""A view has room for a part of so many more blocks than there are: catalogs grow."""
LEAST_BLOCKS: Final = 8192
"""Blocks that a view has room for beyond that."""

_K = TypeVar("_K")


def fair(total: int, wanted: Mapping[_K, int]) -> dict[_K, int]:
    """Shares of `total`, each at most what is wanted; in sum all of it, if more is wanted."""
    shares: dict[_K, int] = {}
    left = total
    for name, wish in sorted(wanted.items(), key=lambda item: item[1]):
        shares[name] = min(wish, left // (len(wanted) - len(shares)))
        left -= shares[name]
    return shares


class Room:
    """Of all views.

    Args:
        bytes_max: of all of them together.
    """

    def __init__(self, bytes_max: int) -> None:
        self._blocks_max = bytes_max // BYTES_PER_BLOCK
        self._wanted: dict[str, dict[bytes, int]] = {}
        self._shares: dict[tuple[str, bytes], int] = {}

    def want(self, peer: str, fingerprint: bytes, blocks: int) -> bool:
        """A view is to hold so many blocks; whether that changed what any view may hold.

        Small changes are no change: there is room to grow.
        """
        before = self._wanted.get(peer, {}).get(fingerprint)
        wish = blocks + blocks // GROWTH_PART + LEAST_BLOCKS
        if before is not None and before // 2 <= wish and blocks <= before - before // 16:
            return False
        self._wanted.setdefault(peer, {})[fingerprint] = wish
        return self._settle()

    def leave(self, peer: str, fingerprint: bytes) -> bool:
        """A view is gone; whether that changed what any view may hold."""
        wanted = self._wanted.get(peer, {})
        if wanted.pop(fingerprint, None) is None:
            return False
        if not wanted:
            del self._wanted[peer]
        return self._settle()

    def blocks(self, peer: str, fingerprint: bytes) -> int:
        """Blocks that a view may hold; of one that has said what it wants."""
        return self._shares[(peer, fingerprint)]

    def _settle(self) -> bool:
        sums = {peer: sum(wanted.values()) for peer, wanted in self._wanted.items()}
        before, self._shares = self._shares, {}
        for peer, share in fair(self._blocks_max, sums).items():
            for fingerprint, blocks in fair(share, self._wanted[peer]).items():
                self._shares[(peer, fingerprint)] = blocks
        return self._shares != before
