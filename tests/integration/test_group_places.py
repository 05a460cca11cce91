"""A group of two places: the first runs the master, the second brings a store into its pool."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_group.admin import SyncAdminClient
from local_group.lifecycle import mooncake_stages
from tests.support.groups import (
    RunningGroup,
    command,
    environment,
    free_port_base,
    moonmesh,
    write_group,
)

pytestmark = pytest.mark.real

STORE = {"count": 1, "dram": "32 MiB"}


@pytest.fixture
def first(tmp_path: Path) -> Iterator[RunningGroup]:
    """The place with the master, not started; gone after the test."""
    group = RunningGroup(write_group(tmp_path / "first", stores=STORE))
    yield group
    group.down()


def segments(group: RunningGroup) -> int:
    """Stores in the pool of the group's master."""
    with SyncAdminClient(group.config.admin_url) as admin:
        return sum(segment.ok for segment in admin.segments())


def test_a_second_place_waits_for_the_master_joins_its_pool_and_leaves_it(
    tmp_path: Path, first: RunningGroup
) -> None:
    address = first.config.master_address
    path = write_group(tmp_path / "second", stores=STORE, master={"address": address})
    second = RunningGroup(path)
    up = subprocess.Popen(
        command("up", "-c", path), stdout=subprocess.PIPE, text=True, env=environment()
    )
    try:
        assert up.stdout is not None
        line = up.stdout.readline()
        assert line.startswith(f"master: waiting, at {address}, for its admin HTTP to answer"), line
        assert second.processes() == {}
        status = moonmesh("status", "-c", path)
        assert 'group "east" is starting' in status.stdout
        assert f"master is waiting: at {address}, for its admin HTTP to answer" in status.stdout
        first.up()
        lines = []
        for line in up.stdout:
            lines.append(line)
            if "is ready" in line:
                break
        assert any(
            re.match(r"master: ready after \d+ ms, at .*, elsewhere\n", line) for line in lines
        )
        assert f"master {address} (elsewhere)" in lines[-1]
        assert segments(first) == 2
        answer = json.loads(moonmesh("status", "-c", path, "--json").stdout)
        assert (answer["phase"], answer["problems"]) == ("ready", [])
        assert [child["name"] for child in answer["children"]] == ["store-0"]
        master = first.pid("master")
        down = moonmesh("down", "-c", path)
        assert (down.returncode, up.wait(20)) == (0, 0), down.stderr
    finally:
        second.down()
        up.kill()
        up.wait()
        up.stdout.close()
    assert second.processes() == {}
    assert first.pid("master") == master
    assert moonmesh("status", "-c", first.path).returncode == 0


@pytest.mark.parametrize("what", ["nobody", "another port"])
def test_a_master_that_is_not_there_is_told_with_what_to_do(
    tmp_path: Path, first: RunningGroup, what: str
) -> None:
    nowhere = f"127.0.0.1:{free_port_base()}"
    master: dict[str, object] = {"address": nowhere}
    awaited = "its admin HTTP to answer (http://"
    if what == "another port":
        first.up()
        master["admin_port"] = first.config.ports.master_admin
        awaited = "its RPC to accept connections"
    path = write_group(tmp_path / "second", stores=STORE, master=master)
    result = moonmesh("up", "-c", path, "--detach", "--timeout", "2")
    assert result.returncode == 1
    assert f"MM206: {nowhere}: the master, which runs elsewhere, was not ready within 2 s" in (
        result.stderr
    )
    assert awaited in result.stderr
    assert "start the place of the group that runs it" in result.stderr
    assert RunningGroup(path).processes() == {}


def test_a_place_without_stores_starts_nothing_of_mooncake(tmp_path: Path) -> None:
    path = write_group(tmp_path, stores={"count": 0}, master={"address": "127.0.0.1:1024"})
    assert mooncake_stages(RunningGroup(path).config) == []
