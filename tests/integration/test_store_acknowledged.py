"""Mooncake acknowledges a put that it has not done, and Moonmesh does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from federation.codes import OK, RPC_TIMEOUT
from federation.identity import Fingerprint
from federation.timeouts import Deadline
from federation.writes import Writes
from local_group.outcome import Status
from local_group.store import StoreClient
from tests.support.blocks import Memory
from tests.support.frozen import (
    DEADLINE,
    MOONCAKE_ENDS,
    SIZE,
    clients,
    drained,
    frozen,
    statuses,
    store_group,
)
from tests.support.groups import RunningGroup
from tests.support.wait import wait_for

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGroup]:
    with store_group(tmp_path_factory.mktemp("g")) as running:
        yield running


@pytest.fixture
def connect(group: RunningGroup) -> Iterator[Callable[..., StoreClient]]:
    with clients(group) as build:
        yield build


def test_a_put_that_finds_the_place_of_one_that_never_ended_is_not_acknowledged(
    group: RunningGroup, connect: Callable[..., StoreClient]
) -> None:
    """Mooncake answers 0 for a key whose first put was given up while the master stood still."""
    other, plain, engine = connect(), connect(), connect()
    keys = [f"shadowed-{i}" for i in range(4)]
    memory = Memory(len(keys), SIZE)
    memory.fill(keys)
    with frozen(group, "master") as thaw:
        given_up = other.put_from(keys, memory.ptrs, memory.sizes, DEADLINE)
        engine.exists(["felt"], DEADLINE)
        wait_for(lambda: drained(other) and drained(engine), MOONCAKE_ENDS, "both to give up")
        thaw()
    assert statuses(given_up) == {Status.TIMEOUT}
    wait_for(lambda: statuses(plain.exists(["felt"], 1.0)) == {Status.MISS}, 30, "the master")

    # Premise: what the defect is, and that a client that has felt nothing cannot tell.
    assert statuses(plain.put_from(keys, memory.ptrs, memory.sizes, 20.0)) == {Status.STORED}
    assert statuses(plain.exists(keys, 20.0)) == {Status.MISS}

    wait_for(lambda: statuses(engine.exists(["felt"], 1.0)) == {Status.MISS}, 30, "the engine's")
    writes = Writes(engine, None, Fingerprint(bytes(16)), list)
    assert writes.put(keys, memory.ptrs, memory.sizes, None, None, 0) == [RPC_TIMEOUT] * len(keys)
    fresh = [f"fresh-{i}" for i in range(4)]
    memory.fill(fresh)
    assert writes.put(fresh, memory.ptrs, memory.sizes, Deadline(20.0), None, 0) == [OK] * 4
