"""A group with two gateways, as real processes: whichever leads, its blocks are found, and a term ends alone.

The tests go on where the one before them ended; the group's master is in its first place, which survives.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from federation.status import NOT_GREETED
from tests.support.federation import read, write
from tests.support.groups import moonmesh
from tests.support.hosts import PROBLEM, Hosts
from tests.support.places import East, keys_of
from tests.support.timing import Timed
from tests.support.wait import wait_for

pytestmark = pytest.mark.real

FIRST, SECOND = "east", "east-2"
LEASE_S = 2.0


@pytest.fixture(scope="module", params=["one host", "namespaces"])
def east(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[East]:
    if request.param == "one host":
        with places_of_east(tmp_path_factory.mktemp("two"), None) as made:
            yield made
        return
    if PROBLEM is not None:
        pytest.skip(PROBLEM[0])
    folder = tmp_path_factory.mktemp("two")
    with Hosts((FIRST, SECOND, "west"), folder) as hosts, places_of_east(folder, hosts) as made:
        yield made


def places_of_east(folder: Path, hosts: Hosts | None) -> East:
    return East(
        folder,
        dram="32 MiB",
        gateway={"engines_tcp": True},  # a follower comes by mTLS, as from another host
        places={SECOND: "east"},
        own={"east": {"coordination": {"backend": "etcd"}}, SECOND: {"stores": {"count": 0}}},
        hosts=hosts,
    )


def test_both_gateways_serve_their_engines(east: East) -> None:
    leader, follower = east.leader(), east.follower()
    assert east.peer(follower, "west")["reason"] in (NOT_GREETED, ""), "it waits for no connection"
    assert east.peer(leader, "west")["reason"] == ""
    write(east.engines["west"], keys_of("of west"))
    write(east.engines[leader], keys_of("by the leader"))
    write(east.engines[follower], keys_of("by the follower"))
    east.pulls(follower, keys_of("of west"))
    east.pulls("west", keys_of("by the leader"))
    east.pulls("west", keys_of("by the follower"))
    assert east.peer(follower, "west")["reason"] == "", "it has pulled from it"
    said = moonmesh("status", "-c", east.groups[follower].path).stdout
    assert "follows " in said, said


def test_a_frozen_leader_is_replaced_and_follows_when_it_is_thawed(east: East) -> None:
    before, after = east.leader(), east.follower()
    held = east.held(after)  # some of it pulled there, for its own engines
    write(east.engines[before], keys_of("before the freeze"))
    wait_for(lambda: east.held(after) == held + 4, 10, "the copy")
    epoch = east.epoch_at_west()
    east.groups[before].kill("gateway", signal.SIGSTOP)
    try:
        wait_for(lambda: east.epoch_at_west() > epoch, 15, "west to hear the next term")
        assert east.role(after) == "leader"
        write(east.engines[after], keys_of("after the freeze"))
        east.pulls("west", keys_of("before the freeze"))
        east.pulls("west", keys_of("after the freeze"))
        local = read(east.engines[before], keys_of("by the leader"), deadline_ms=1000)
        assert local == ["local"] * 4, "its engines read what the group has"
    finally:
        east.groups[before].kill("gateway", signal.SIGCONT)
    wait_for(lambda: east.following(before).get("complete"), 10, "the thawed one to follow")
    wait_for(lambda: east.held(after) == east.held(before), 10, "the copy")
    assert east.role(before) == "follower"
    assert east.epoch_at_west() == epoch + 1
    assert east.status(before)["epoch"] == epoch + 1


def test_a_place_that_dies_is_replaced_within_a_lease_and_two_seconds(east: East) -> None:
    if east.leader() == FIRST:  # which has the master
        east.groups[FIRST].kill("gateway")
        wait_for(lambda: east.leader() == SECOND, 10, "the second place to lead")
    assert east.follower() == FIRST
    held = east.held(FIRST)
    write(east.engines[SECOND], keys_of("before the end"))
    wait_for(lambda: east.held(FIRST) == held + 4, 10, "the copy")
    epoch = east.epoch_at_west()
    with Timed() as timed:
        east.lose_host(SECOND)
        wait_for(lambda: east.role(FIRST) == "leader", 10, "the first place to lead")
    print(f"another leads {timed.elapsed:.2f} s after the kill")
    timed.check(LEASE_S + 2, "the takeover")
    wait_for(lambda: east.epoch_at_west() == epoch + 1, 5, "west to hear it")
    east.pulls("west", keys_of("before the end"))
    write(east.engines[FIRST], keys_of("after the end"))
    east.pulls("west", keys_of("after the end"))
    local = read(east.engines[SECOND], keys_of("after the end"), deadline_ms=1000)
    assert local == ["local"] * 4, "engines of the dead gateway read what the group has"
