"""The fake Mooncake of the unit tests, and the simulator's, answer as the real one does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos.sim.mesh.store import Pool, PoolNative
from local_group.native import StoreClosed
from tests.support.blocks import Memory, block_bytes
from tests.support.fake_native import FakeNative
from tests.support.groups import RunningGroup, write_group
from tests.support.stores import native_of

pytestmark = pytest.mark.real
SIZE = 8192


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGroup]:
    folder: Path = tmp_path_factory.mktemp("g")
    with RunningGroup(write_group(folder, "east")) as running:
        yield running


@pytest.fixture(params=["fake", "simulated", "real"])
def native(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "fake":
        yield FakeNative()
        return
    if request.param == "simulated":
        yield PoolNative(Pool(64 << 20, 10.0, time.monotonic))
        return
    running: RunningGroup = request.getfixturevalue("group")
    real = native_of(running.config.master_address)
    yield real
    real.close()


def test_blocks_come_back_and_misses_are_told_per_key(native: Any) -> None:
    source, target = Memory(2, SIZE), Memory(3, SIZE)
    source.fill(["c-a", "c-b"])
    assert native.register(source.ptrs[0], 2 * SIZE) == 0
    assert native.put(["c-a", "c-b"], source.ptrs, source.sizes, None) == [0, 0]
    results = native.get(["c-a", "c-none", "c-b"], target.ptrs, target.sizes)
    assert results == [SIZE, -704, SIZE]
    assert target.place(0) == block_bytes("c-a", SIZE)
    assert target.place(1) == bytes(SIZE)
    assert target.place(2) == block_bytes("c-b", SIZE)
    assert native.exists(["c-a", "c-none"]) == [1, 0]
    assert native.unregister(source.ptrs[0]) == 0


def test_a_second_put_keeps_the_first_value(native: Any) -> None:
    memory = Memory(1, SIZE)
    memory.fill(["d-first"])
    assert native.put(["d"], memory.ptrs, memory.sizes, None) == [0]
    memory.fill(["d-second"])
    assert native.put(["d"], memory.ptrs, memory.sizes, None) == [0]
    assert native.get(["d"], memory.ptrs, memory.sizes) == [SIZE]
    assert memory.place(0) == block_bytes("d-first", SIZE)


def test_a_block_that_is_asked_for_twice_comes_to_both_places(native: Any) -> None:
    source, target = Memory(1, SIZE), Memory(4, SIZE)
    source.fill(["t"])
    assert native.put(["t"], source.ptrs, source.sizes, None) == [0]
    keys = ["t", "t-none", "t", "t"]
    sizes = [SIZE, SIZE, SIZE - 1, SIZE]
    assert native.get(keys, target.ptrs, sizes) == [SIZE, -704, -600, SIZE]
    assert target.place(0) == target.place(3) == block_bytes("t", SIZE)
    assert target.place(1) == target.place(2) == bytes(SIZE)


def test_a_block_that_is_put_twice_at_once_is_the_first_of_them(native: Any) -> None:
    memory = Memory(3, SIZE)
    memory.fill(["w-first", "w-other", "w-second"])
    assert native.put(["w", "w-none", "w"], memory.ptrs, memory.sizes, None) == [0, 0, 0]
    memory.fill_byte(0)
    assert native.get(["w"], memory.ptrs[:1], [SIZE]) == [SIZE]
    assert memory.place(0) == block_bytes("w-first", SIZE)


def test_sizes(native: Any) -> None:
    memory = Memory(2, SIZE)
    assert native.put(["s"], memory.ptrs[:1], [100], None) == [0]
    assert native.get(["s"], memory.ptrs[:1], [SIZE]) == [100], "the block's own size"
    assert native.get(["s"], memory.ptrs[:1], [99]) == [-600], "too short for the block"
    assert native.get(["s"], memory.ptrs, [SIZE, SIZE]) == [-600], "lists of unequal length"


def test_remove(native: Any) -> None:
    memory = Memory(1, SIZE)
    assert native.put(["r"], memory.ptrs, memory.sizes, None) == [0]
    assert native.remove(["r", "r-none"], False) == [0, -704]
    assert native.exists(["r"]) == [0]


def test_after_close_it_raises(native: Any) -> None:
    native.close()
    with pytest.raises(StoreClosed):
        native.exists(["a"])
