"""What was read for each peer within the last lease, in memory that outlives the process that reads.

A serving process that is killed forgets what it counted, but Mooncake does not forget the leases. So a
peer that can kill it could have its part of the pool leased anew each time. This memory belongs to the
gateway, which only hands it on: the next serving process goes on where the last one was killed.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Iterable, Iterator

from federation.config import PEERS_MAX
from federation.limits.budget import LEASE_SLOTS

_CELL = struct.Struct("<qq")  # slot of time, bytes
_CELLS = 2 * LEASE_SLOTS
"""More than a budget has at once: a cell is not needed any more when it is written anew."""
_PAGE_BYTES = _CELLS * _CELL.size
BOOK_BYTES = PEERS_MAX * _PAGE_BYTES


def make_book() -> int:
    """A descriptor of empty memory for all peers; its size is sealed."""
    descriptor = os.memfd_create("moonmesh-leases", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, BOOK_BYTES)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


class LeasePage:
    """The part of one peer: see `limits.budget.LeaseRecord`."""

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


class LeaseBook:
    """All of that memory, as a serving process uses it.

    Args:
        descriptor: from `make_book`; not needed any more afterwards.
        peers: in the same order each time.
    """

    def __init__(self, descriptor: int, peers: Iterable[str]) -> None:
        memory = mmap.mmap(descriptor, BOOK_BYTES)
        self.pages = {name: LeasePage(memory, i * _PAGE_BYTES) for i, name in enumerate(peers)}
