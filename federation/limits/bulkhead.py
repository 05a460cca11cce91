"""Bulkheads: places that are held, and memory shared by peers so that none loses its part; sans-IO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from federation.limits.shared import Count


class Bulkhead:
    """At most `limit` of something at once in each lane.

    Args:
        limit: places, or bytes, of one lane.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lanes: Counter[Hashable] = Counter()
        self._count: Count | None = None

    def __repr__(self) -> str:
        return f"Bulkhead({self.used} used, {self.limit} a lane)"

    @property
    def used(self) -> int:
        """Held now, over all lanes."""
        return sum(self._lanes.values())

    def share(self, count: Count) -> None:
        """Other processes hold places of it as well. For one that has a single lane."""
        self._count = count
        count.set(self.used)

    def fits(self, n: int = 1, lane: Hashable = None) -> bool:
        """Whether `n` more fit."""
        elsewhere = 0 if self._count is None else self._count.elsewhere()
        return self._lanes[lane] + elsewhere + n <= self.limit

    def take(self, n: int = 1, lane: Hashable = None, *, forced: bool = False) -> bool:
        """Holds `n` more; False, and nothing is held, if they do not fit and are not `forced`."""
        if not forced and not self.fits(n, lane):
            return False
        self._lanes[lane] += n
        self._tell()
        return True

    def give(self, n: int = 1, lane: Hashable = None) -> None:
        """Gives `n` back.

        Raises:
            ValueError: more than is held: a defect of the caller.
        """
        left = self._lanes[lane] - n
        if left < 0:
            raise ValueError(f"{n} given back, {self._lanes[lane]} held")
        if left:
            self._lanes[lane] = left
        else:
            del self._lanes[lane]  # a lane that is empty costs nothing
        self._tell()

    def _tell(self) -> None:
        if self._count is not None:
            self._count.set(self.used)


class Shares:
    """Bytes that peers share. Each has a part that is kept for it; the rest is for who comes first.

    The rule: the sum over all peers of max(what it uses, its part) never exceeds the total. So what a
    peer takes beyond its part is never some other's part, and a peer alone may have nearly all.

    Args:
        total: bytes.
        peers: all who may ask.
        shared_percent: of the total that is nobody's part.
        largest: bytes of the largest single thing. Parts are made smaller where it would not fit beside
            those of the others.
        enforced: False, in a test, only counts.
    """

    def __init__(
        self,
        total: int,
        peers: Iterable[str],
        shared_percent: int,
        *,
        largest: int = 0,
        enforced: bool = True,
    ) -> None:
        self.total = total
        self._enforced = enforced
        self._used = dict.fromkeys(peers, 0)
        count = max(1, len(self._used))
        self.part = total * (100 - shared_percent) // 100 // count
        """Bytes kept for each peer."""
        if count > 1:
            self.part = min(self.part, max(0, total - largest) // (count - 1))
        self._claimed = self.part * len(self._used)

    def __repr__(self) -> str:
        return f"Shares({self._used}, part {self.part} of {self.total})"

    def used(self, peer: str) -> int:
        """Bytes that `peer` holds."""
        return self._used.get(peer, 0)

    def fits(self, peer: str, n: int) -> bool:
        """Whether `peer` may have `n` bytes more. One that is not known may have none."""
        used = self._used.get(peer)
        if used is None:
            return False
        return not self._enforced or self._claimed_with(used, used + n) <= self.total

    def take(self, peer: str, n: int) -> bool:
        """Gives `peer` `n` bytes more; False, and nothing is given, if they do not fit."""
        if not self.fits(peer, n):
            return False
        self._set(peer, self._used[peer] + n)
        return True

    def give(self, peer: str, n: int) -> None:
        """Takes `n` bytes back from `peer`.

        Raises:
            ValueError: more than it holds: a defect of the caller.
        """
        if n > self.used(peer):
            raise ValueError(f"{peer} gives back {n} of {self.used(peer)} bytes")
        self._set(peer, self._used[peer] - n)

    def _claimed_with(self, before: int, after: int) -> int:
        return self._claimed + max(after, self.part) - max(before, self.part)

    def _set(self, peer: str, used: int) -> None:
        self._claimed = self._claimed_with(self._used[peer], used)
        self._used[peer] = used
