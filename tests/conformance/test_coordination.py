"""Whatever coordinates a group, the same holds: on real processes that are killed, frozen and robbed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.coordination import NAMES, Members, Process
from tests.support.wait import wait_for

pytestmark = pytest.mark.real

LEASE_MS = {"file": 2000, "etcd": 2000, "raft": 1000}
FAILOVER_S = {"file": 1.5, "etcd": 2.0 + 2.0, "raft": 3.0}
"""From the kill of a leader until another leads. etcd: its lease + 2 s."""


@pytest.fixture(scope="module", params=["file", "etcd", "raft"])
def group(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Members]:
    """One group a backend, for the whole story: what one test leaves is where the next one begins."""
    backend = request.param
    names = NAMES if backend == "raft" else NAMES[:2]
    folder = tmp_path_factory.mktemp(backend)
    with Members(folder, backend, LEASE_MS[backend], names) as members:
        yield members


def writes(process: Process, more: int = 5) -> None:
    """Wait until it has written a few more values."""
    enough = len(process.all("put")) + more
    wait_for(lambda: len(process.all("put")) >= enough, 10, f"{process.name} to write")


def test_one_leads_and_writes(group: Members) -> None:
    leader = group.leader()
    assert leader.last_epoch() == 1
    writes(leader)


def test_a_killed_leader_is_replaced(group: Members) -> None:
    leader = group.leader()
    epoch = group.epoch()
    leader.kill()
    died = max(each["at"] for each in leader.events)
    other = group.leader(above=epoch)
    assert other.name != leader.name
    assert other.all("leads")[-1]["at"] - died <= FAILOVER_S[group.backend]
    writes(other)
    group.start(leader.name)


def test_a_frozen_leader_is_fenced(group: Members) -> None:
    """Thawed past its lease, it knows before it does anything; and its writes are refused in any case."""
    leader = group.leader()
    epoch = group.epoch()
    writes(leader)
    leader.signal(signal.SIGSTOP)
    if group.backend == "file":  # nobody leads beside it, so it still leads
        leader.signal(signal.SIGCONT)
        writes(leader)
        return
    other = group.leader(above=epoch)
    writes(other)
    leader.tell("stale")
    leader.signal(signal.SIGCONT)
    wait_for(lambda: leader.all("stale"), 10, "the put of a term that is over")
    assert [each["outcome"] for each in leader.all("stale")] == ["fenced"]
    wait_for(lambda: leader.all("over"), 10, "it to know")


def test_who_resigns_is_replaced_at_once(group: Members) -> None:
    leader = group.leader()
    epoch = group.epoch()
    leader.tell("resign")
    began = leader.all("valid")[-1]["at"]
    other = group.leader(above=epoch)
    assert other.all("leads")[-1]["at"] - began < 1.5
    writes(other)


def test_above_what_peers_remember(group: Members) -> None:
    leader = group.leader()
    floor = group.epoch() + 1000
    leader.tell(f"above {floor}")
    wait_for(lambda: leader.last_epoch() == floor + 1, 5, "a higher epoch")
    writes(leader)


def test_coordination_is_killed_and_comes_back(group: Members) -> None:
    """Watchers lose nothing of it."""
    leader = group.leader()
    watcher = leader if group.backend == "file" else group.another(leader)
    watcher.tell("watch n/")
    wait_for(lambda: watcher.all("listed"), 5, "a listing")
    first = watcher.all("listed")[0]["at"]
    writes(leader, 300)
    if group.etcd is not None:
        for _ in range(2):
            group.etcd.kill()
            group.etcd.start()
            writes(group.leader(), 300)
    wait_for(lambda: len(watcher.all("changed")) > 300, 10, "changes")
    group.leader().tell("idle")
    enough = group.settled_puts()
    told = {each["value"] for each in watcher.all("changed")}
    puts = {each["value"] for each in enough if each["at"] > first}
    wait_for(lambda: puts <= {e["value"] for e in watcher.all("changed")}, 10, "every change")
    assert len(watcher.all("listed")) == 1, "it was listed again: what was in between is not known"
    values = [each["value"] for each in watcher.all("changed")]
    assert len(told) >= 300
    assert values == sorted(values, key=lambda v: (int(v.split(":")[0]), int(v.split(":")[2])))


def test_a_restart_of_all(group: Members) -> None:
    epoch = group.epoch()
    last = group.events("put")[-1]
    for process in group.members.values():
        process.kill()
    if group.etcd is not None:
        group.etcd.kill()
        group.etcd.start()
    for name in group.names:
        group.start(name, "--idle")
    leader = group.leader(above=epoch)
    leader.tell(f"get n/{last['value'].split(':')[1]}")
    (got,) = wait_for(lambda: leader.all("got"), 5, "a value")
    assert got["value"] == last["value"], "an acknowledged put was lost"


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
    for before, after in zip(order, order[1:], strict=False):
        assert max(spoke[before]) < min(spoke[after]), f"epochs {before} and {after} overlap"
