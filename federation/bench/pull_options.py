"""What a bench of pulls is asked to measure, and the bounds of the groups that it measures on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from federation.bench.pull_shaped import ShapedBench

GIB: Final = 1 << 30
LEASE_MS: Final = 500
LIMITS: Final = {
    "staging_bytes": 2 * GIB,
    "staging_hold_ms": LEASE_MS,
    "peer_leased_bytes_min": GIB,
    "foreign_percent": 100,
}
"""A pull is staged whole, and gone when the next one comes; a pool as small as this one may be read whole,
and be full of copies."""

Say = Callable[[str], None]
Part = Literal["loopback", "shaped", "workers"]
"""Of the bench."""


@dataclass(frozen=True)
class PullBench:
    """What to measure.

    Attributes:
        rounds: pulls of all blocks, and of each part.
        blocks, block_bytes: of one pull.
        singles: pulls of a single block, for the time to the first.
        port_base: free ports are looked for from here.
        only: one part; None: all.
        shaped: of what is measured over a link.
    """

    rounds: int = 8
    blocks: int = 256
    block_bytes: int = 1 << 20
    singles: int = 3000
    port_base: int = 7600
    only: Part | None = None
    shaped: ShapedBench = field(default_factory=ShapedBench)

    @property
    def pull_bytes(self) -> int:
        return self.blocks * self.block_bytes
