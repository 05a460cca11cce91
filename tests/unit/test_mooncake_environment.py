"""Mooncake's own variables: they mean what they mean to Mooncake, and what cannot be is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from local_group.errors import ConfigError
from local_group.mooncake_environment import settings_from_environment

FILE: dict[str, Any] = {
    "local_hostname": "node1",
    "metadata_server": "P2PHANDSHAKE",
    "master_server_address": "10.0.0.1:50051",
    "global_segment_size": "1gb",
    "local_buffer_size": 1 << 20,
    "protocol": "TCP",
    "device_name": "mlx5_0",
}


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG_PATH", "MASTER", "PROTOCOL", "LOCAL_HOSTNAME", "GLOBAL_SEGMENT_SIZE"):
        monkeypatch.delenv(f"MOONCAKE_{name}", raising=False)


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONCAKE_MASTER", "127.0.0.1:50051")
    monkeypatch.setenv("MOONCAKE_LOCAL_HOSTNAME", "node2")
    monkeypatch.setenv("MOONCAKE_GLOBAL_SEGMENT_SIZE", "0")
    found = settings_from_environment()
    assert (found.master_address, found.local_hostname) == ("127.0.0.1:50051", "node2")
    assert (found.metadata_server, found.protocol) == ("P2PHANDSHAKE", "tcp")
    assert found.global_segment_size == 0


def test_a_file_goes_before_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "mooncake.json"
    path.write_text(json.dumps(FILE))
    monkeypatch.setenv("MOONCAKE_MASTER", "127.0.0.1:50051")
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", str(path))
    found = settings_from_environment()
    assert found.master_address == "10.0.0.1:50051"
    assert (found.global_segment_size, found.local_buffer_size) == (1 << 30, 1 << 20)
    assert (found.protocol, found.rdma_devices) == ("tcp", "mlx5_0")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"master_server_address": None}, "master_server_address"),
        ({"global_segment_size": "many"}, "could not convert"),
        ({"enable_ssd_offload": True}, "enable_ssd_offload is not offered here"),
        ({"tenant_id": "other"}, "tenant_id is not offered here"),
    ],
)
def test_what_cannot_be_used_is_said_with_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    path = tmp_path / "mooncake.json"
    path.write_text(json.dumps(FILE | change))
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", str(path))
    with pytest.raises(ConfigError, match=says) as caught:
        settings_from_environment()
    assert caught.value.where == str(path)


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_file_that_is_no_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "mooncake.json"
    path.write_text(text)
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", str(path))
    with pytest.raises(ConfigError, match="cannot be used"):
        settings_from_environment()


def test_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="Neither") as caught:
        settings_from_environment()
    assert "MOONCAKE_MASTER=HOST:PORT" in str(caught.value.hint)
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", "/nothing/here.json")
    with pytest.raises(ConfigError, match="No such file"):
        settings_from_environment()
