"""The simulator's Mooncake keeps, evicts and leases blocks as the real one does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos.sim.mesh.store import ABSENT, BAD, LEASED, NO_SPACE, Pool, PoolNative
from tests.support.blocks import Memory, block_bytes
from tests.support.groups import RunningGroup, write_group
from tests.support.stores import native_of
from tests.support.wait import wait_for

pytestmark = pytest.mark.real
SIZE = 512 * 1024
POOL = 16 << 20
LEASE_MS = 1500
BLOCKS = 3 * POOL // SIZE


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGroup]:
    folder: Path = tmp_path_factory.mktemp("g")
    path = write_group(
        folder, "east", master={"lease_ttl_ms": LEASE_MS}, stores={"count": 1, "dram": POOL}
    )
    with RunningGroup(path) as running:
        yield running


@pytest.fixture(params=["simulated", "real"])
def native(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "simulated":
        yield PoolNative(Pool(POOL, LEASE_MS / 1000, time.monotonic))
        return
    running: RunningGroup = request.getfixturevalue("group")
    real = native_of(running.config.master_address)
    yield real
    real.close()


@pytest.fixture
def memory(native: Any) -> Iterator[Memory]:
    place = Memory(1, SIZE)
    assert native.register(place.ptrs[0], SIZE) == 0
    yield place
    native.unregister(place.ptrs[0])


def put(native: Any, memory: Memory, key: str) -> int:
    memory.fill([key])
    (code,) = native.put([key], memory.ptrs, memory.sizes, None)
    return int(code)


def get(native: Any, memory: Memory, key: str) -> int:
    (code,) = native.get([key], memory.ptrs, memory.sizes)
    return int(code)


def test_a_block_that_was_put_is_not_leased(native: Any, memory: Memory) -> None:
    assert put(native, memory, "l-put") == 0
    assert native.remove(["l-put"], False) == [0]


def test_a_read_leases_a_block_for_its_time(native: Any, memory: Memory) -> None:
    assert put(native, memory, "l-get") == 0
    assert get(native, memory, "l-get") == SIZE
    assert native.remove(["l-get"], False) == [LEASED]
    wait_for(lambda: native.remove(["l-get"], False) == [0], 5, "the end of the lease")
    assert get(native, memory, "l-get") == ABSENT


def test_the_question_whether_it_exists_leases_it_too(native: Any, memory: Memory) -> None:
    assert put(native, memory, "l-exists") == 0
    assert native.exists(["l-exists"]) == [1]
    assert native.remove(["l-exists"], False) == [LEASED]
    assert native.remove(["l-exists"], True) == [0], "by force"
    assert native.exists(["l-exists"]) == [0]


def test_a_key_that_is_gone_can_be_put_anew(native: Any, memory: Memory) -> None:
    assert put(native, memory, "anew") == 0
    assert native.remove(["anew"], False) == [0]
    memory.fill(["anew-other"])
    assert native.put(["anew"], memory.ptrs, memory.sizes, None) == [0]
    assert get(native, memory, "anew") == SIZE
    assert memory.place(0) == block_bytes("anew-other", SIZE)
    assert native.remove(["anew"], True) == [0]


def test_what_has_no_key_or_no_bytes_is_refused(native: Any, memory: Memory) -> None:
    assert native.put([""], memory.ptrs, memory.sizes, None) == [BAD]
    assert native.put(["no-bytes"], memory.ptrs, [0], None) == [BAD]


def test_a_full_pool_evicts_what_is_not_leased(native: Any, memory: Memory) -> None:
    keys = [f"full-{n}" for n in range(BLOCKS)]
    kept = keys[:3]
    codes = set()
    for key in keys:
        deadline = time.monotonic() + 10
        while (code := put(native, memory, key)) == NO_SPACE and time.monotonic() < deadline:
            codes.add(code)
            time.sleep(0.01)  # eviction is beside all calls
        codes.add(code)
        assert code == 0, "there is room once something is evicted"
        for leased in kept:
            if key in kept[: kept.index(leased)]:
                continue  # not put yet
            assert get(native, memory, leased) == SIZE, "under lease all the while"
    assert codes <= {0, NO_SPACE}
    there = [key for key in keys if native.exists([key]) == [1]]
    assert len(there) * SIZE <= POOL
    assert set(kept) <= set(there)
    assert keys[-1] in there
    gone = [key for key in keys if key not in there]
    assert gone
    # Near the order of their last use: what went is older than what is here, but for a few.
    middle = len(gone) + len(kept)
    early = [key for key in there if keys.index(key) < middle - 4 and key not in kept]
    assert len(early) <= len(there) // 4
    for key in there:
        native.remove([key], True)
