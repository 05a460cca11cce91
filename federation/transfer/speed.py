"""How fast blocks of peers come, as the latest pulls went; sans-IO."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final, NamedTuple

PULLS_KEPT: Final = 32
"""Pulls of one peer that are looked back on."""
KEPT_SECONDS: Final = 600.0
"""Seconds after which a pull says nothing any more: lines and loads change."""


class _Pull(NamedTuple):
    at: float
    first: float
    rate: float


class Timed:
    """One pull, from its request on: who waited for a turn before it is not in it.

    Args:
        into: where it is noted.
        began: when it was asked for; seconds, as all times here.
    """

    def __init__(self, into: deque[_Pull], began: float) -> None:
        self._into = into
        self._began = began
        self._first = self._last = 0.0
        self._size = 0

    def came(self, size: int, now: float) -> None:
        """A block of so many bytes."""
        self._last = now - self._began
        self._first = self._first or self._last
        self._size += size

    def done(self) -> None:
        """However it ended: what came is noted."""
        if self._size:
            at = self._began + self._last
            self._into.append(_Pull(at, self._first, self._size / max(self._last, 1e-6)))


class Speeds:
    """Of all peers.

    Args:
        rate_max: bytes a second that a peer may send.
    """

    def __init__(self, rate_max: float) -> None:
        self._rate_max = rate_max
        self._pulls: dict[str, deque[_Pull]] = {}

    def begin(self, peer: str, now: float) -> Timed:
        """A pull begins."""
        return Timed(self._pulls.setdefault(peer, deque(maxlen=PULLS_KEPT)), now)

    def seconds(self, peer: str, size: int, now: float) -> float | None:
        """What a pull of so many bytes would take; None if no pull tells.

        The median time to a first block, and the bytes at the best rate that was seen: short pulls show less
        than the line can do, so it is rather too long than too short.
        """
        pulls = [p for p in self._pulls.get(peer, ()) if now - p.at < KEPT_SECONDS]
        if not pulls:
            return None
        rate = min(self._rate_max, max(pull.rate for pull in pulls))
        return median(pull.first for pull in pulls) + size / rate
