"""`[coordination]`: what is refused, and which backend comes of it."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from federation.cli.group import beside_mooncake
from federation.config import GroupFile, load_group
from local_group.coordination import connect, managed
from local_group.coordination.file_backend import FileBackend
from local_group.coordination.raft import RaftBackend
from local_group.errors import ConfigError
from local_group.process_errors import CoordinationError, MissingPackage
from tests.support.groups import write_group

THREE = ["10.0.0.1:7406", "10.0.0.2:7406", "10.0.0.3:7406"]
RAFT = {"backend": "raft", "raft_members": THREE, "raft_self": THREE[1], "raft_secret": "secret"}


def group(folder: Path, **coordination: Any) -> GroupFile:
    return load_group(write_group(folder, port_base=24000, coordination=coordination))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backend": "zookeeper"}, "must be one of 'file', 'etcd' or 'raft'"),
        ({"lease_ms": 100}, "must be at least 500"),
        ({"raft_self": "a:1"}, 'raft_self is for backend = "raft", and backend is "file"'),
        ({"backend": "etcd", "lease_ms": 2500}, "leases of whole seconds"),
        ({"backend": "etcd", "lease_ms": 1000}, "2000 ms at least"),
        ({"backend": "etcd", "etcd_endpoints": []}, "at least 1 item"),
        (
            {"backend": "etcd", "etcd_endpoints": ["etcd"]},
            "'etcd' has no port: write \"host:port\" (of etcd's",
        ),
        ({"backend": "etcd", "etcd_endpoints": ["a:1", "a:1"]}, "a:1 is there twice"),
        ({"backend": "etcd", "etcd_endpoints": ["managed", "a:1"]}, "it stands alone"),
        ({"backend": "etcd", "etcd_ca": "ca.pem"}, "the managed etcd has no TLS"),
        (
            {"backend": "etcd", "etcd_endpoints": ["a:1"], "etcd_ca": "ca", "etcd_key": "key"},
            "etcd_certificate and etcd_key belong together",
        ),
        (
            {"backend": "etcd", "etcd_endpoints": ["a:1"], "etcd_server_name": "a"},
            "TLS to etcd needs etcd_ca",
        ),
        ({**RAFT, "raft_members": THREE[:2]}, "2 raft_members: three at least"),
        ({**RAFT, "raft_members": [*THREE, THREE[0]]}, "10.0.0.1:7406 is there twice"),
        ({**RAFT, "raft_self": "10.0.0.9:7406"}, "is not one of raft_members"),
        (
            {"backend": "raft", "raft_members": THREE, "raft_self": THREE[0]},
            "raft_secret is missing",
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        group(tmp_path, **settings)
    assert message in str(caught.value)
    assert f"{tmp_path}/group.toml:" in str(caught.value)


@pytest.mark.parametrize("settings", [{}, RAFT, {"backend": "etcd", "lease_ms": 3000}])
def test_what_is_written_down_whole_is_read_again(tmp_path: Path, settings: dict[str, Any]) -> None:
    """As it is handed to the serving process: with every default."""
    config = group(tmp_path, **settings)
    again = GroupFile.model_validate(json.loads(config.model_dump_json()))
    assert again.coordination == config.coordination


def test_a_file_is_the_default(tmp_path: Path) -> None:
    config = load_group(write_group(tmp_path, port_base=24000))
    assert isinstance(connect.connect_coordination(config, "a", "unix:a"), FileBackend)


def test_a_member_of_raft(tmp_path: Path) -> None:
    config = group(tmp_path, **RAFT)
    assert config.coordination.raft_secret == tmp_path / "secret"
    assert isinstance(connect.connect_coordination(config, "a", "unix:a"), RaftBackend)


def test_etcd_needs_a_newer_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "ETCD_PYTHON", (sys.version_info[0], sys.version_info[1] + 1))
    with pytest.raises(CoordinationError, match=r"needs Python 3\.11") as caught:
        connect.connect_coordination(group(tmp_path, backend="etcd"), "a", "unix:a")
    assert "choose another backend" in str(caught.value)


def test_one_endpoint_may_be_text(tmp_path: Path) -> None:
    config = group(tmp_path, backend="etcd", etcd_endpoints="etcd.example:2379")
    assert config.coordination.etcd_endpoints == ("etcd.example:2379",)
    assert not config.coordination.managed_etcd


def test_a_managed_etcd_runs_before_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/etcd")
    path = write_group(
        tmp_path, port_base=24000, gateway={"enabled": True}, coordination={"backend": "etcd"}
    )
    etcd, gateway = beside_mooncake(load_group(path), path)
    assert (etcd.name, gateway.name) == ("etcd", "gateway")
    assert [use.port for use in etcd.ports] == [24004, 24005]
    assert f"--data-dir={tmp_path}/data/coordination/etcd" in etcd.argv
    assert "--listen-client-urls=http://127.0.0.1:24004" in etcd.argv


def test_no_etcd_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(MissingPackage, match="etcd is not installed") as caught:
        managed.etcd_child(group(tmp_path, backend="etcd"))
    assert "apt-get install etcd-server" in str(caught.value)
