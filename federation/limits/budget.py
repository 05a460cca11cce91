"""Budgets: retries in proportion to requests, and what reads for a peer may keep in the pool; sans-IO."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

LEASE_SLOTS = 32
"""Pieces that a lease's time is counted in: what the memory of a budget is bounded by."""
POOL_PART_MAX = 8
"""A small pool's least allowance is at most one part in this many."""


class RetryBudget:
    """Retries are at most `percent` of requests, and `few` more, however long it goes on.

    Without one, an outage of one peer doubles what the others are asked, just when they are needed.
    """

    def __init__(self, percent: int, few: int) -> None:
        self._percent = percent
        self.few = few
        """Retries left at rest."""
        self._credit = 100 * few  # in hundredths of a retry: exact

    @property
    def left(self) -> float:
        """Retries that may be made now."""
        return self._credit / 100

    def request(self) -> None:
        """A first try was made. Credit is not hoarded beyond `few`: a storm after a calm is small too."""
        self._credit = max(self._credit, min(100 * self.few, self._credit + self._percent))

    def has(self) -> bool:
        """Whether a retry may be made."""
        return self._credit >= 100

    def take(self) -> bool:
        """Makes a retry, if one may be made."""
        if not self.has():
            return False
        self._credit -= 100
        return True


class LeaseRecord(Protocol):
    """Where a budget writes down what it counts, for the one that comes after it."""

    def load(self) -> Iterable[tuple[int, int]]:
        """All that was saved: a slot of time, and the bytes read in it."""

    def save(self, slot: int, size: int) -> None:
        """`size` bytes were read in that slot, all in all."""


class LeaseBudget:
    """Bytes read out of the pool for one peer within one lease.

    Reading grants a lease, and what is leased cannot be evicted. So a peer that re-reads all it can
    find would turn the pool into a store of its own choosing. Bytes are counted at each read, twice for
    a block read twice: rather too little room than too much.

    Args:
        percent: of the pool that one peer may keep leased.
        least: bytes that are allowed however small the pool is, up to an eighth of it: two percent of a
            test's pool is less than one block.
        ttl: seconds of a lease.
    """

    def __init__(self, percent: float, least: int, ttl: float) -> None:
        self._percent = percent
        self._least = least
        self._ttl = ttl
        self._pool: int | None = None
        self._slot = ttl / LEASE_SLOTS
        self._reads: deque[tuple[int, int]] = deque()  # (slot, bytes), ascending
        self._now = float("-inf")
        self._record: LeaseRecord | None = None
        self._beside: Sequence[LeaseRecord] = ()
        self.leased = 0
        """Bytes that this process has under lease for this peer, at most."""

    def __repr__(self) -> str:
        return f"LeaseBudget({self.leased} of {self.allowed} bytes)"

    @property
    def allowed(self) -> int:
        """Bytes that may be under lease at once."""
        if self._pool is None:
            return self._least
        return max(
            int(self._pool * self._percent / 100), min(self._least, self._pool // POOL_PART_MAX)
        )

    def carry_on(self, record: LeaseRecord, now: float, beside: Sequence[LeaseRecord] = ()) -> None:
        """Takes over what another has counted, and writes down from here on what this one counts.

        Args:
            beside: what others count meanwhile, of the same allowance.

        Both have the same clock and the same lease. What lies ahead of `now` nobody can have counted.
        """
        assert not self._reads, "before the first read"
        slot = int(now // self._slot)
        self._reads.extend(sorted(read for read in record.load() if read[0] <= slot))
        self.leased = sum(size for _, size in self._reads)
        self._record = record
        self._beside = beside
        self._expire(now)

    def resize(self, pool: int) -> None:
        """The pool has `pool` bytes now."""
        self._pool = pool

    def leased_at(self, now: float) -> int:
        """Bytes under lease for this peer at `now`, at most."""
        self._expire(now)
        return self.leased

    def fits(self, n: int, now: float) -> bool:
        """Whether `n` bytes may be read. A single read above the whole allowance waits for no other."""
        self._expire(now)
        leased = self.leased + sum(size for _, size in self._elsewhere())
        return leased == 0 or leased + n <= self.allowed

    def take(self, n: int, now: float, *, forced: bool = False) -> bool:
        """Counts a read of `n` bytes, if it may be made or is `forced`."""
        if not self.fits(n, now) and not forced:
            return False
        slot = int(self._now // self._slot)
        if self._reads and self._reads[-1][0] == slot:
            self._reads[-1] = (slot, self._reads[-1][1] + n)
        else:
            self._reads.append((slot, n))
        self.leased += n
        if self._record is not None:
            self._record.save(*self._reads[-1])  # before the read: whatever happens then, it counts
        return True

    def wait(self, n: int, now: float) -> float:
        """Seconds until `fits(n)`, if nothing else is read meanwhile."""
        self._expire(now)
        elsewhere = list(self._elsewhere())
        left = self.leased + sum(size for _, size in elsewhere)
        for slot, size in sorted([*self._reads, *elsewhere]):
            if left == 0 or left + n <= self.allowed:
                break
            left -= size
            now = self._ends(slot)
        return max(0.0, now - self._now)

    def _elsewhere(self) -> Iterator[tuple[int, int]]:
        """Reads of others that are under lease. What lies ahead of now nobody can have counted."""
        last = int(self._now // self._slot)
        for record in self._beside:
            for slot, size in record.load():
                if slot <= last and self._ends(slot) > self._now:
                    yield slot, size

    def _ends(self, slot: int) -> float:
        # The last lease of a slot may begin at its very end.
        return (slot + 1) * self._slot + self._ttl

    def _expire(self, now: float) -> None:
        self._now = max(self._now, now)  # a clock that goes back frees nothing
        while self._reads and self._ends(self._reads[0][0]) <= self._now:
            self.leased -= self._reads.popleft()[1]


def hops_allowed(hops: int, limit: int) -> bool:
    """Whether a block that has crossed `hops` borders at its sender may cross the one to us."""
    return hops + 1 <= limit
