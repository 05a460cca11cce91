"""What breaks in one group is not felt by the readers of another."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator

import pytest

from federation.client import FederatedStore
from tests.support.clock import Punctuality
from tests.support.federation import Federation, read, write
from tests.support.wait import wait_for

pytestmark = [pytest.mark.real, pytest.mark.alone]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with Federation(tmp_path_factory.mktemp("pair")) as federation:
        yield federation


@pytest.fixture
def federation(pair: Federation, request: pytest.FixtureRequest) -> Federation:
    """East and west, when they are well again after the test before: blocks of east reach west."""
    pair.wait_until_alive()
    east, west = pair.engine("east"), pair.engine("west", deadline_ms=1000)
    write(east, [f"well {request.node.name}"])
    wait_for(lambda: read(west, [f"well {request.node.name}"]) != ["miss"], 30, "a block to cross")
    return pair


def write_seen(federation: Federation, east: FederatedStore, keys: list[str]) -> None:
    """Writes blocks in east, and waits until west knows of all."""
    held = federation.status("east")["holdings"]["blocks"]
    write(east, keys)
    federation.wait_for_view("west", "east", held + len(keys))


def test_kill_9_of_a_gateway_is_not_an_error_for_its_engines(federation: Federation) -> None:
    east, west = federation.engine("east"), federation.store("west", deadline_ms=2000)
    local = [f"killed-local-{i}" for i in range(10)]
    remote = [f"killed-remote-{i}" for i in range(10)]
    write(west, local)
    write_seen(federation, east, remote)
    assert read(west, remote[:2]) == ["peer"] * 2

    old = federation.groups["west"].kill("gateway")
    # No error reaches the reader, and local hits go on at once.
    tiers = read(west, [*local, *remote[5:]])
    assert tiers[:10] == ["local"] * 10
    assert west.is_exist("absent") == 0
    write_alone = [f"killed-alone-{i}" for i in range(4)]
    assert west.put(write_alone[0], b"x") == 0

    group = federation.groups["west"]
    wait_for(
        lambda: group.phase("gateway") == "ready" and group.pid("gateway") != old,
        30,
        "the gateway to be started again",
    )
    # Peer hits return by themselves, to the store that was open all the while.
    wait_for(lambda: set(read(west, remote[5:])) <= {"peer", "local"}, 20, "peer hits to return")
    assert federation.counter("west", "moonmesh_peer_blocks_total") > 0


def test_a_frozen_gateway_costs_the_deadline_and_then_nothing(federation: Federation) -> None:
    west = federation.store("west", deadline_ms=300)
    local = [f"left-{i}" for i in range(4)]
    write(west, local)
    federation.groups["west"].kill("gateway", signal.SIGSTOP)
    with Punctuality() as punctual:
        for _ in range(12):
            tiers = read(west, [*local, "absent"], timed=punctual)
            assert tiers == ["local"] * 4 + ["miss"]
    punctual.check(0.3)
    # By now it is left out: a miss is answered without asking.
    wait_for(lambda: not west.stats()["gateway"].startswith("fed"), 5, "it to be left out")
    assert west.stats()["gateway"].startswith("breaker")
    federation.groups["west"].kill("gateway", signal.SIGCONT)
    wait_for(lambda: west.stats()["gateway"] == "federated", 20, "the gateway to be taken back")


@pytest.mark.parametrize("child", ["master", "store-0"])
def test_a_frozen_mooncake_of_one_group_does_not_reach_the_readers_of_another(
    federation: Federation, child: str
) -> None:
    deadline = 0.2
    east = federation.engine("east")
    west = federation.store("west", deadline_ms=int(1000 * deadline))
    local = [f"{child}-local-{i}" for i in range(8)]
    remote = [f"{child}-remote-{i}" for i in range(400)]
    write(west, local)
    write_seen(federation, east, remote)
    assert read(west, remote[:1]) == ["peer"]

    federation.groups["east"].kill(child, signal.SIGSTOP)
    with Punctuality() as punctual:
        for start in range(10, 110, 10):
            tiers = read(west, [*local, *remote[start : start + 10]], timed=punctual)
            assert tiers[:8] == ["local"] * 8
    punctual.check(deadline)
    federation.groups["east"].kill(child, signal.SIGCONT)
    wait_for(
        lambda: "peer" in read(west, remote[200:210]) or "local" in read(west, remote[200:210]),
        30,
        f"peer hits to return: {federation.status('west')['peers']}",
    )


def test_a_frozen_local_mooncake_keeps_the_deadline_of_every_call(federation: Federation) -> None:
    west = federation.store("west", deadline_ms=200)
    keys = [f"key-{i}" for i in range(8)]
    write(west, keys)
    federation.groups["west"].kill("master", signal.SIGSTOP)
    with Punctuality() as punctual:
        for round_ in range(5):
            read(west, keys, timed=punctual)
            punctual.call(west.batch_is_exist, keys)
            punctual.call(west.put, f"new-{round_}", b"x" * 1000)
            punctual.call(west.get, keys[0])
    punctual.check(0.2)
    federation.groups["west"].kill("master", signal.SIGCONT)
    wait_for(lambda: read(west, keys) == ["local"] * 8, 30, "local hits to return")


def test_a_short_fault_of_a_peer_under_load_is_over_when_it_is_over(federation: Federation) -> None:
    """Many readers at once: the first who tries again must not be drowned by the others."""
    east = federation.engine("east")
    wests = [federation.store("west", deadline_ms=300) for _ in range(6)]
    keys = [f"load-{i}" for i in range(3000)]
    write_seen(federation, east, keys)
    stop = threading.Event()
    hits: deque[float] = deque()
    places = itertools.count()

    def reader(store: FederatedStore) -> None:
        while not stop.is_set():
            place = next(places)
            if place >= len(keys):
                return
            if read(store, [keys[place]]) == ["peer"]:
                hits.append(time.monotonic())
            stop.wait(0.03)

    threads = [threading.Thread(target=reader, args=(store,)) for store in wests]
    for thread in threads:
        thread.start()
    try:
        wait_for(lambda: len(hits) > 100, 20, "peer hits before the fault")
        federation.groups["east"].kill("gateway", signal.SIGSTOP)
        frozen_at = time.monotonic()
        wait_for(lambda: time.monotonic() - max(hits[-1], frozen_at) > 1.5, 10, "no more peer hits")
        federation.groups["east"].kill("gateway", signal.SIGCONT)
        thawed_at = time.monotonic()
        wait_for(
            lambda: sum(hit > thawed_at for hit in list(hits)) > 50,
            15,
            f"peer hits to return: {federation.status('west')['peers']}",
        )
    finally:
        stop.set()
        for thread in threads:
            thread.join()
