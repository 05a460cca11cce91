"""The memory that an engine gives its store to read from and write into."""

from __future__ import annotations

import numpy as np

PATTERN = 0xA5


class Memory:
    """A thread's buffers: a row a block, filled with the pattern between calls."""

    def __init__(self, rows: int, block_bytes: int) -> None:
        self.rows = np.full((rows, block_bytes), PATTERN, np.uint8)
        base = int(self.rows.ctypes.data)
        self.pointers = [base + i * block_bytes for i in range(rows)]
        self.sizes = [block_bytes] * rows
        self._touched = np.full(rows * block_bytes, PATTERN, np.uint8).view(np.uint64)

    def untouched(self) -> bool:
        """Whether it is as `reuse` left it."""
        return bool(np.array_equal(self.rows.reshape(-1).view(np.uint64), self._touched))

    def reuse(self) -> None:
        """Gives the memory another use: nothing may write into it now."""
        self.rows[:] = PATTERN
