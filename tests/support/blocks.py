"""Memory of a caller: blocks whose bytes follow from their keys, in one numpy array."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def block_bytes(key: str, size: int) -> bytes:
    """The only right bytes of a block."""
    return np.random.default_rng(zlib.crc32(key.encode())).bytes(size)


class Memory:
    """`count` places of `size` bytes, one after the other."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size
        self.array: NDArray[np.uint8] = np.zeros(count * size, dtype=np.uint8)
        base = self.array.ctypes.data
        self.ptrs = [base + i * size for i in range(count)]
        self.sizes = [size] * count

    def fill(self, keys: Sequence[str]) -> None:
        """Place i gets the bytes of block `keys[i]`."""
        for i, key in enumerate(keys):
            block = np.frombuffer(block_bytes(key, self.size), dtype=np.uint8)
            self.array[i * self.size : (i + 1) * self.size] = block

    def fill_byte(self, byte: int) -> None:
        """All bytes are this one."""
        self.array[:] = byte

    def place(self, i: int) -> bytes:
        """The bytes at place i."""
        return self.array[i * self.size : (i + 1) * self.size].tobytes()

    def all_are(self, byte: int) -> bool:
        """Whether every byte is this one."""
        return bool((self.array == byte).all())
