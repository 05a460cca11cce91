from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation.bench.lru import lru_hit_rate, lru_hits
from federation.bench.trace import packaged_trace, read_trace


def test_only_the_leading_run_counts() -> None:
    # The second prompt has 2 and 3 in the pool, but not its head.
    assert lru_hits([(1, 2, 3), (9, 2, 3), (1, 2, 7)], 100) == (2, 9)


def test_the_least_recently_used_goes_first_and_a_head_last() -> None:
    assert lru_hits([(1, 2), (3, 4), (1, 2)], 4) == (2, 6)
    assert lru_hits([(1, 2), (3, 4), (1, 2)], 3) == (1, 6)  # 2 went, its head stayed
    assert lru_hits([(1, 2), (3, 4), (1, 2)], 2) == (0, 6)


def test_no_capacity_no_hits_and_no_chains_no_rate() -> None:
    assert lru_hits([(1,), (1,)], 0) == (0, 2)
    assert lru_hit_rate([], 10) == 0.0
    with pytest.raises(ValueError, match="negative"):
        lru_hits([], -1)


def test_the_packaged_trace_with_room_for_all() -> None:
    chains = [r.blocks for r in read_trace(packaged_trace())]
    assert lru_hit_rate(chains, 1 << 20) == pytest.approx(0.1836, abs=1e-4)


@given(
    st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=8, unique=True), max_size=20),
    st.integers(0, 25),
)
def test_more_room_never_hits_less(chains: list[list[int]], capacity: int) -> None:
    # LRU is a stack algorithm: the smaller pool's blocks are all in the larger one.
    smaller, asked = lru_hits(chains, capacity)
    larger, _ = lru_hits(chains, capacity + 1)
    assert smaller <= larger <= asked
