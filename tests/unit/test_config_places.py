"""group.toml of a further place of a group: what it may say, and what it must."""

from __future__ import annotations

from pathlib import Path

import pytest

from federation.config import load_group
from local_group.ports import mooncake_ports
from tests.support.group_toml import GOOD, message_of, write

FURTHER = GOOD.replace("port_base = 7400", 'port_base = 7400\nhost = "10.0.0.11"').replace(
    "lease_ttl_ms = 10000", 'address = "east-1:8400"'
)


@pytest.mark.parametrize(
    ("host", "address"), [("127.0.0.1", "10.0.0.10:8400"), ("10.0.0.11", "localhost:8400")]
)
def test_a_place_and_its_master_reach_each_other_both_ways(
    tmp_path: Path, host: str, address: str
) -> None:
    text = FURTHER.replace("10.0.0.11", host).replace("east-1:8400", address)
    text += '[coordination]\nfile_folder = "shared"\n'
    assert "one of them is this machine alone" in message_of(write(tmp_path, text))


def test_places_on_several_hosts_need_a_port_for_each_others_gateways(tmp_path: Path) -> None:
    text = FURTHER.replace("[gateway]", '[gateway]\npeering = "peering.toml"')
    text += '[coordination]\nfile_folder = "shared"\n'
    assert "set engines_tcp = true in [gateway], at every place" in message_of(
        write(tmp_path, text)
    )


def test_a_place_whose_master_runs_elsewhere(tmp_path: Path) -> None:
    text = FURTHER + '[coordination]\nfile_folder = "shared"\n'
    group = load_group(write(tmp_path, text))
    assert (group.master_address, group.admin_url) == ("east-1:8400", "http://east-1:8401")
    assert [use.purpose for use in mooncake_ports(group)] == ["store-0", "store-1"]
    text = text.replace("[stores]", "admin_port = 9003\n[stores]")
    group = load_group(write(tmp_path, text))
    assert group.admin_url == "http://east-1:9003"
    assert group.coordination_dir == tmp_path / "shared"
    alone = text.replace("count = 2", "count = 0").replace('dram = "256 MiB"', "")
    group = load_group(write(tmp_path, alone))
    assert (group.stores.count, group.stores.dram) == (0, 0)
    assert mooncake_ports(group) == []


@pytest.mark.parametrize(
    ("coordination", "message"),
    [
        ("", "its gateway would lead beside that of the first place: set coordination.backend"),
        ('backend = "etcd"', "a managed etcd would be its own: name that of the first place"),
        ('backend = "etcd"\netcd_endpoints = ["h:7404"]', ""),
        ('backend = "etcd"\nfile_folder = "x"', 'file_folder is for backend = "file"'),
    ],
)
def test_two_places_share_their_coordination(
    tmp_path: Path, coordination: str, message: str
) -> None:
    path = write(tmp_path, f"{FURTHER}[coordination]\n{coordination}\n")
    if message:
        assert message in message_of(path)
    else:
        load_group(path)
    without = path.read_text().replace('listen = "127.0.0.1"', "enabled = false")
    if not message.startswith("file_folder"):
        load_group(write(tmp_path, without))
