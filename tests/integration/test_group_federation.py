"""What is wrong with the federation's part of a group does not stop its Mooncake."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_group.admin import SyncAdminClient
from local_group.state import leftovers
from tests.support.federation import Federation
from tests.support.groups import RunningGroup, command, environment, moonmesh
from tests.support.wait import wait_for

pytestmark = pytest.mark.real


@pytest.fixture
def group(tmp_path: Path) -> Iterator[RunningGroup]:
    """The group east of a federation, not started; nothing of it runs after the test."""
    Federation(tmp_path, absent=("east", "west"))
    made = RunningGroup(tmp_path / "east" / "group.toml")
    yield made
    made.down()


def serves(group: RunningGroup) -> bool:
    with SyncAdminClient(group.config.admin_url) as admin:
        return admin.health().service_ready and all(each.ok for each in admin.segments())


def recovers(group: RunningGroup) -> None:
    wait_for(lambda: group.phase("gateway") == "ready", 30, "the gateway to be ready")
    status = moonmesh("status", "-c", group.path)
    assert status.returncode == 0, status.stdout


def test_credentials_that_cannot_be_used(group: RunningGroup) -> None:
    key = group.path.parent / "credentials" / "key.pem"
    key.chmod(0o644)
    up = moonmesh("up", "--detach", "-c", group.path)
    assert up.returncode == 1
    assert "error MM205: gateway exited with code 1 while it started" in up.stderr
    assert "error MM301: " in up.stderr
    assert "key.pem can be read by others (mode 0644): chmod 600" in up.stderr
    assert 'group "east" runs without the federation: Mooncake is ready' in up.stdout
    assert "the gateway is tried again" in up.stdout
    assert serves(group)
    wait_for(lambda: group.restarts("gateway") >= 2, 20, "attempts to start it")
    status = moonmesh("status", "-c", group.path)
    assert status.returncode == 1
    assert 'group "east" is degraded' in status.stdout
    assert "error MM301: " in status.stdout
    assert group.restarts("master") == 0
    key.chmod(0o600)
    recovers(group)


def test_a_port_of_the_gateway_that_is_taken(group: RunningGroup) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", group.config.ports.peers))
        taken.listen(1)
        up = moonmesh("up", "--detach", "-c", group.path)
        assert up.returncode == 1
        said = (
            f"error MM203: port {group.config.ports.peers}, needed for the gateway's peers, is in"
        )
        assert said in up.stderr
        assert serves(group)
        status = moonmesh("status", "-c", group.path)
        assert "needed for the gateway's peers, is in use by" in " ".join(status.stdout.split())
    recovers(group)


def test_a_peering_file_that_is_wrong_starts_nothing(group: RunningGroup) -> None:
    path = group.path.parent / "peering.toml"
    good = path.read_text()
    path.write_text(good.replace("[self]", "[sefl]"))
    up = moonmesh("up", "--detach", "-c", group.path)
    assert up.returncode == 2
    assert "error MM101: " in up.stderr
    assert not leftovers(group.config.data_dir, None)


def test_a_group_in_the_foreground_runs_on(group: RunningGroup) -> None:
    key = group.path.parent / "credentials" / "identity.key"
    content = key.read_bytes()
    key.unlink()
    process = subprocess.Popen(
        command("up", "-c", group.path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
    )
    try:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if "runs without the federation" in line:
                break
        assert any("identity.key is missing" in line for line in said), said
        assert serves(group)
        key.write_bytes(content)
        key.chmod(0o600)
        recovers(group)
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
