"""Copies of peers' blocks in the local pool: how many bytes they may take, and which go first; sans-IO.

What is over the quota goes in the order in which it was last of use, and of a chain its tail first: a chain
without its head is worth nothing. What engines of this group wrote is never among it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from local_group.holdings import Holdings
from local_group.ledger import is_foreign_origin
from local_group.names import Named

COPIES_MAX: Final = 262_144
"""Copies that there may be, however small; 300 bytes of memory each."""
ANCESTORS_MAX: Final = 65_536
"""Blocks of a chain that are of use with one behind them: no chain is longer."""
COMING_MAX: Final = 16_384
"""Blocks that are no copies yet, of which it is known what comes before them: four times as many as may wait
to be admitted. Of what is pulled later it is told again."""
LOW_PERCENT: Final = 90
"""Of the quota, down to which it is given back once it is exceeded: in large pieces, not one by one."""


@dataclass(slots=True)
class _Copy:
    size: int
    before: int | None = None
    """Name of the block before it in its chain."""


class Copies:
    """Which blocks of the pool are copies of peers'.

    Args:
        percent: of the pool that they may take.
        copies_max: how many there may be.
    """

    def __init__(self, percent: int, copies_max: int = COPIES_MAX) -> None:
        self._percent = percent
        self._copies_max = copies_max
        self._copies: OrderedDict[Named, _Copy] = OrderedDict()
        """The first to go first."""
        self._coming: OrderedDict[Named, int] = OrderedDict()
        """What comes before blocks that are no copies yet."""
        self._wanted = 0
        """The largest that there was no room for."""
        self.bytes = 0
        """Payload of all copies."""
        self.pool: int | None = None
        """Bytes of the pool; None while nobody has said how large it is."""

    def __len__(self) -> int:
        return len(self._copies)

    @property
    def quota(self) -> int | None:
        """Bytes that they may take, as far as that is known."""
        return None if self.pool is None else self.pool * self._percent // 100

    def pool_is(self, size: int) -> None:
        """The pool has so many bytes."""
        self.pool = size

    def turnover(self, written: int) -> float:
        """So many bytes as a multiple of the pool; 0 while nobody knows how large that is."""
        return written / self.pool if self.pool else 0.0

    def fits(self, size: int) -> bool:
        """Whether more, of so many bytes, is within the quota. If not, room is to be made."""
        fits = len(self._copies) < self._copies_max and (
            self.quota is None or self.bytes + size <= self.quota
        )
        if not fits:
            self._wanted = max(self._wanted, size)
        return fits

    def follow(self, holdings: Holdings, fingerprint: bytes, name: int) -> None:
        """A block has come, gone, or is known as something else now."""
        held = holdings.get(fingerprint, name)
        self._drop((fingerprint, name))
        if held is not None and is_foreign_origin(held.origin):
            self._add((fingerprint, name), held.size)

    def comes_after(self, fingerprint: bytes, name: int, before: int) -> None:
        """A block, which may be a copy now or soon, is of use with those before it in its chain, and goes
        before them."""
        copy = self._copies.get((fingerprint, name))
        if copy is None:
            self._coming[fingerprint, name] = before
            if len(self._coming) > COMING_MAX:
                self._coming.popitem(last=False)
            return
        copy.before = before
        self.used(fingerprint, before)

    def used(self, fingerprint: bytes, name: int) -> None:
        """A copy, if it is one, was of use, and so were those before it in its chain."""
        at: int | None = name
        for _ in range(ANCESTORS_MAX):
            copy = None if at is None else self._copies.get((fingerprint, at))
            if copy is None or at is None:
                return
            self._copies.move_to_end((fingerprint, at))
            at = copy.before

    def surplus(self, most: int) -> list[Named]:
        """What has to go, the first first, at most so many; nothing while there was room for all."""
        wanted, self._wanted = self._wanted, 0
        if self.fits(0) and not wanted:
            return []
        self._wanted = 0
        count, left = len(self._copies), self.bytes
        low = self._copies_max * LOW_PERCENT // 100
        low_bytes = None
        if self.quota is not None:
            low_bytes = max(0, min(self.quota * LOW_PERCENT // 100, self.quota - wanted))
        found: list[Named] = []
        for named, copy in self._copies.items():
            if len(found) >= most or (count <= low and (low_bytes is None or left <= low_bytes)):
                break
            found.append(named)
            count, left = count - 1, left - copy.size
        return found

    def _add(self, named: Named, size: int) -> None:
        # What is too much, from a journal say, is not counted; Mooncake evicts it in its time.
        if len(self._copies) < 2 * self._copies_max:
            copy = self._copies[named] = _Copy(size, self._coming.pop(named, None))
            self.bytes += size
            if copy.before is not None:
                self.used(named[0], copy.before)

    def _drop(self, named: Named) -> None:
        copy = self._copies.pop(named, None)
        if copy is not None:
            self.bytes -= copy.size
