"""A place whose `[master] address` is another group's, as real processes: it neither follows nor leads."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from federation.pool import LOOK_S
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


def problems(federation: Federation) -> list[str]:
    return list(federation.status(WRONG).get("problems", []))
