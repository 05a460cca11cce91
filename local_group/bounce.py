"""Bounce memory: the only memory that a call with a hard deadline lets Mooncake touch.

`Arena` is the sans-IO bookkeeping (first fit over a sorted free list, neighbours merged).
`BounceMemory` is one anonymous mapping with an arena and a first-come-first-served line of those
who wait for room. A span stays taken until its call has returned from Mooncake, however long after
the deadline that is: so quarantine is nothing but "not given back yet", plus a count of its bytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable

PAGE = 4096


class Arena:
    """Offsets in `size` bytes, handed out in spans of whole units: pages, if not told otherwise.

    Invariant: free and taken spans never overlap, cover all bytes, and no two free spans touch.
    """

    def __init__(self, size: int, unit: int = PAGE) -> None:
        if size <= 0 or size % unit:
            raise ValueError(f"size must be a positive multiple of {unit}")
        self.size = size
        self._unit = unit
        self._starts = [0]  # of free spans, sorted
        self._lengths = [size]
        self._taken: dict[int, int] = {}  # offset -> length
        self.free_bytes = size

    def __repr__(self) -> str:
        return f"Arena(size={self.size}, free={self.free_bytes}, taken={len(self._taken)})"

    @property
    def taken(self) -> dict[int, int]:
        """A copy of the spans in use: offset -> bytes."""
        return dict(self._taken)

    @property
    def free(self) -> list[tuple[int, int]]:
        """The free spans, sorted: (offset, bytes)."""
        return list(zip(self._starts, self._lengths, strict=True))

    def take(self, size: int) -> int | None:
        """The offset of a span of at least `size` bytes, or None when no free span is that long."""
        if size <= 0:
            raise ValueError("size must be > 0")
        size = -(-size // self._unit) * self._unit
        for i, length in enumerate(self._lengths):
            if length < size:
                continue
            offset = self._starts[i]
            if length == size:
                del self._starts[i], self._lengths[i]
            else:
                self._starts[i] += size
                self._lengths[i] -= size
            self._taken[offset] = size
            self.free_bytes -= size
            return offset
        return None

    def give(self, offset: int) -> int:
        """Takes a span back and returns its length. A span that is not taken is a KeyError: giving
        one back twice would hand the same bytes to two calls."""
        size = self._taken.pop(offset)
        self.free_bytes += size
        i = bisect_left(self._starts, offset)
        joins_left = i > 0 and self._starts[i - 1] + self._lengths[i - 1] == offset
        joins_right = i < len(self._starts) and offset + size == self._starts[i]
        if joins_left and joins_right:
            self._lengths[i - 1] += size + self._lengths[i]
            del self._starts[i], self._lengths[i]
        elif joins_left:
            self._lengths[i - 1] += size
        elif joins_right:
            self._starts[i] = offset
            self._lengths[i] += size
        else:
            self._starts.insert(i, offset)
            self._lengths.insert(i, size)
        return size


class Waiter:
    """A place in the line for room. `offset` is set, and `granted` called once, when it is its
    turn; `granted` runs in the thread that gave room back, under no lock, and must not block."""

    __slots__ = ("granted", "offset", "size")

    def __init__(self, size: int, granted: Callable[[], None]) -> None:
        self.size = size
        self.granted = granted
        self.offset: int | None = None


class BounceMemory:
    """One mapping, its arena and the line before it. Thread-safe.

    Args:
        size: bytes, a multiple of the page size.
        waiters_max: how many calls may wait for room at once.
    """

    def __init__(self, size: int, waiters_max: int) -> None:
        self._arena = Arena(size)
        self._lock = threading.Lock()
        self._line: deque[Waiter] = deque()
        self._waiters_max = waiters_max
        self._map = mmap.mmap(-1, size)
        # Fewer page faults and TLB misses on large copies; not every kernel has it.
        with contextlib.suppress(AttributeError, OSError):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self._view = memoryview(self._map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.size = size

    @property
    def used_bytes(self) -> int:
        """Bytes taken now."""
        return self.size - self._arena.free_bytes

    def take(self, size: int) -> int | None:
        """An offset at once, or None: no room, or others wait already (no overtaking)."""
        with self._lock:
            return None if self._line else self._arena.take(size)

    def wait_in_line(self, size: int, granted: Callable[[], None]) -> Waiter | None:
        """Joins the line; None when it is full. `waiter.offset` is set at once if there is room."""
        waiter = Waiter(size, granted)
        with self._lock:
            if not self._line:
                waiter.offset = self._arena.take(size)
                if waiter.offset is not None:
                    return waiter
            if len(self._line) >= self._waiters_max:
                return None
            self._line.append(waiter)
        return waiter

    def leave_line(self, waiter: Waiter) -> None:
        """Gives up waiting; room that was granted meanwhile is given back."""
        with self._lock:
            if waiter.offset is None:
                with contextlib.suppress(ValueError):
                    self._line.remove(waiter)
                granted = self._serve()
            else:
                self._arena.give(waiter.offset)
                waiter.offset = None
                granted = self._serve()
        for other in granted:
            other.granted()

    def give(self, offset: int) -> None:
        """Gives a span back and serves the line."""
        with self._lock:
            self._arena.give(offset)
            granted = self._serve() if self._line else ()
        for waiter in granted:
            waiter.granted()

    def view(self, offset: int, size: int) -> memoryview:
        """The bytes of a span; valid until the span is given back."""
        return self._view[offset : offset + size]

    def _serve(self) -> list[Waiter]:
        granted = []
        while self._line:
            offset = self._arena.take(self._line[0].size)
            if offset is None:
                break
            waiter = self._line.popleft()
            waiter.offset = offset
            granted.append(waiter)
        return granted
