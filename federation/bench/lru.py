"""What one pool with plain LRU eviction would do with a trace: a yardstick that is computed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence


def lru_hits(chains: Iterable[Sequence[Hashable]], capacity: int) -> tuple[int, int]:
    """Replay chains, one after the other, against one LRU pool of `capacity` blocks.

    A request hits the leading run of its chain that is in the pool; then its whole chain is in the
    pool and newest, its first block newest of all (a chain without its head is worth nothing).

    Returns:
        (blocks hit, blocks asked for).

    Raises:
        ValueError: for a negative capacity.
    """
    if capacity < 0:
        raise ValueError(f"capacity is negative: {capacity}")
    pool: OrderedDict[Hashable, None] = OrderedDict()
    hits = asked = 0
    for chain in chains:
        asked += len(chain)
        for block in chain:
            if block not in pool:
                break
            hits += 1
        for block in reversed(chain):
            pool[block] = None
            pool.move_to_end(block)
        while len(pool) > capacity:
            pool.popitem(last=False)
    return hits, asked


def lru_hit_rate(chains: Iterable[Sequence[Hashable]], capacity: int) -> float:
    """`lru_hits` as a fraction of the blocks asked for; 0 for no chains."""
    hits, asked = lru_hits(chains, capacity)
    return hits / asked if asked else 0.0
