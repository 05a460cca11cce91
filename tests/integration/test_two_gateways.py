"""A group with two gateways, as real processes: whichever leads, its blocks are found, and a term ends alone.

The tests go on where the one before them ended; the group's master is in its first place, which survives.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from federation.status import NOT_GREETED
from tests.support.federation import Federation, read, write
from tests.support.groups import moonmesh
from tests.support.timing import Timed
from tests.support.wait import wait_for

pytestmark = pytest.mark.real

FIRST, SECOND = "east", "east-2"
LEASE_S = 2.0


class East(Federation):
    """Group east with a second place, and its peer west; an engine at each of the three gateways."""

    def __enter__(self) -> East:
        super().__enter__()
        self.engines = {name: self.store(name) for name in (FIRST, SECOND, "west")}
        return self

    def role(self, place: str) -> str:
        return str(self.status(place).get("leading", {}).get("role", "gone"))

    def leader(self) -> str:
        """The one place that leads."""

        def one() -> str | None:
            leaders = [place for place in (FIRST, SECOND) if self.role(place) == "leader"]
            return leaders[0] if len(leaders) == 1 else None

        return wait_for(one, 15, "one gateway to lead") or ""

    def follower(self) -> str:
        """The other one, once it has a copy of all that the leader has."""
        place = SECOND if self.leader() == FIRST else FIRST
        wait_for(lambda: self.following(place).get("complete"), 15, f"{place} to follow")
        return place

    def following(self, place: str) -> dict[str, Any]:
        return dict(self.status(place).get("leading", {}).get("following") or {})

    def held(self, place: str) -> int:
        return int(self.status(place)["holdings"]["blocks"])

    def pulls(self, place: str, keys: list[str]) -> None:
        """An engine at a place reads a chain that only the other group has, as soon as that is known."""

        def came() -> bool:
            return read(self.engines[place], keys, deadline_ms=2000) == ["peer"] * len(keys)

        wait_for(came, 20, f"{place} to read {keys}: {self._dump(place)}")

    def epoch_at_west(self) -> int:
        """East's, as west knows it; nothing of it may ever be doubted."""
        east = self.peer("west", "east")
        assert east["quarantine"] is None, east["quarantine"]
        assert east["rejected"] == {}, "a statement of an older term was heard after a newer one"
        return int(str(east["version"]).partition(".")[0])


@pytest.fixture(scope="module")
def east(tmp_path_factory: pytest.TempPathFactory) -> Iterator[East]:
    with East(
        tmp_path_factory.mktemp("two"),
        dram="32 MiB",
        gateway={"engines_tcp": True},  # a follower comes by mTLS, as from another host
        places={SECOND: "east"},
        own={"east": {"coordination": {"backend": "etcd"}}, SECOND: {"stores": {"count": 0}}},
    ) as made:
        yield made


def keys_of(what: str, count: int = 4) -> list[str]:
    return [f"{what}/{index}" for index in range(count)]


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
    group = east.groups[SECOND]
    host = [psutil.Process(group.pid("supervisor")), psutil.Process(group.pid("gateway"))]
    host += host[1].children(recursive=True)
    with Timed() as timed:
        for process in host:
            os.kill(process.pid, signal.SIGKILL)
        wait_for(lambda: east.role(FIRST) == "leader", 10, "the first place to lead")
    print(f"another leads {timed.elapsed:.2f} s after the kill")
    timed.check(LEASE_S + 2, "the takeover")
    wait_for(lambda: east.epoch_at_west() == epoch + 1, 5, "west to hear it")
    east.pulls("west", keys_of("before the end"))
    write(east.engines[FIRST], keys_of("after the end"))
    east.pulls("west", keys_of("after the end"))
    local = read(east.engines[SECOND], keys_of("after the end"), deadline_ms=1000)
    assert local == ["local"] * 4, "engines of the dead gateway read what the group has"
