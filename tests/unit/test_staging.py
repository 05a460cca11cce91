"""Staging: bounded, and a block that was promised stays for its time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federation.transfer.staging import StagedBlock, Staging

FP = b"f" * 16


def block(key: str, size: int, landed_at: float) -> StagedBlock:
    return StagedBlock(
        FP, key, memoryview(bytearray(size)), b"d" * 16, "west", 1, landed_at, landed_at
    )


def test_a_block_stays_for_its_time_even_when_room_is_wanted() -> None:
    staging = Staging(bytes_max=10, hold=5.0)
    assert staging.reserve(8, 0.0)
    staging.land(block("a", 6, 0.0), reserved=8)
    assert (staging.bytes, staging.reserved) == (6, 0)
    assert not staging.reserve(5, 4.9)
    assert staging.refused == 1
    assert staging.get(FP, "a") is not None
    assert staging.reserve(5, 5.0)
    assert staging.get(FP, "a") is None


def test_a_block_that_an_engine_is_told_of_stays_for_its_time_from_then_on() -> None:
    staging = Staging(bytes_max=10, hold=5.0)
    for key in "ab":
        assert staging.reserve(5, 0.0)
        staging.land(block(key, 5, 0.0), reserved=5)
    assert staging.promise(FP, "a", 4.0)
    assert staging.expire(5.0) == 1
    assert staging.get(FP, "b") is None
    assert not staging.promise(FP, "b", 5.0), "what is gone is not promised"
    assert staging.expire(8.9) == 0
    assert not staging.reserve(6, 8.9)
    assert staging.expire(9.0) == 1
    assert (len(staging), staging.bytes) == (0, 0)


def test_exactly_the_limit_fits() -> None:
    staging = Staging(bytes_max=10, hold=5.0)
    assert staging.reserve(10, 0.0)
    assert not staging.reserve(1, 0.0)
    staging.release(10)
    assert staging.reserve(1, 0.0)


def test_expire_drops_what_is_old_and_nothing_else() -> None:
    staging = Staging(bytes_max=10, hold=5.0)
    for key, at in (("a", 0.0), ("b", 3.0)):
        assert staging.reserve(2, at)
        staging.land(block(key, 2, at), 2)
    assert staging.expire(6.0) == 1
    assert [staging.get(FP, key) is not None for key in "ab"] == [False, True]


def test_a_block_larger_than_its_reservation_is_a_defect() -> None:
    staging = Staging(bytes_max=10, hold=5.0)
    assert staging.reserve(2, 0.0)
    with pytest.raises(AssertionError):
        staging.land(block("a", 3, 0.0), 2)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6), st.floats(0, 3)), max_size=60))
def test_the_books_always_balance(steps: list[tuple[int, int, float]]) -> None:
    staging, now = Staging(bytes_max=12, hold=4.0), 0.0
    for key, size, passed in steps:
        now += passed
        if staging.reserve(size, now):
            staging.land(block(str(key), size, now), size)
        assert staging.reserved == 0
        assert staging.bytes <= 12
        held = [staging.get(FP, str(k)) for k in range(6)]
        assert staging.bytes == sum(len(b.data) for b in held if b)
