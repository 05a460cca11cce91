"""The memory that staging lies in, made so that engines of the same host can look into it.

One sealed memfd: it cannot shrink under a reader, and nobody but this process can write to it. A block
gets a slot of it; the slot is free again when nobody holds a view of it any more, here, however that
came about. An engine that looks too long finds other bytes, which is why it checks its own copy.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import weakref
from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np

from local_group.bounce import PAGE, Arena

SLOT_UNIT_BYTES: Final = 64
"""Slots are multiples of it: a cache line."""
F_SEAL_FUTURE_WRITE: Final = 0x10
"""Linux 5.1; Python names it from 3.12 on."""
SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL


class Slots:
    """Slots in one memfd. Used by one thread; views may be let go of by any.

    Memory that was touched once stays with the process: what it takes at most is `size`.

    Args:
        size: bytes, rounded up to whole pages.
        share: gives the memory's descriptor to who else may write to it, before nobody can any more.
    """

    def __init__(self, size: int, share: Callable[[int], None] = lambda memory: None) -> None:
        self.size = -(-size // PAGE) * PAGE
        self.name = secrets.randbits(63) | 1
        """Tells this memory from that of any other gateway, and of this one after a restart. Never 0."""
        self.fd = os.memfd_create("moonmesh-staging", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, self.size)
        self._map = mmap.mmap(self.fd, self.size)
        share(self.fd)
        self.lends = True
        """Whether engines may look; not where the kernel cannot keep them from writing."""
        try:
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, SEALS)
        except OSError:
            self.lends = False
        self.address = int(np.frombuffer(self._map, np.uint8).ctypes.data)
        """Where it begins, in this process."""
        self._arena = Arena(self.size, SLOT_UNIT_BYTES)
        self._left: deque[int] = deque()
        """Slots whose last view is gone; given back by the thread that takes, as a view may die anywhere."""

    @property
    def used_bytes(self) -> int:
        """Bytes of slots that somebody holds a view of."""
        self._collect()
        return self.size - self._arena.free_bytes

    def take(self, size: int) -> memoryview | None:
        """A slot for `size` bytes, which is free when the last view of it is gone; None: no room."""
        self._collect()
        offset = self._arena.take(size)
        if offset is None:
            return None
        slot = np.frombuffer(self._map, np.uint8, size, offset)
        weakref.finalize(slot, self._left.append, offset).atexit = False
        return slot.data

    def offset(self, view: memoryview) -> int:
        """Where a slot of this memory begins, in bytes."""
        return int(np.frombuffer(view, np.uint8).ctypes.data) - self.address

    def _collect(self) -> None:
        while self._left:
            self._arena.give(self._left.popleft())
