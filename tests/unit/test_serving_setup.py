"""A serving process is what its gateway is, whatever has become of the files since."""

from __future__ import annotations

from pathlib import Path

import pytest

from federation.config import load_group
from federation.errors import TrustError
from federation.peering import Membership
from federation.peers.channel import FIRST_BYTES_MAX
from federation.peers.setup import Setup, read_setup, write_setup
from federation.trust.names import gateway_name
from moonmesh.v1 import serving_pb2
from tests.support.credentials import Made
from tests.support.federation import NAMESPACE
from tests.support.groups import write_group


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    made = Made(tmp_path_factory.mktemp("setup"))
    folder = tmp_path_factory.mktemp("group")
    limits = {"serving_nice": 7, "staging_bytes": "1 GiB"}
    gateway = {"enabled": True, "peering": "peering.toml"}
    namespaces = {"demo": NAMESPACE}
    group = load_group(
        write_group(folder, port_base=7400, limits=limits, gateway=gateway, namespaces=namespaces)
    )
    peering = made.peering("east", "west", "north")
    member = Membership(peering, peering.check_against(group), made.of("east"))
    return Setup.of(group, member)


def sent(setup: Setup) -> bytes:
    return write_setup(setup).SerializeToString()


def test_all_of_it_arrives(setup: Setup) -> None:
    read = read_setup(serving_pb2.Setup.FromString(sent(setup)))
    assert read.group == setup.group
    assert read.tls == setup.tls
    assert list(read.callers) == ["west", "north"]
    for name, caller in setup.callers.items():
        got = read.callers[name]
        assert got.exported == caller.exported
        assert [k.raw for k in got.keys] == [k.raw for k in caller.keys]
    assert read.callers.all_exported == setup.callers.all_exported


@pytest.mark.parametrize(
    "tables",
    [
        {
            "master": {"address": "127.0.0.1:7500"},
            "stores": {"count": 0},
            "coordination": {"backend": "etcd", "etcd_endpoints": ["127.0.0.1:7504"]},
        },
        {"coordination": {"backend": "file", "file_folder": "shared"}},
    ],
)
def test_whatever_the_group_is_made_of(
    setup: Setup, tmp_path: Path, tables: dict[str, dict[str, object]]
) -> None:
    """Some settings may not be set together: what was not set is not set on the other side."""
    gateway = {"enabled": True, "peering": "peering.toml"}
    path = write_group(
        tmp_path, port_base=7400, gateway=gateway, namespaces={"demo": NAMESPACE}, **tables
    )
    group = load_group(path)
    message = write_setup(Setup(group, setup.callers, setup.tls)).SerializeToString()
    assert read_setup(serving_pb2.Setup.FromString(message)).group == group


def test_no_file_is_read(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    message = serving_pb2.Setup.FromString(sent(setup))

    def none(*_: object, **__: object) -> None:
        raise AssertionError("a file was opened")

    monkeypatch.setattr(Path, "open", none)
    monkeypatch.setattr("builtins.open", none)
    assert read_setup(message).group.name == "east"


def test_the_key_that_signs_statements_stays_where_it_is(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(tmp_path)
    credentials = made.of("east")
    secret = credentials.signing_key.private_bytes_raw()
    peering = made.peering("east", "west")
    member = Membership(peering, peering.check_against(setup.group), credentials)
    raw = sent(Setup.of(setup.group, member))
    assert credentials.tls.key_pem in raw
    assert secret not in raw


def test_the_largest_fits_the_first_message(setup: Setup) -> None:
    message = write_setup(setup)
    (west, *_) = message.callers
    west.exported[:] = [bytes([i]) * 32 for i in range(256)]
    west.keys.append(west.keys[0])
    del message.callers[:]
    message.callers.extend([west] * 63)
    one = NAMESPACE | {name: "x" * 256 for name in NAMESPACE if isinstance(NAMESPACE[name], str)}
    room = message.ByteSize() + 256 * (2 * len(str(one)))
    assert room < FIRST_BYTES_MAX / 2


def test_who_calls_is_known_by_certificate(setup: Setup) -> None:
    callers = read_setup(write_setup(setup)).callers

    def context(group: str, federation: str) -> dict[str, list[bytes]]:
        name = gateway_name(group, federation)
        return {"x509_subject_alternative_name": [name.encode()]}

    known = callers.federation
    assert callers.identify(context("west", known)).name == "west"
    with pytest.raises(TrustError, match='group "south" is not a peer'):
        callers.identify(context("south", known))
    with pytest.raises(TrustError, match="not of a group of federation"):
        callers.identify(context("west", f"{known}-other"))
