"""What a replay sends: chains, groups and due times from a trace; and the bytes of every block."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from federation.bench.trace import TraceRequest

Placement = Literal["random", "first-block"]
WORD = 8
"""Block bytes are made in words of 64 bits."""


class Request(NamedTuple):
    """One request of a replay."""

    number: int
    """Place in the trace, from 0."""
    due_s: float | None
    """Seconds after the start; None: as soon as a place is free."""
    group: int
    keys: tuple[str, ...]
    """Its prefix chain."""


@dataclass(frozen=True)
class Workload:
    """All requests of a replay, the same in every mode."""

    requests: tuple[Request, ...]
    groups: int
    block_bytes: int

    @property
    def blocks(self) -> int:
        """Blocks asked for, repeats counted."""
        return sum(len(r.keys) for r in self.requests)

    @property
    def unique_blocks(self) -> int:
        return len({key for r in self.requests for key in r.keys})

    @property
    def longest_chain(self) -> int:
        return max((len(r.keys) for r in self.requests), default=0)


def make_workload(
    trace: Iterable[TraceRequest],
    *,
    groups: int,
    block_bytes: int,
    rate: float | None,
    seed: int,
    placement: Placement,
) -> Workload:
    """Give every request of a trace a group and a due time.

    Args:
        rate: requests a second, evenly; None: as fast as they are answered.
        seed: of the placement `random`.
        placement: `random`, or `first-block`: prompts that begin alike go to one group.
    """
    rng = random.Random(seed)
    made: list[Request] = []
    for number, request in enumerate(trace):
        if placement == "random":
            group = rng.randrange(groups)
        else:
            group = xxhash.xxh3_64_intdigest(str(request.blocks[0]).encode()) % groups
        due = None if rate is None else number / rate
        made.append(Request(number, due, group, tuple(str(b) for b in request.blocks)))
    return Workload(tuple(made), groups, block_bytes)


class BlockBytes:
    """The bytes of a block, derived from (namespace, key) alone and kept nowhere.

    Word i of a block is `(table[i] ^ a) * b` with a and odd b from xxh3-128 of namespace and key,
    and a fixed random table: every block differs from every other and from its own shifts, and
    making them runs at memory speed, so that checking every byte does not slow what is measured.

    Args:
        namespace: any bytes that name it, e.g. the fingerprint.
        size: bytes a block.
    """

    def __init__(self, namespace: bytes, size: int) -> None:
        if size < 1:
            raise ValueError(f"a block has at least one byte, not {size}")
        self.size = size
        self._namespace = namespace
        words = -(-size // WORD)
        self._table = np.random.Generator(np.random.PCG64(0x6D6D)).integers(
            0, 1 << 64, words, dtype=np.uint64
        )

    def fill(self, keys: Sequence[str], out: npt.NDArray[np.uint8]) -> None:
        """Write the blocks of `keys` into `out`, shape (len(keys), size), C-contiguous."""
        seeds, factors = self._seeds(keys)
        whole = self.size - self.size % WORD
        if whole == self.size:
            words = out.view(np.uint64)
            np.bitwise_xor(self._table, seeds[:, None], out=words)
            np.multiply(words, factors[:, None], out=words)
        else:
            words = (self._table ^ seeds[:, None]) * factors[:, None]
            out[:] = words.view(np.uint8)[:, : self.size]

    def wrong_bytes(self, keys: Sequence[str], got: npt.NDArray[np.uint8]) -> int:
        """How many bytes of `got`, shape (len(keys), size), are not what they must be."""
        if not keys:
            return 0
        expected = np.empty((len(keys), self.size), np.uint8)
        self.fill(keys, expected)
        if self.size % WORD == 0:
            same = np.array_equal(expected.view(np.uint64), got.view(np.uint64))
        else:
            same = np.array_equal(expected, got)
        return 0 if same else int(np.count_nonzero(expected != got))

    def _seeds(self, keys: Sequence[str]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        raw = b"".join(xxhash.xxh3_128_digest(self._namespace + key.encode()) for key in keys)
        pairs = np.frombuffer(raw, np.uint64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1] | np.uint64(1)
