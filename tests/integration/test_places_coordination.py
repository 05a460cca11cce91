"""Gateways of one group that coordinate by Raft, or by a file on one host, as real processes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.federation import read, write
from tests.support.groups import moonmesh, to_toml
from tests.support.places import East, keys_of
from tests.support.timing import Timed
from tests.support.wait import wait_for

pytestmark = [pytest.mark.real, pytest.mark.alone]

RAFT_OFFSET = 20
"""Of a member's port, from the port base of its place."""
RAFT_TAKEOVER_S = 3.0


def coordinate(east: East, place: str, table: dict[str, object]) -> None:
    """Gives a place its `[coordination]`, which was left empty."""
    path = east.folder / place / "group.toml"
    head, tail = path.read_text().split("[coordination]\n")
    path.write_text(f"{head}[coordination]\n{to_toml(table)}{tail}")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[East]:
    """Three places, each a member of Raft; the first has the master."""
    places = ("east", "east-2", "east-3")
    made = East(
        tmp_path_factory.mktemp("raft"),
        dram="32 MiB",
        places=dict.fromkeys(places[1:], "east"),
        own={
            place: {"coordination": {}, **({} if place == "east" else {"stores": {"count": 0}})}
            for place in places
        },
        together=True,
    )
    secret = made.folder / "raft.secret"
    secret.write_text("for this test alone\n")
    secret.chmod(0o600)
    members = {place: f"127.0.0.1:{made.ports[place] + RAFT_OFFSET}" for place in places}
    for place, own in members.items():
        table = {"raft_members": list(members.values()), "raft_self": own}
        coordinate(made, place, {"backend": "raft", "raft_secret": str(secret), **table})
    with made:
        yield made


def test_of_three_one_leads_and_two_have_a_copy(three: East) -> None:
    leader = three.leader()
    write(three.engines[leader], keys_of("by the leader"))
    for place in three.followers():
        write(three.engines[place], keys_of(f"at {place}"))
        three.pulls("west", keys_of(f"at {place}"))
    three.pulls("west", keys_of("by the leader"))


def test_a_leader_that_dies_is_replaced_within_three_seconds(three: East) -> None:
    if three.leader() == "east":  # which has the master
        three.groups["east"].kill("gateway")
        wait_for(lambda: three.leader() != "east", 15, "a further place to lead")
    leader, followers = three.leader(), three.followers()
    held = three.held(leader)
    write(three.engines[leader], keys_of("before the end"))
    for place in followers:
        wait_for(lambda p=place: three.held(p) == held + 4, 10, "the copy")  # type: ignore[misc]
    epoch = three.epoch_at_west()
    with Timed() as timed:
        three.lose_host(leader)
        after = three.leader(followers)
    print(f"another of three leads {timed.elapsed:.2f} s after the kill")
    timed.check(RAFT_TAKEOVER_S, "the takeover")
    wait_for(lambda: three.epoch_at_west() > epoch, 10, "west to hear it")
    three.pulls("west", keys_of("before the end"))
    write(three.engines[after], keys_of("after the end"))
    three.pulls("west", keys_of("after the end"))
    again = moonmesh("up", "--detach", "-c", three.groups[leader].path)
    assert again.returncode == 0, again.stderr
    assert sorted(three.followers()) == sorted({*three.own_places} - {after})


def test_a_member_without_the_others_is_not_led_and_up_says_so(three: East) -> None:
    leader, followers = three.leader(), three.followers()
    stopped = [place for place in (leader, *followers) if place != "east"]
    for place in stopped:
        three.groups[place].down()

    def alone() -> bool:
        said = three.status("east").get("leading", {})
        return said.get("role") == "follower" and said.get("leader") is None

    wait_for(alone, 15, "the last one to have no term, and to know of none")
    status = moonmesh("status", "-c", three.groups["east"].path)
    assert (status.returncode, "nobody is known to lead" in status.stdout) == (1, True), (
        status.stdout
    )
    for place in stopped:
        three.groups[place].up()
    assert len(three.followers()) == 2


@pytest.fixture
def two(tmp_path: Path) -> Iterator[East]:
    """Two places on one host, with one folder for who leads."""
    made = East(
        tmp_path,
        dram="32 MiB",
        places={"east-2": "east"},
        own={"east": {"coordination": {}}, "east-2": {"coordination": {}, "stores": {"count": 0}}},
    )
    for place in ("east", "east-2"):
        coordinate(made, place, {"backend": "file", "file_folder": str(tmp_path / "shared")})
    with made:
        yield made


def test_places_that_share_a_folder(two: East) -> None:
    assert two.leader() == "east", "it was there first"
    assert two.follower() == "east-2"
    write(two.engines["east-2"], keys_of("of the follower"))
    two.pulls("west", keys_of("of the follower"))
    write(two.engines["east-2"], keys_of("before the end"))
    wait_for(lambda: two.held("east") == 8, 10, "the leader to be told")
    epoch = two.epoch_at_west()
    with Timed() as timed:
        two.groups["east"].kill("gateway", signal.SIGKILL)
        wait_for(lambda: two.role("east-2") == "leader", 10, "the other one to lead")
    print(f"the other leads {timed.elapsed:.2f} s after the kill")
    timed.check(2.0, "the takeover")
    wait_for(lambda: two.epoch_at_west() == epoch + 1, 10, "west to hear it")
    two.pulls("west", keys_of("before the end"))
    assert two.follower() == "east", "started again, it follows"
    local = read(two.engines["east"], keys_of("of the follower"), deadline_ms=1000)
    assert local == ["local"] * 4
    write(two.engines["east"], keys_of("of the first, which follows"))
    two.pulls("west", keys_of("of the first, which follows"))
