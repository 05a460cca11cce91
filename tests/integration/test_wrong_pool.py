"""A place whose `[master] address` is another group's, as real processes: it neither follows nor leads."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from federation.pool import LOOK_S, POOL_KEY
from tests.support.federation import Federation, read, write
from tests.support.groups import RunningGroup, moonmesh
from tests.support.wait import wait_for

pytestmark = pytest.mark.real

RIGHT, WRONG = "east", "east-2"


@pytest.fixture
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    made = Federation(
        tmp_path_factory.mktemp("pool"),
        dram="32 MiB",
        places={WRONG: "east"},
        own={WRONG: {"stores": {"count": 0}}, "east": {"coordination": {"backend": "etcd"}}},
        absent=(WRONG,),
    )
    path = made.folder / WRONG / "group.toml"
    text = path.read_text()
    ours, theirs = (f"127.0.0.1:{made.ports[name]}" for name in ("east", "west"))
    assert text.count(f'address = "{ours}"') == 1
    path.write_text(text.replace(f'address = "{ours}"', f'address = "{theirs}"'))
    wrong = RunningGroup(path)
    with made:
        made.groups[WRONG] = wrong
        try:
            yield made
        finally:
            wrong.down()


def leading(federation: Federation, place: str) -> dict[str, Any]:
    return dict(federation.status(place).get("leading") or {})


def freeze_all(group: RunningGroup) -> list[psutil.Process]:
    """Its gateway and its supervisor, as if the host were gone."""
    frozen = [psutil.Process(group.pid("supervisor")), psutil.Process(group.pid("gateway"))]
    for process in frozen:
        os.kill(process.pid, signal.SIGSTOP)
    return frozen


def test_a_place_with_the_master_of_another_group_follows_and_leads_nothing(
    federation: Federation,
) -> None:
    ours, theirs = (f"127.0.0.1:{federation.ports[name]}" for name in ("east", "west"))
    engine, peer = federation.store(RIGHT), federation.store("west")
    keys = [f"own/{index}" for index in range(4)]
    write(engine, keys)
    up = moonmesh("up", "--detach", "-c", federation.groups[WRONG].path)
    assert up.returncode == 1, up.stdout
    told = " ".join(up.stderr.split())
    assert (
        'group "east" runs here, and peers hear nothing of it: this gateway neither leads' in told
    )

    def refused() -> bool:
        return any("neither leads nor follows" in said for said in problems(federation))

    wait_for(refused, 15, "the place to notice")
    (said,) = [each for each in problems(federation) if "neither leads nor follows" in each]
    assert f"the master of this place, {theirs}, has another pool" in said
    assert f"which leads with the master {ours}: no store is in both" in said
    assert "correct [master] address" in said
    shown = moonmesh("status", "-c", federation.groups[WRONG].path)
    assert shown.returncode == 1
    assert " ".join(shown.stdout.split()).count("neither leads nor follows: the master of") == 1
    assert leading(federation, RIGHT)["followers"] == []
    epoch = federation.status(RIGHT)["epoch"]
    # The leader is gone for longer than a lease: this place could, and must not.
    frozen = freeze_all(federation.groups[RIGHT])
    try:
        wait_for(lambda: leading(federation, WRONG).get("leader") is None, 15, "the lease to end")
        wait_for(
            lambda: any("nobody is known to lead" in said for said in problems(federation)),
            20,
            f"ten seconds, in which it has looked {10 / LOOK_S:.0f} times",
        )
        assert leading(federation, WRONG)["role"] == "follower"
    finally:
        for process in frozen:
            os.kill(process.pid, signal.SIGCONT)
    wait_for(
        lambda: leading(federation, RIGHT).get("role") == "leader", 15, "the right one to lead"
    )
    assert federation.status(RIGHT)["epoch"] == epoch + 1, "nobody else has led"
    wait_for(
        lambda: read(peer, keys, deadline_ms=2000) == ["peer"] * 4, 20, "its blocks to be found"
    )


def test_a_place_that_starts_while_all_others_are_gone_leads_with_another_pool_only_if_told_to(
    federation: Federation,
) -> None:
    ours, theirs = (f"127.0.0.1:{federation.ports[name]}" for name in ("east", "west"))
    wrong = federation.groups[WRONG]
    write(federation.store("west"), [f"theirs/{index}" for index in range(4)])
    wait_for(lambda: pool_published(federation), 15, "the pool to be published")
    epoch = federation.status(RIGHT)["epoch"]
    frozen = freeze_all(federation.groups[RIGHT])
    thawed = False
    try:
        up = moonmesh("up", "--detach", "-c", wrong.path)
        # 0 where it is up before the lease of the one that is frozen has ended.
        assert up.returncode in (0, 1), up.stdout
        wait_for(lambda: leading(federation, WRONG).get("leader") is None, 15, "the lease to end")
        # For longer than it was left to others before: it may never.
        wait_for(
            lambda: any("nobody is known to lead" in said for said in problems(federation)),
            25,
            "ten seconds without a leader",
        )
        shown = moonmesh("status", "-c", wrong.path)
        assert shown.returncode == 1
        (said,) = [each for each in problems(federation) if "neither leads nor follows" in each]
        assert f"the master of this place, {theirs}, has another pool" in said
        assert f"that this group had last, with the master {ours}" in said
        assert "say so: moonmesh new-pool" in said
        assert leading(federation, WRONG)["role"] == "follower"
        assert federation.status(WRONG)["holdings"]["blocks"] == 0, "what west's master lists"
        told = moonmesh("new-pool", "-c", wrong.path)
        assert told.returncode == 0, told.stderr
        assert told.stdout.strip() == f'group "east" has the pool of the master {theirs}'
        assert leading(federation, WRONG)["role"] == "leader"
        assert federation.status(WRONG)["epoch"] == epoch + 1
        for process in frozen:
            os.kill(process.pid, signal.SIGCONT)
        thawed = True
        wait_for(
            lambda: "has another pool" in str(leading(federation, RIGHT).get("barred")),
            20,
            "the right one to see another pool",
        )
        refused = moonmesh("new-pool", "-c", federation.groups[RIGHT].path)
        assert refused.returncode == 1
        assert "leads this group, so its pool is the group's: stop it first" in " ".join(
            refused.stderr.split()
        )
        wrong.down()
        wait_for(
            lambda: moonmesh("new-pool", "-c", federation.groups[RIGHT].path).returncode == 0,
            20,
            "the right one to be told to lead again",
            every=1.0,
        )
        assert leading(federation, RIGHT)["role"] == "leader"
    finally:
        for process in () if thawed else frozen:
            os.kill(process.pid, signal.SIGCONT)


def pool_published(federation: Federation) -> bool:
    return POOL_KEY in leading(federation, RIGHT)["told"]


def problems(federation: Federation) -> list[str]:
    return list(federation.status(WRONG).get("problems", []))
