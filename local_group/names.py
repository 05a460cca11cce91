"""Names of blocks: within a group a block is known by the hash of its key, not by the key.

A name has 64 bits: of ten million blocks two have the same one with a chance of three in a million. Then one
entry stands for both, and the digest, which covers the key, tells them apart when either is read.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

NAME_MAX = (1 << 64) - 1

Names: TypeAlias = npt.NDArray[np.uint64]
Named: TypeAlias = tuple[bytes, int]
"""A block: its namespace and its name."""


def name_of(fingerprint: bytes, key: str) -> int:
    """xxh3-64 of a key within its namespace. (What no text can be is taken as the bytes that it was.)"""
    return xxhash.xxh3_64_intdigest(fingerprint + key.encode(errors="surrogateescape"))


def among(names: Names, others: Names) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which of `names` are in `others`, which are in ascending order."""
    if not len(others):
        return np.zeros(len(names), dtype=np.bool_)
    at = np.searchsorted(others, names)
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = others.take(at, mode="clip") == names
    return found
