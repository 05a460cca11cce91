"""Prints of blocks: the leading bits of their keys' 64-bit hashes, and how many bits it takes.

A catalog is a set of prints. Of two blocks with one print a subscriber cannot tell which one is held, so the
bits are chosen by the number of blocks: at most one look-up in 2,048 finds a block that is not there.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]
"""xxh3-64 of keys: see `federation.identity.key_hash`."""
Prints = npt.NDArray[np.uint64]
"""Leading bits of hashes, as numbers. Where they are said to be sorted, they are distinct as well."""
Found = npt.NDArray[np.bool_]
"""One answer a look-up."""

REMAINDER_BITS: Final = 16
"""Bits of a print that are kept for each block; the rest is the bucket that it is in."""
BUCKET_BITS_MIN: Final = 10
BUCKET_BITS_MAX: Final = 24
BITS_MIN: Final = REMAINDER_BITS + BUCKET_BITS_MIN
BITS_MAX: Final = REMAINDER_BITS + BUCKET_BITS_MAX
LOAD_MIN: Final = 6
"""Blocks a bucket below which offsets would take more than two thirds of a byte a block."""
LOAD_MAX: Final = 24
"""Blocks a bucket above which more than 24 look-ups in 65,536 would find what is not there."""
LOAD_FIRST: Final = 18
"""Blocks a bucket at most where bits are chosen anew: numbers may then fall by a third, or grow by one,
before they are again."""


def bits_for(blocks: int) -> int:
    """Bits of a print for so many blocks."""
    bits = BITS_MIN
    while bits < BITS_MAX and blocks > LOAD_FIRST << (bits - REMAINDER_BITS):
        bits += 1
    return bits


def still_fit(bits: int, blocks: int) -> bool:
    """Whether prints of so many bits still do for so many blocks."""
    buckets = 1 << (bits - REMAINDER_BITS)
    few = blocks < LOAD_MIN * buckets and bits > BITS_MIN
    many = blocks > LOAD_MAX * buckets and bits < BITS_MAX
    return not few and not many


def prints_of(hashes: Hashes, bits: int) -> Prints:
    """The prints of hashes, in their order."""
    prints: Prints = hashes >> np.uint64(64 - bits)
    return prints


def distinct(ordered: Prints) -> Prints:
    """Numbers in ascending order, each once."""
    if len(ordered) < 2:
        return ordered
    first = np.empty(len(ordered), dtype=np.bool_)
    first[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered if bool(first.all()) else ordered[first]


def merge(ordered: Prints, more: Prints) -> Prints:
    """Both in ascending order; equal ones stand side by side."""
    if not len(more):
        return ordered
    into = np.searchsorted(ordered, more) + np.arange(len(more))
    out = np.empty(len(ordered) + len(more), dtype=np.uint64)
    old = np.ones(len(out), dtype=np.bool_)
    old[into] = False
    out[into] = more
    out[old] = ordered
    return out
