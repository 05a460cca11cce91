"""`moonmesh up`, `down` and `status` on real Mooncake, and what can go wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from federation.config import load_group
from local_group.admin import SyncAdminClient
from local_group.child import ChildSpec
from local_group.config import GroupConfig
from local_group.lifecycle import mooncake_stages, run_group
from local_group.ports import PortUse, check_free
from local_group.process_errors import ChildDied, GroupError, NotReady
from local_group.state import leftovers, read_state
from tests.support.groups import RunningGroup, command, environment, moonmesh, write_group
from tests.support.wait import wait_for

pytestmark = pytest.mark.real


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A group.toml whose group is gone after the test, whatever the test did."""
    made = write_group(tmp_path / "g")
    yield made
    moonmesh("down", "-c", made)
    left = leftovers(load_group(made).data_dir, None)
    assert not left


def nothing_runs(path: Path) -> bool:
    config = load_group(path)
    return not leftovers(config.data_dir, read_state(config.state_file))


def test_up_status_down(tmp_path: Path) -> None:
    # 32 MiB and one byte: what the config says is what Mooncake gets, to the byte.
    path = write_group(tmp_path, stores={"count": 2, "dram": (32 << 20) + 1})
    with RunningGroup(path) as group:
        with SyncAdminClient(group.config.admin_url) as admin:
            assert admin.health().service_ready
            segments = admin.segments()
            assert [segment.size for segment in segments] == [(32 << 20) + 1] * 2
            assert all(segment.ok for segment in segments)
            assert admin.query(["nothing", "a,b"]) == {"a,b": None}
        status = moonmesh("status", "-c", path)
        assert status.returncode == 0, status.stderr
        assert 'group "east" is ready' in status.stdout
        assert re.search(rf"master\s+ready\s+{group.pid('master')}\s", status.stdout)
        answer = json.loads(moonmesh("status", "-c", path, "--json").stdout)
        assert answer["ready"] is True
        assert [child["name"] for child in answer["children"]] == ["master", "store-0", "store-1"]
        assert all(child["rss_bytes"] > 0 for child in answer["children"])
        assert answer["gateway"] is None
        again = moonmesh("up", "-c", path, "--detach")
        assert again.returncode == 1
        assert f'group "east" is already running (pid {group.pid("supervisor")})' in again.stderr
        assert "moonmesh down" in again.stderr
        assert not nothing_runs(path)
    assert nothing_runs(path)
    assert read_state(group.config.state_file) is None
    stopped = moonmesh("down", "-c", path)
    assert stopped.returncode == 0
    assert 'group "east" was not running' in stopped.stdout
    status = moonmesh("status", "-c", path)
    assert status.returncode == 1
    assert 'group "east" is stopped' in status.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_in_the_foreground_stops_all_on_a_signal(path: Path, number: int) -> None:
    process = subprocess.Popen(
        command("up", "-c", path), stdout=subprocess.PIPE, text=True, env=environment()
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "is ready" in line:
            break
    assert any(re.fullmatch(r"store-0: ready after \d+ ms\n", line) for line in lines), lines
    assert not nothing_runs(path)
    process.send_signal(number)
    assert process.wait(20) == 0
    process.stdout.close()
    assert nothing_runs(path)


def test_a_signal_during_the_start_leaves_nothing(path: Path) -> None:
    process = subprocess.Popen(
        command("up", "-c", path), stdout=subprocess.PIPE, text=True, env=environment()
    )
    assert process.stdout is not None
    assert "master: starting" in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    process.stdout.close()
    assert nothing_runs(path)


def test_a_port_in_use(path: Path) -> None:
    base = load_group(path).port_base
    for offset, purpose in (
        (0, "the master's RPC"),
        (1, "the master's admin HTTP"),
        (10, "store-0"),
    ):
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", base + offset))
            taken.listen(1)
            result = moonmesh("up", "-c", path, "--detach")
        assert result.returncode == 1
        said = f"error MM203: port {base + offset}, needed for {purpose}, is in use by"
        assert said in result.stderr
        assert f"(pid {os.getpid()})" in result.stderr
        assert "another port_base" in result.stderr
        assert "Traceback" not in result.stderr
        assert nothing_runs(path)
    assert moonmesh("up", "-c", path, "--detach").returncode == 0


def test_a_host_that_is_not_ours(tmp_path: Path) -> None:
    path = write_group(tmp_path, host="192.0.2.7")
    result = moonmesh("up", "-c", path)
    assert result.returncode == 1
    assert "192.0.2.7, needed for the master's RPC, is not an address of this machine" in (
        result.stderr
    )
    with pytest.raises(GroupError, match="is not an address of this machine"):
        check_free([PortUse("no-such-host.invalid", 24000, "a test")])


def test_kill_9_of_up_then_down(path: Path) -> None:
    group = RunningGroup(path)
    group.up()
    supervisor = group.kill("supervisor", signal.SIGKILL)
    wait_for(lambda: not os.path.exists(f"/proc/{supervisor}/fd"), 10, "the supervisor's end")
    status = moonmesh("status", "-c", path)
    assert status.returncode == 1
    result = moonmesh("down", "-c", path)
    assert result.returncode == 0
    assert nothing_runs(path)


def test_kill_9_of_up_then_up(path: Path) -> None:
    group = RunningGroup(path)
    group.up()
    before = group.processes()
    group.kill("supervisor", signal.SIGKILL)
    group.up()
    assert not any(process.alive() for process in before.values())
    assert set(group.processes()) == {"master", "store-0"}
    assert moonmesh("status", "-c", path).returncode == 0


def test_orphans_are_killed_though_the_state_is_lost(path: Path) -> None:
    """What death by PDEATHSIG misses, here a daemon with the environment of a child."""
    config = load_group(path)
    orphan = subprocess.Popen(
        ["sleep", "1000"],
        start_new_session=True,
        env=environment({"MOONMESH_DATA_DIR": str(config.data_dir), "MOONMESH_CHILD": "gateway"}),
    )
    try:
        status = moonmesh("status", "-c", path)
        assert f"gateway (pid {orphan.pid}) was left behind" in status.stdout
        result = moonmesh("down", "-c", path)
        assert result.returncode == 0
        assert f"killed what an earlier run had left: gateway (pid {orphan.pid})" in result.stdout
        assert orphan.wait(5) == -signal.SIGKILL
    finally:
        orphan.kill()
        orphan.wait()


def test_killed_parts_are_restarted(tmp_path: Path) -> None:
    with RunningGroup(write_group(tmp_path)) as group:

        def back(child: str) -> bool:
            return group.restarts(child) == 1 and group.phase(child) == "ready"

        for child in ("master", "store-0"):
            before = group.kill(child)
            wait_for(partial(back, child), 20, f"{child} to be started again")
            assert group.pid(child) != before
        wait_for(
            lambda: moonmesh("status", "-c", group.path).returncode == 0, 20, "a healthy group"
        )
        report = json.loads(moonmesh("status", "-c", group.path, "--json").stdout)
        master = report["children"][0]
        assert (master["restarts"], master["last_exit"]) == (1, "was killed by SIGKILL")


def test_the_gateway_is_a_part_of_the_group(tmp_path: Path) -> None:
    path = write_group(tmp_path, gateway={"enabled": True})
    with RunningGroup(path) as group:
        assert group.config.gateway_socket.stat().st_mode & 0o170000 == 0o140000
        assert group.config.run_dir.stat().st_mode & 0o777 == 0o700
        report = json.loads(moonmesh("status", "-c", path, "--json").stdout)
        assert report["ready"] is True
        assert report["gateway"]["group"] == "east"
        group.kill("gateway", signal.SIGSTOP)
        frozen = moonmesh("status", "-c", path)
        assert frozen.returncode == 1
        assert "the gateway does not answer: DEADLINE_EXCEEDED" in frozen.stdout
        group.kill("gateway")
        wait_for(lambda: group.restarts("gateway") == 1, 60, "a restart of the gateway")
        wait_for(lambda: group.phase("gateway") == "ready", 60, "the gateway to be ready")
        assert moonmesh("status", "-c", path).returncode == 0
    assert nothing_runs(path)


def test_a_frozen_master_is_seen(tmp_path: Path) -> None:
    with RunningGroup(write_group(tmp_path)) as group:
        group.kill("master", signal.SIGSTOP)
        status = moonmesh("status", "-c", group.path)
        assert status.returncode == 1
        assert 'group "east" is degraded' in status.stdout
        assert "master is frozen" in status.stdout
        assert "did not answer within" in status.stdout
        group.kill("master", signal.SIGCONT)
        wait_for(
            lambda: moonmesh("status", "-c", group.path).returncode == 0, 20, "a healthy group"
        )


def test_down_ends_a_frozen_group(path: Path) -> None:
    group = RunningGroup(path)
    group.up()
    for child in ("store-0", "master"):
        group.kill(child, signal.SIGSTOP)
    began = time.monotonic()
    assert moonmesh("down", "-c", path).returncode == 0
    # Far from a SIGTERM that nobody hears and the grace that follows it, for two stages.
    assert time.monotonic() - began < 15
    assert nothing_runs(path)


async def test_a_master_that_refuses_a_flag(path: Path) -> None:
    config = load_group(path)

    def bad_flag(config: GroupConfig) -> Sequence[Sequence[ChildSpec]]:
        (master,), stores = mooncake_stages(config)
        return [
            [ChildSpec("master", (*master.argv, "--nope=1"), master.ready, master.env)],
            stores,
        ]

    with pytest.raises(ChildDied, match="master exited with code 1 while it started") as caught:
        await run_group(config, mooncake=bad_flag)
    assert "unknown command line flag 'nope'" in str(caught.value)
    assert str(config.log_dir / "master.log") in str(caught.value)
    assert nothing_runs(path)


@pytest.mark.parametrize("offset", [0, 1])
async def test_a_port_that_is_taken_after_the_check(path: Path, offset: int) -> None:
    config = load_group(path)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

        def take(config: GroupConfig) -> Sequence[Sequence[ChildSpec]]:
            taken.bind((config.host, config.port_base + offset))
            taken.listen(1)
            return mooncake_stages(config)

        with pytest.raises(ChildDied, match="master exited with code 1 while it started"):
            await run_group(config, mooncake=take)
    assert nothing_runs(path)


async def test_a_store_that_never_comes(path: Path) -> None:
    config = load_group(path)

    def other_master(config: GroupConfig) -> Sequence[Sequence[ChildSpec]]:
        masters, (store,) = mooncake_stages(config)
        return [masters, [ChildSpec("store-0", ("/bin/sleep", "1000"), store.ready)]]

    with pytest.raises(NotReady, match="store-0 is not ready in time: still waiting for the store"):
        await run_group(config, timeout=2, mooncake=other_master)
    assert nothing_runs(path)


def test_detach_tells_the_supervisor_s_error_once(path: Path) -> None:
    config = load_group(path)
    config.data_dir.mkdir(mode=0o700)
    (config.data_dir / "run").write_text("in the way")
    result = moonmesh("up", "-c", path, "--detach")
    (config.data_dir / "run").unlink()
    assert result.returncode == 1
    assert result.stderr.count("error MM201") == 1
    assert "the data directory cannot be made: File exists" in result.stderr


def test_a_bad_file_gets_a_sentence_and_exit_2(tmp_path: Path) -> None:
    path = write_group(tmp_path, port_base=24000, nonsense=1, data_dir=7)
    for verb in ("up", "down", "status"):
        result = moonmesh(verb, "-c", path)
        assert result.returncode == 2
        assert result.stderr.startswith("error MM101: ")
        assert "nonsense: is not a known key" in result.stderr.replace("\n", " ")
        assert "Traceback" not in result.stderr
