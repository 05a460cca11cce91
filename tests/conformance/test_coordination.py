"""Whatever coordinates a group, the same holds: on real processes that are killed, frozen and robbed."""

from __future__ import annotations

import itertools
import shutil
import signal
from collections.abc import Callable, Iterator

import pytest

from local_group.coordination.config import CoordinationConfig
from local_group.coordination.lease import clock
from tests.support.coordination import BACKENDS, NAMES, Members
from tests.support.wait import wait_for

pytestmark = [pytest.mark.real, pytest.mark.alone]

LEASE_S = CoordinationConfig().lease_ms / 1000
FAILOVER_S = {"file": 1.5, "etcd": LEASE_S + 2.0, "raft": 3.0}
"""From the kill of a leader until another leads, with the lease that a group has unless it says otherwise."""
KEYS_MAX = 64
"""The members' end of keys in these tests; 1,024 of them would take their time."""
AT_ONCE_S = 0.8
"""Less than any lease."""
EVENTS = {"file": 100, "etcd": 500, "raft": 100}
"""Written before, between and after the kills that a watch goes through."""


@pytest.fixture(scope="module", params=BACKENDS)
def group(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Members]:
    """One group a backend, for the whole story: what one test leaves is where the next one begins."""
    backend = request.param
    names = NAMES if backend == "raft" else NAMES[:2]
    folder = tmp_path_factory.mktemp(backend)
    with Members(folder, backend, names, [f"--keys={KEYS_MAX}"]) as members:
        yield members


def number(value: str) -> tuple[int, int]:
    """The epoch of a value, and which one of its writer it is. One that was not acknowledged may be there."""
    epoch, _, count = value.split(":")
    return int(epoch), int(count)


def test_one_leads_and_writes(group: Members) -> None:
    leader = group.leader()
    assert leader.last_epoch() == 1
    group.writes()


def test_a_killed_leader_is_replaced(
    group: Members, record_property: Callable[[str, object], None]
) -> None:
    leader = group.leader()
    epoch = group.epoch()
    leader.kill()
    died = max(each["at"] for each in leader.events)
    other = group.leader(above=epoch)
    assert other.name != leader.name
    took = other.all("leads")[-1]["at"] - died
    allowed = FAILOVER_S[group.backend]
    record_property("figure", f"failover, {group.backend}: {took:.2f} s (at most {allowed:g} s)")
    assert took <= allowed
    group.writes()
    group.start(leader.name)


def test_a_frozen_leader_is_fenced(group: Members) -> None:
    """Thawed past its lease, it knows before it does anything; and its writes are refused in any case."""
    leader = group.leader()
    epoch = group.epoch()
    group.writes()
    leader.signal(signal.SIGSTOP)
    if group.backend == "file":  # nobody leads beside it, so it still leads
        leader.signal(signal.SIGCONT)
        group.writes()
        return
    group.leader(above=epoch)
    group.writes()
    leader.tell("stale")
    leader.signal(signal.SIGCONT)
    wait_for(lambda: leader.all("stale"), 10, "the put of a term that is over")
    assert [each["outcome"] for each in leader.all("stale")] == ["fenced"]
    wait_for(lambda: leader.all("over"), 10, "it to know")


def test_who_resigns_is_replaced_at_once(group: Members) -> None:
    leader = group.leader()
    epoch = group.epoch()
    began = clock()
    leader.tell("resign")
    other = group.leader(above=epoch)
    assert other is not leader
    assert other.all("leads")[-1]["at"] - began < AT_ONCE_S
    group.writes()


def test_above_what_peers_remember(group: Members) -> None:
    leader = group.leader()
    floor = group.epoch() + 1000
    leader.tell(f"above {floor}")
    wait_for(lambda: leader.last_epoch() == floor + 1, 5, "a higher epoch")
    group.writes()


def test_a_watch_loses_nothing(group: Members) -> None:
    """Not even while etcd is killed, twice."""
    leader = group.leader()
    watcher = leader if group.backend == "file" else group.another(leader)
    watcher.tell("watch n/")
    wait_for(lambda: watcher.all("listed"), 5, "a listing")
    first = watcher.all("listed")[0]["at"]
    events = EVENTS[group.backend]
    group.writes(events, 20)
    for _ in range(2 if group.etcd is not None else 0):
        group.etcd_restarts()
        group.writes(events, 20)
    for process in group.members.values():
        process.tell("idle")
    puts = {each["value"] for each in group.settled_puts() if each["at"] > first}
    puts -= set(watcher.all("listed")[0]["values"].values())  # listed before its writer knew
    assert len(puts) >= events
    wait_for(lambda: puts <= {e["value"] for e in watcher.all("changed")}, 10, "every change")
    assert len(watcher.all("listed")) == 1, "it was listed again: what was in between is not known"
    numbers = [number(each["value"]) for each in watcher.all("changed")]
    assert numbers == sorted(numbers), "not in order"


@pytest.mark.parametrize("group", ["raft"], indirect=True)
def test_a_member_that_lost_its_disk_is_told_all(group: Members) -> None:
    """It gets everything back before it has a say; then the leader may die as well."""
    leader = group.leader()
    epoch = group.epoch()
    for process in group.members.values():
        process.tell("write")
    group.writes()
    robbed = group.another(leader)
    robbed.kill()
    shutil.rmtree(group.folder(robbed.name))
    again = group.start(robbed.name)
    joined = group.folder(robbed.name) / "joined"
    wait_for(joined.exists, 10, "it to have a past again")
    leader.kill()
    last = leader.all("put")[-1]["value"]
    group.start(leader.name)
    group.leader(above=epoch)
    again.tell(f"get n/{leader.name}")
    (got,) = wait_for(lambda: again.all("got"), 5, "a value")
    assert number(got["value"]) >= number(last), "an acknowledged put was lost"
    group.writes()


def test_a_restart_of_all(group: Members) -> None:
    epoch = group.epoch()
    last = group.events("put")[-1]
    for process in group.members.values():
        process.kill()
    group.etcd_restarts()
    for name in group.names:
        group.start(name, "--idle")
    leader = group.leader(above=epoch)
    leader.tell(f"get n/{last['value'].split(':')[1]}")
    (got,) = wait_for(lambda: leader.all("got"), 5, "a value")
    assert number(got["value"]) >= number(last["value"]), "an acknowledged put was lost"


def test_there_is_an_end_to_the_keys(group: Members) -> None:
    """Of new ones: those that are there are written as before."""
    leader = group.leader()
    leader.tell("fill")
    wait_for(lambda: leader.all("filled"), 30, "a configuration that is full")
    (full,) = leader.all("full")
    assert full["keys"] == KEYS_MAX - len(
        {each["value"].split(":")[1] for each in group.events("put")}
    )
    assert f"{KEYS_MAX} keys" in full["why"]
    leader.tell("get f/0")
    wait_for(lambda: leader.all("got")[-1]["value"] == "again", 5, "the value written last")


def test_all_in_all(group: Members) -> None:
    """Epochs rise, and no two terms were ever valid at once."""
    leads = group.events("leads")
    epochs = [each["epoch"] for each in leads]
    assert epochs == sorted(set(epochs))
    assert len(epochs) >= 4
    spoke: dict[int, list[float]] = {}
    for each in group.events("valid"):
        spoke.setdefault(each["epoch"], []).append(each["checked"])
    order = sorted(spoke)
    assert len(order) >= 4
    for before, after in itertools.pairwise(order):
        assert max(spoke[before]) < min(spoke[after]), f"epochs {before} and {after} overlap"
