"""How fast blocks of peers come, as the latest pulls went; sans-IO.

Of each pull two points are noted: what had come with its first message and what in the end, and after how
long. A line through the points says what a pull takes before anything comes, and then for each byte.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

KEPT_SECONDS: Final = 600.0
"""Seconds after which a pull says nothing any more: lines and loads change."""
HALF_SECONDS: Final = 15.0
"""Seconds after which a pull counts half of one that has just been."""
HALF_PULLS: Final = 8
"""Pulls after which one counts half of the latest."""
SURE_PULLS: Final = 3
"""Pulls that it takes to be sure. Of a peer with fewer too much is believed rather than too little: else
nobody would find out."""
SPREAD_MIN: Final = 0.1
"""Deviation of the sizes, over their mean, from which they tell what comes first and what a byte takes."""
SMALL_BYTES: Final = 64 << 10
"""Bytes that take no time to speak of beside what comes first."""
KINDS_MAX: Final = 8
"""Kinds of pulls that are told apart, for each peer."""

_KEEP = 0.5 ** (1 / HALF_PULLS)


class Estimate(NamedTuple):
    """What a pull from one peer takes."""

    first: float
    """Seconds before anything comes."""
    byte: float
    """Seconds for each byte."""
    pulls: int = 0
    """How many pulls tell."""
    size: float = 0.0
    """Bytes that had come when it was looked, in the middle."""

    @property
    def sure(self) -> bool:
        """Whether enough pulls tell."""
        return self.pulls >= SURE_PULLS

    def seconds(self, size: float) -> float:
        """For so many bytes."""
        return self.first + size * self.byte


class _Line:
    """A line through points (bytes, seconds), of which the older ones count less."""

    def __init__(self) -> None:
        self.at = -math.inf
        """When the latest pull ended."""
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        self._pulls = 0

    def note(self, points: list[tuple[int, float]], now: float) -> None:
        """One pull."""
        age = max(0.0, now - self.at)
        keep = 0.0 if age >= KEPT_SECONDS else _KEEP * 0.5 ** (age / HALF_SECONDS)
        self.at = max(now, self.at)
        self._pulls = self._pulls * (keep > 0) + 1
        self._weight *= keep
        self._x *= keep
        self._y *= keep
        self._xx *= keep
        self._xy *= keep
        for x, y in points:
            self._weight += 1
            self._x += x
            self._y += y
            self._xx += x * x
            self._xy += x * y

    def estimate(self, byte_min: float, now: float) -> Estimate | None:
        if not self._pulls or now - self.at >= KEPT_SECONDS:
            return None
        x, y = self._x / self._weight, self._y / self._weight
        spread = self._xx / self._weight - x * x
        # Of sizes that are all alike nothing tells what comes first: of small ones it is nearly all.
        byte = y / max(x, SMALL_BYTES)
        first = y - byte * x
        if spread > (SPREAD_MIN * x) ** 2:
            slope = max((self._xy / self._weight - x * y) / spread, byte_min)
            if y > slope * x:
                byte, first = slope, y - slope * x
        return Estimate(first, max(byte, byte_min), self._pulls, x)


class Timed:
    """One pull, from its request on: who waited for a turn before it is not in it.

    Args:
        lines: where it is noted.
        began: when it was asked for; seconds, as all times here.
    """

    def __init__(self, lines: tuple[_Line, ...], began: float) -> None:
        self._lines = lines
        self._began = began
        self._first: tuple[int, float] | None = None
        self._last = 0.0
        self._size = 0

    def came(self, size: int, now: float) -> None:
        """A message of so many bytes."""
        self._last = max(now - self._began, 1e-6)
        self._size += size
        if self._first is None and size:
            self._first = (size, self._last)

    def done(self) -> None:
        """However it ended: what came is noted. Not for an answer without a block, which tells of no bytes."""
        if self._first is None:
            return
        last = (self._size, self._last)
        points = [self._first] if self._size == self._first[0] else [self._first, last]
        for line in self._lines:
            line.note(points, self._began + self._last)


class Speeds:
    """Of all peers, for each kind of pull and for all together.

    Args:
        rate_max: bytes a second that a peer may send.
    """

    def __init__(self, rate_max: float) -> None:
        self._byte_min = 1.0 / rate_max
        self._lines: dict[str, dict[str, _Line]] = {}

    @property
    def byte_min(self) -> float:
        """Seconds that a byte takes at least."""
        return self._byte_min

    def begin(self, peer: str, now: float, kind: str = "") -> Timed:
        """A pull begins.

        Args:
            kind: of pull; each is treated in its own way, and so takes its own time.
        """
        lines = self._lines.setdefault(peer, {"": _Line()})
        if kind not in lines and len(lines) > KINDS_MAX:
            kind = ""
        chosen = {name: lines.setdefault(name, _Line()) for name in ("", kind)}
        return Timed(tuple(chosen.values()), now)

    def estimate(self, peer: str, now: float, kind: str = "") -> Estimate | None:
        """What such a pull takes; None if no pull tells. While there are few of the kind, all others tell."""
        lines = self._lines.get(peer, {})
        own, every = (
            line.estimate(self._byte_min, now) if (line := lines.get(name)) else None
            for name in (kind, "")
        )
        return own if own is not None and own.sure else every or own

    def least(self, size: float, now: float) -> float:
        """Seconds for so many bytes from the fastest peer that is known; infinity if there is none."""
        found = (self.estimate(peer, now) for peer in self._lines)
        return min((e.seconds(size) for e in found if e is not None and e.sure), default=math.inf)

    def told_at(self, peer: str) -> float:
        """When the latest pull ended of those that tell anything; minus infinity if none does."""
        lines = self._lines.get(peer)
        return lines[""].at if lines else -math.inf

    def seconds(self, peer: str, size: int, now: float, kind: str = "") -> float | None:
        """What a pull of so many bytes would take; None if no pull tells."""
        found = self.estimate(peer, now, kind)
        return None if found is None else found.seconds(size)
