"""`down` and `status` find a group whatever has become of its files, its supervisor or its start."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from federation.config import load_group
from local_group.lifecycle import stop_group
from local_group.state import GroupLock, clear_state, leftovers, read_state, write_state
from tests.support.groups import RunningGroup, command, environment, moonmesh, write_group
from tests.support.wait import wait_for

pytestmark = pytest.mark.real


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A group.toml whose group is gone after the test, whatever the test did."""
    made = write_group(tmp_path / "g")
    yield made
    moonmesh("down", "-c", made)
    assert not leftovers(load_group(made).data_dir, None)


def nothing_runs(path: Path) -> bool:
    config = load_group(path)
    return not leftovers(config.data_dir, read_state(config.state_file))


@pytest.mark.parametrize("wrong", ["nonsense = 1\n", "this is no TOML\n"])
def test_a_file_that_became_bad_does_not_hide_its_group(path: Path, wrong: str) -> None:
    group = RunningGroup(path)
    group.up()
    good = path.read_text()
    path.write_text(good + wrong)
    try:
        assert moonmesh("up", "-c", path).returncode == 2
        status = moonmesh("status", "-c", path)
        assert status.returncode == 1
        assert status.stderr.startswith("warning: ")
        assert re.search(rf"master\s+ready\s+{group.pid('master')}\s", status.stdout)
        assert f"{path} cannot be used now" in status.stdout.replace("\n", "")
        down = moonmesh("down", "-c", path)
    finally:
        path.write_text(good)
    assert down.returncode == 0
    assert down.stderr.startswith("warning: ")
    assert 'group "east" is stopped' in down.stdout
    assert nothing_runs(path)


def test_down_ends_a_frozen_supervisor(path: Path) -> None:
    group = RunningGroup(path)
    group.up()
    group.kill("supervisor", signal.SIGSTOP)
    frozen = moonmesh("status", "-c", path)
    assert frozen.returncode == 1
    assert "the supervisor is frozen" in frozen.stdout
    began = time.monotonic()
    result = moonmesh("down", "-c", path)
    assert time.monotonic() - began < 10
    assert 'group "east" is stopped' in result.stdout
    assert "killed" not in result.stdout  # it heard, and did it itself
    assert nothing_runs(path)


def test_down_during_the_start_of_a_detached_up(path: Path) -> None:
    config = load_group(path)
    lock = GroupLock(config.lock_file)
    up = subprocess.Popen(
        command("up", "--detach", "-c", path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    # From the first moment of the supervisor on, which has not come to the lock by itself yet.
    wait_for(psutil.Process(up.pid).children, 20, "the supervisor", every=0.001)
    assert stop_group(config).ran
    _, said = up.communicate(timeout=60)
    assert up.returncode == 1
    assert 'group "east" was stopped while it started' in said
    assert lock.holder() is None
    assert nothing_runs(path)


def test_a_supervisor_without_a_state_is_seen(path: Path) -> None:
    """As on a full disk, if the state had no room yet."""
    group = RunningGroup(path)
    group.up()
    pid = group.pid("supervisor")
    clear_state(group.config.state_file)
    status = moonmesh("status", "-c", path)
    assert status.returncode == 1
    assert f'group "east" is unknown (supervisor pid {pid})' in status.stdout
    assert "is the disk full?" in status.stdout
    assert 'group "east" is stopped' in moonmesh("down", "-c", path).stdout
    assert nothing_runs(path)


def test_an_old_state_is_told_from_a_dead_child(path: Path) -> None:
    with RunningGroup(path) as group:
        state = read_state(group.config.state_file)
        assert state is not None
        process = state.children["store-0"].process
        assert process is not None
        old = process.model_copy(update={"start_ticks": process.start_ticks - 1})
        state.children["store-0"].process = old
        write_state(group.config.state_file, state)
        status = moonmesh("status", "-c", path)
        assert status.returncode == 1
        assert f"store-0 runs, as pid {process.pid}" in status.stdout
        assert "is the disk full?" in status.stdout


_DEAF = """
import signal, sys
from pathlib import Path
from local_group.state import GroupLock
signal.signal(signal.SIGTERM, signal.SIG_IGN)
lock = GroupLock(Path(sys.argv[1]))
assert lock.acquire()
print("deaf", flush=True)
sys.stdin.read()
"""


def test_a_deaf_supervisor_is_told_of_and_killed(path: Path) -> None:
    config = load_group(path)
    with subprocess.Popen(
        [sys.executable, "-c", _DEAF, str(config.lock_file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    ) as deaf:
        assert deaf.stdout is not None
        assert deaf.stdout.readline() == b"deaf\n"
        said: list[str] = []
        assert stop_group(config, heard=1.5, say=said.append).ran
        assert deaf.wait(10) == -signal.SIGKILL
    assert said == [
        f"waiting for the supervisor (pid {deaf.pid}) to stop the group",
        f"the supervisor (pid {deaf.pid}) does not stop: it is killed, with all of the group",
    ]
