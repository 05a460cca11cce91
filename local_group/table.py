"""A sorted table of records by name, in 36 bytes a record: names and records of a fixed size in short runs.

A dict of the same has hundreds of bytes a record, and numpy arrays have to be made anew where something comes
in between. Here a run of at most `LEAF_MAX` names is one array, its records are one `bytearray` beside it,
and only what is behind a place moves. A look-up is two bisections. Both have room for a multiple of `STEP`
records: memory that one run has outgrown fits another, or what comes and goes would leave holes everywhere.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import numpy as np

from local_group.names import NAME_MAX, Names

LEAF_MAX = 512
"""Records in one run; with more it becomes two."""
STEP = 16
"""Records by which a run's room grows."""
_LEAF_MERGE = LEAF_MAX * 3 // 4
"""Two neighbours that have no more between them become one, once one of them is below a quarter."""
_LEAF_BYTES = 260
"""Of a run, beside its names and records: its two objects and its places in the lists."""


class Table:
    """Records by name.

    Args:
        size: bytes of each record.
    """

    __slots__ = ("_count", "_fill", "_firsts", "_names", "_records", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._count = 0
        self._firsts = array(
            "Q", [0]
        )  # no name of a run is below its place here, the first run's 0
        self._fill = array("H", [0])  # records in each run; what is behind them means nothing
        self._names = [array("Q")]
        self._records = [bytearray()]

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of memory, but for what the allocator rounds up."""
        room = sum(map(len, self._names))
        return room * (8 + self._size) + len(self._names) * _LEAF_BYTES

    def get(self, name: int) -> bytes | None:
        """The record, if there is one."""
        leaf = bisect_right(self._firsts, name) - 1
        names, fill = self._names[leaf], self._fill[leaf]
        at = bisect_left(names, name, 0, fill)
        if at == fill or names[at] != name:
            return None
        return bytes(self._records[leaf][at * self._size : (at + 1) * self._size])

    def put(self, name: int, record: bytes) -> bool:
        """Sets a record; True if there was none."""
        leaf = bisect_right(self._firsts, name) - 1
        names, records, fill = self._names[leaf], self._records[leaf], self._fill[leaf]
        at = bisect_left(names, name, 0, fill)
        size = self._size
        cut = at * size
        if at < fill and names[at] == name:
            records[cut : cut + size] = record
            return False
        if fill == len(names):
            names = self._names[leaf] = names + array("Q", bytes(8 * STEP))
            records = self._records[leaf] = records + bytes(size * STEP)
        if at < fill:
            names[at + 1 : fill + 1] = names[at:fill]
            records[cut + size : (fill + 1) * size] = records[cut : fill * size]
        names[at] = name
        records[cut : cut + size] = record
        self._fill[leaf] = fill + 1
        self._count += 1
        if fill + 1 == LEAF_MAX:
            self._split(leaf)
        return True

    def pop(self, name: int) -> bytes | None:
        """Takes a record out, if there is one."""
        leaf = bisect_right(self._firsts, name) - 1
        names, records, fill = self._names[leaf], self._records[leaf], self._fill[leaf]
        at = bisect_left(names, name, 0, fill)
        if at == fill or names[at] != name:
            return None
        size = self._size
        cut = at * size
        record = bytes(records[cut : cut + size])
        names[at : fill - 1] = names[at + 1 : fill]
        records[cut : (fill - 1) * size] = records[cut + size : fill * size]
        self._fill[leaf] = fill - 1
        self._count -= 1
        if len(names) - fill > 2 * STEP:
            self._names[leaf] = names[:-STEP]
            self._records[leaf] = records[: -size * STEP]
        if fill <= LEAF_MAX // 4:
            self._merge(leaf)
        return record

    def after(self, name: int, count: int) -> list[int]:
        """Up to `count` names above `name` (-1 for all), in ascending order."""
        found: list[int] = []
        if name < NAME_MAX:
            for leaf in range(bisect_right(self._firsts, name + 1) - 1, len(self._names)):
                names, fill = self._names[leaf], self._fill[leaf]
                at = bisect_left(names, name + 1, 0, fill)
                found.extend(names[at : min(fill, at + count - len(found))])
                if len(found) >= count:
                    break
        return found

    def last(self) -> int | None:
        """The highest name."""
        runs = zip(reversed(self._names), reversed(self._fill), strict=True)
        return next((names[fill - 1] for names, fill in runs if fill), None)

    def between(self, first: int, last: int, count: int) -> tuple[Names, int]:
        """Names from `first` on, of whole runs until there are `count`; and up to where that is all, which
        is `last` at most."""
        parts = [np.empty(0, dtype=np.uint64)]
        total = 0
        until = last
        for leaf in range(bisect_right(self._firsts, first) - 1, len(self._names)):
            if self._firsts[leaf] > last:
                break
            if total >= count:
                until = self._firsts[leaf] - 1
                break
            fill = self._fill[leaf]
            parts.append(np.array(self._names[leaf], dtype=np.uint64)[:fill])
            total += fill
        names = np.concatenate(parts)
        low = int(np.searchsorted(names, np.uint64(first)))
        high = int(np.searchsorted(names, np.uint64(until), side="right"))
        return names[low:high], until

    def items(self) -> Iterator[tuple[int, bytes]]:
        """All of them in ascending order. What comes and goes meanwhile may be among them or not."""
        name = -1
        while part := self.after(name, LEAF_MAX):
            for name in part:
                record = self.get(name)
                if record is not None:
                    yield name, record

    def run_by_run(self) -> Iterator[tuple[int, bytes]]:
        """As `items`, in a third of the time: each run is as it was when it was reached, so what has gone
        since is among them."""
        size = self._size
        first = 0
        while first <= NAME_MAX:
            leaf = bisect_right(self._firsts, first) - 1
            last = self._firsts[leaf + 1] - 1 if leaf + 1 < len(self._firsts) else NAME_MAX
            fill = self._fill[leaf]
            names = self._names[leaf][:fill]
            records = bytes(self._records[leaf])
            for at in range(bisect_left(names, first), fill):
                yield names[at], records[at * size : (at + 1) * size]
            first = last + 1

    def _split(self, leaf: int) -> None:
        names, records = self._names[leaf], self._records[leaf]
        half = LEAF_MAX // 2  # a multiple of STEP
        cut = half * self._size
        self._names[leaf : leaf + 1] = [names[:half], names[half:]]
        self._records[leaf : leaf + 1] = [records[:cut], records[cut:]]
        self._fill[leaf] = half
        self._fill.insert(leaf + 1, LEAF_MAX - half)
        self._firsts.insert(leaf + 1, names[half])

    def _merge(self, leaf: int) -> None:
        """With the next run, or with the one before it."""
        for left in (leaf, leaf - 1):
            if not 0 <= left < len(self._names) - 1:
                continue
            one, other = self._fill[left], self._fill[left + 1]
            if one + other > _LEAF_MERGE:
                continue
            spare = -(one + other) % STEP
            names = self._names[left][:one] + self._names[left + 1][:other]
            size = self._size
            records = self._records[left][: one * size] + self._records[left + 1][: other * size]
            self._names[left : left + 2] = [names + array("Q", bytes(8 * spare))]
            self._records[left : left + 2] = [records + bytes(size * spare)]
            self._fill[left] = one + other
            del self._fill[left + 1]
            del self._firsts[left + 1]
            return
