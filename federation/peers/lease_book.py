"""What serving processes count of each peer, in memory that they share and that outlives each of them.

A serving process that is killed forgets what it counted, but Mooncake does not forget the leases. So a
peer that can kill it could have its part of the pool leased anew each time. This memory belongs to the
gateway, which only hands it on: the next serving process goes on where the last one was killed. And where
there are several, each reads what the others count: see `limits.shared`.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Sequence

from federation.config import PEERS_MAX, WORKERS_MAX
from federation.limits.budget import LEASE_SLOTS
from federation.limits.shared import Book

_CELL = struct.Struct("<qq")  # slot of time, bytes
_CELLS = 2 * LEASE_SLOTS
"""More than a budget has at once: a cell is not needed any more when it is written anew."""
_COUNT = struct.Struct("@q")  # native: written and read as one word
_COUNTS = ("streams", "requests", "request_rate", "hello_rate", "byte_rate", "catalog_rate")
_LEASES_BYTES = _CELLS * _CELL.size
_PAGE_BYTES = _LEASES_BYTES + len(_COUNTS) * _COUNT.size
BOOK_BYTES = WORKERS_MAX * PEERS_MAX * _PAGE_BYTES


def make_book() -> int:
    """A descriptor of empty memory for all peers; its size is sealed."""
    descriptor = os.memfd_create("moonmesh-leases", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, BOOK_BYTES)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


class LeasePage:
    """Leases of one peer in one process: see `limits.budget.LeaseRecord`."""

    def __init__(self, memory: mmap.mmap, at: int) -> None:
        self._memory = memory
        self._at = at

    def load(self) -> Iterator[tuple[int, int]]:
        """All that is written there, however old."""
        for cell in range(_CELLS):
            slot, size = _CELL.unpack_from(self._memory, self._at + cell * _CELL.size)
            if size > 0:
                yield slot, size

    def save(self, slot: int, size: int) -> None:
        """`size` bytes were read in that slot of time, all in all."""
        _CELL.pack_into(self._memory, self._at + slot % _CELLS * _CELL.size, slot, size)


class SharedCount:
    """One number of one peer: see `limits.shared.Count`. Whole words, so none is read half written."""

    def __init__(self, memory: mmap.mmap, mine: int, others: Sequence[int]) -> None:
        self._memory = memory
        self._mine = mine
        self._others = others

    def set(self, n: int) -> None:
        _COUNT.pack_into(self._memory, self._mine, n)

    def add(self, n: int) -> None:
        self.set(_COUNT.unpack_from(self._memory, self._mine)[0] + n)

    def elsewhere(self) -> int:
        return sum(max(0, _COUNT.unpack_from(self._memory, at)[0]) for at in self._others)


class LeaseBook:
    """All of that memory, as a serving process uses it.

    Args:
        descriptor: from `make_book`; not needed any more afterwards.
        peers: in the same order each time.
        worker: which of the `workers` it is, from 0 on.
    """

    def __init__(
        self, descriptor: int, peers: Iterable[str], worker: int = 0, workers: int = 1
    ) -> None:
        memory = mmap.mmap(descriptor, BOOK_BYTES)

        def page(which: int, peer: int) -> int:
            return (which * PEERS_MAX + peer) * _PAGE_BYTES

        others = [which for which in range(workers) if which != worker]
        self.books: dict[str, Book] = {}
        """By peer."""
        for peer, name in enumerate(peers):
            counts = {}
            for place, what in enumerate(_COUNTS):
                at = _LEASES_BYTES + place * _COUNT.size
                mine, theirs = page(worker, peer) + at, [page(each, peer) + at for each in others]
                counts[what] = SharedCount(memory, mine, theirs)
            self.books[name] = Book(
                LeasePage(memory, page(worker, peer)),
                [LeasePage(memory, page(each, peer)) for each in others],
                **counts,
            )
