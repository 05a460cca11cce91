from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation.bench.trace import TraceRequest
from federation.bench.workload import BlockBytes, make_workload

TRACE = [TraceRequest(i * 10.0, 512, 1, (i % 7, 100 + i, 200 + i)) for i in range(200)]


def test_due_times_keys_and_counts() -> None:
    made = make_workload(
        TRACE, groups=2, block_bytes=64, rate=50.0, seed=1, placement="first-block"
    )
    assert [r.due_s for r in made.requests[:3]] == [0.0, 0.02, 0.04]
    assert made.requests[8].keys == ("1", "108", "208")
    assert (made.blocks, made.unique_blocks, made.longest_chain) == (600, 307, 3)


def test_without_a_rate_nothing_has_a_due_time() -> None:
    made = make_workload(TRACE, groups=2, block_bytes=64, rate=None, seed=1, placement="random")
    assert {r.due_s for r in made.requests} == {None}


def test_random_placement_hangs_on_the_seed_alone() -> None:
    def groups(seed: int) -> list[int]:
        made = make_workload(
            TRACE, groups=3, block_bytes=64, rate=None, seed=seed, placement="random"
        )
        return [r.group for r in made.requests]

    assert groups(1) == groups(1)
    assert groups(1) != groups(2)
    assert min(groups(1).count(g) for g in range(3)) > 40


def test_first_block_placement_keeps_prompts_that_begin_alike_together() -> None:
    made = make_workload(
        TRACE, groups=3, block_bytes=64, rate=None, seed=1, placement="first-block"
    )
    by_head: dict[str, set[int]] = {}
    for request in made.requests:
        by_head.setdefault(request.keys[0], set()).add(request.group)
    assert all(len(groups) == 1 for groups in by_head.values())


@given(size=st.integers(1, 100), keys=st.lists(st.text(max_size=8), min_size=2, unique=True))
def test_blocks_are_reproducible_and_differ(size: int, keys: list[str]) -> None:
    rows = np.zeros((len(keys), size), np.uint8)
    BlockBytes(b"one", size).fill(keys, rows)
    again = np.zeros_like(rows)
    BlockBytes(b"one", size).fill(list(reversed(keys)), again)
    assert np.array_equal(rows, again[::-1])
    if size >= 16:
        assert len({row.tobytes() for row in rows}) == len(keys)
        other = np.zeros_like(rows)
        BlockBytes(b"two", size).fill(keys, other)
        assert not any(np.array_equal(a, b) for a, b in zip(rows, other, strict=True))


@pytest.mark.parametrize("size", [8192, 13])
def test_every_wrong_byte_is_counted(size: int) -> None:
    blocks, keys = BlockBytes(b"n", size), ["a", "b", "c"]
    rows = np.zeros((3, size), np.uint8)
    blocks.fill(keys, rows)
    assert blocks.wrong_bytes(keys, rows) == 0
    assert blocks.wrong_bytes([], rows[:0]) == 0
    rows[1, 5] ^= 1
    rows[2, size - 1] ^= 128
    assert blocks.wrong_bytes(keys, rows) == 2
    blocks.fill(keys, rows)
    assert blocks.wrong_bytes(["a", "c", "b"], rows) > size


def test_a_block_shifted_by_a_word_is_wrong() -> None:
    blocks = BlockBytes(b"n", 8192)
    rows = np.zeros((1, 8192), np.uint8)
    blocks.fill(["a"], rows)
    assert blocks.wrong_bytes(["a"], np.roll(rows, 8, axis=1)) > 4000


def test_a_block_has_a_byte() -> None:
    with pytest.raises(ValueError, match="at least one byte"):
        BlockBytes(b"n", 0)
