"""Making credentials, and every way in which a folder of them can be wrong."""

from __future__ import annotations

import datetime
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from federation.errors import TrustError
from federation.trust.authority import Authority
from federation.trust.credentials import (
    caller_group,
    dns_names,
    load_credentials,
    load_engine_credentials,
    utc_now,
)
from federation.trust.keys import StatementKey
from federation.trust.names import (
    engine_client_name,
    engine_server_name,
    gateway_name,
    group_of,
)

NOW = datetime.datetime(2030, 1, 1, tzinfo=datetime.timezone.utc)
DAY = datetime.timedelta(days=1)


def make(root: Path, *groups: str, **options: object) -> Authority:
    authority = Authority(root / "ca", "demo", now=NOW, **options)  # type: ignore[arg-type]
    for group in groups:
        authority.group(group, root / group)
    return authority


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    make(root, "east", "west")
    make(root / "other", "east")
    return root


@pytest.fixture
def east(made: Path, tmp_path: Path) -> Path:
    """A copy of east's credentials that a test may spoil."""
    shutil.copytree(made / "east", tmp_path / "east")
    return tmp_path / "east"


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_what_is_made_is_what_is_loaded(made: Path) -> None:
    credentials = load_credentials(made / "east", "east", "demo", now=NOW)
    assert credentials.tls.name == "east.demo.moonmesh"
    assert credentials.not_after == NOW + 397 * DAY
    assert credentials.tls.days_left(NOW) == 397
    assert str(credentials.statement_key) == (made / "east/identity.pub").read_text().strip()
    assert credentials.channel_options("west") == [
        ("grpc.ssl_target_name_override", "west.demo.moonmesh")
    ]
    assert b"PRIVATE" not in repr(credentials).encode()
    for side in ("server", "client"):
        load_engine_credentials(made / "east", "east", side, now=NOW)  # type: ignore[arg-type]


def test_certificates_are_good_for_what_they_are_for_alone(made: Path) -> None:
    usages = {
        "cert.pem": {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH},
        "engine-server.pem": {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH},
        "engine-client.pem": {ExtendedKeyUsageOID.CLIENT_AUTH},
    }
    for name, usage in usages.items():
        leaf = certificate(made / "east" / name)
        assert set(leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == usage
        assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        assert len(dns_names(leaf)) == 1
        assert leaf.not_valid_before_utc == NOW - datetime.timedelta(minutes=5)
        key = leaf.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        assert key.curve.name == "secp256r1"
    authority = certificate(made / "ca" / "ca.pem")
    constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (constraints.ca, constraints.path_length) == (True, 0)
    # East's engines' CA is no other group's, nor the federation's.
    authorities = {(made / g / "engine-ca.pem").read_bytes() for g in ("east", "west")}
    assert len(authorities | {(made / "ca/ca.pem").read_bytes()}) == 3


def test_keys_are_closed_and_no_ca_key_leaves_its_folder(made: Path) -> None:
    for path in made.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        if path.is_file():
            private = b"PRIVATE KEY" in path.read_bytes()
            assert mode == (0o600 if private else 0o644), path
    assert stat.S_IMODE((made / "east").stat().st_mode) == 0o700
    assert stat.S_IMODE((made / "ca").stat().st_mode) == 0o700
    keys = {path.read_bytes() for path in (made / "ca").glob("*.key")}
    assert len(keys) == 3
    assert not keys & {path.read_bytes() for path in (made / "east").iterdir()}


def test_keys_are_closed_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make(tmp_path, "east")
    finally:
        os.umask(before)
    for path in tmp_path.rglob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_a_second_run_keeps_everything_and_makes_what_is_missing(tmp_path: Path) -> None:
    make(tmp_path, "east")
    before = contents(tmp_path)
    authority = make(tmp_path, "east", "west")
    after = contents(tmp_path)
    assert {name: after[name] for name in before} == before
    assert all("west" in str(path) for path in authority.made.written)
    load_credentials(tmp_path / "west", "west", "demo", now=NOW)


def test_renewing_keeps_cas_and_statement_keys(tmp_path: Path) -> None:
    make(tmp_path, "east")
    before = contents(tmp_path)
    make(tmp_path, "east", renew=True, days=10)
    changed = {n for n, data in contents(tmp_path).items() if data != before[n]}
    assert changed == {
        f"east/{n}"
        for n in (
            "cert.pem",
            "key.pem",
            "engine-server.pem",
            "engine-server.key",
            "engine-client.pem",
            "engine-client.key",
        )
    }
    assert load_credentials(tmp_path / "east", "east", "demo", now=NOW).not_after == NOW + 10 * DAY


def test_force_makes_everything_anew(tmp_path: Path) -> None:
    make(tmp_path, "east")
    before = contents(tmp_path)
    make(tmp_path, "east", force=True)
    assert all(data != before[name] for name, data in contents(tmp_path).items())
    load_credentials(tmp_path / "east", "east", "demo", now=NOW)


def test_a_certificate_does_not_outlive_its_ca(tmp_path: Path) -> None:
    make(tmp_path)
    late = Authority(tmp_path / "ca", "demo", days=3650, now=NOW + 3000 * DAY)
    late.group("east", tmp_path / "east")
    ends = certificate(tmp_path / "east" / "cert.pem").not_valid_after_utc
    assert ends == certificate(tmp_path / "ca" / "ca.pem").not_valid_after_utc


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("ca/ca.key", "ca.key is missing beside ca.pem"),
        ("east/key.pem", "key.pem is missing beside cert.pem"),
        ("east/identity.pub", "identity.pub is missing beside identity.key"),
    ],
)
def test_half_a_pair_is_not_completed(tmp_path: Path, gone: str, message: str) -> None:
    make(tmp_path, "east")
    (tmp_path / gone).unlink()
    with pytest.raises(TrustError, match=message):
        make(tmp_path, "east")


def test_a_ca_that_cannot_be_used(tmp_path: Path) -> None:
    make(tmp_path / "one", "east")
    make(tmp_path / "two", "east")
    shutil.copy(tmp_path / "two/ca/ca.pem", tmp_path / "one/ca/ca.pem")
    with pytest.raises(TrustError, match=r"is not the key of ca\.pem"):
        make(tmp_path / "one", "east")
    (tmp_path / "one/ca/ca.pem").write_text("rubbish")
    with pytest.raises(TrustError, match="is no CA that can be used"):
        make(tmp_path / "one", "east")
    with pytest.raises(TrustError, match="this CA has expired on 2039-12-30 00:00 UTC"):
        Authority(tmp_path / "two/ca", "demo", now=NOW + 3650 * DAY)
    shutil.copytree(tmp_path / "two/east", tmp_path / "three/east")
    with pytest.raises(TrustError, match=r"ca\.pem: is of another CA than the one in the ca fol"):
        make(tmp_path / "three", "east")


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrustError, match="cannot be made: "):
        make(tmp_path / "file")


Spoil = Callable[[Path, Path], object]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda e, m: (e / "cert.pem").unlink(), "cert.pem is missing: `moonmesh peer init` makes"),
        (lambda e, m: (e / "identity.key").unlink(), "identity.key is missing"),
        (
            lambda e, m: (e / "key.pem").chmod(0o640),
            "key.pem can be read by others (mode 0640): chmod 600 ",
        ),
        (
            lambda e, m: (e / "identity.key").chmod(0o604),
            "identity.key can be read by others (mode 0604): chmod 600 ",
        ),
        (
            lambda e, m: shutil.copy(m / "west/key.pem", e / "key.pem"),
            "key.pem is not the key of cert.pem: one of them was replaced; copy the folder whole",
        ),
        (
            lambda e, m: [shutil.copy(m / "west" / n, e / n) for n in ("cert.pem", "key.pem")],
            "cert.pem is for west.demo.moonmesh, and this group needs east.demo.moonmesh",
        ),
        (
            lambda e, m: shutil.copy(m / "other/ca/ca.pem", e / "ca.pem"),
            "cert.pem is not signed by ca.pem: peers would refuse it; both must come from one",
        ),
        (
            lambda e, m: shutil.copy(m / "west/identity.pub", e / "identity.pub"),
            "identity.pub is not the public half of identity.key: peers that have it would refuse",
        ),
        (lambda e, m: (e / "identity.pub").write_text("x"), "identity.pub: a key is written"),
        (
            lambda e, m: shutil.copy(m / "east/key.pem", e / "identity.key"),
            "identity.key is not an Ed25519 key",
        ),
        (lambda e, m: (e / "key.pem").write_text("x"), "key.pem is not an unencrypted PEM private"),
        (lambda e, m: (e / "cert.pem").write_text("x"), "cert.pem is not a PEM certificate"),
        (
            lambda e, m: ((e / "ca.pem").unlink(), (e / "ca.pem").mkdir()),
            "ca.pem cannot be read: Is a directory",
        ),
    ],
)
def test_refused(east: Path, made: Path, spoil: Spoil, message: str) -> None:
    spoil(east, made)
    with pytest.raises(TrustError) as caught:
        load_credentials(east, "east", "demo", now=NOW)
    assert message in str(caught.value)
    assert str(east) in str(caught.value)
    assert caught.value.code == "MM301"


def test_refused_for_the_time(east: Path) -> None:
    with pytest.raises(TrustError) as caught:
        load_credentials(east, "east", "demo", now=NOW + 397 * DAY)
    assert "cert.pem has expired on 2031-02-02 00:00 UTC: `moonmesh peer init --renew`" in str(
        caught.value
    )
    with pytest.raises(TrustError, match="valid from 2029-12-31 23:55 UTC only, and here it is"):
        load_credentials(east, "east", "demo", now=NOW - DAY)


def test_refused_as_another_group_or_federation(east: Path) -> None:
    with pytest.raises(TrustError, match=r"and this group needs west\.demo\.moonmesh"):
        load_credentials(east, "west", "demo", now=NOW)
    with pytest.raises(TrustError, match=r"and this group needs east\.prod\.moonmesh"):
        load_credentials(east, "east", "prod", now=NOW)


def test_all_problems_are_told_at_once(east: Path) -> None:
    (east / "key.pem").chmod(0o644)
    (east / "identity.pub").unlink()
    with pytest.raises(TrustError, match="2 problems"):
        load_credentials(east, "east", "demo", now=NOW)


@pytest.mark.parametrize("name", ["none", "x" * 5000])
def test_no_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(TrustError, match="there is no such folder of credentials"):
        load_credentials(tmp_path / name, "east", "demo")


def test_engine_certificates_of_another_group_are_refused(east: Path) -> None:
    with pytest.raises(TrustError, match=r"engine-server\.pem is for gateway\.east\.engines"):
        load_engine_credentials(east, "west", "server", now=NOW)


def test_who_is_at_the_other_end(made: Path) -> None:
    def name(*names: bytes) -> str | None:
        return caller_group({"x509_subject_alternative_name": list(names)}, "demo")

    assert name(b"west.demo.moonmesh") == "west"
    assert name(b"127.0.0.1", b"west.demo.moonmesh") == "west"
    assert name(b"west.prod.moonmesh") is None
    assert name(b"west.demo.moonmesh", b"north.demo.moonmesh") is None
    assert name(b"x.west.demo.moonmesh") is None
    assert name(b".demo.moonmesh") is None
    assert name(b"\xff.demo.moonmesh") is None
    assert name() is None
    assert caller_group({}, "demo") is None
    engines = load_engine_credentials(made / "east", "east", "server", now=NOW)
    san = "x509_subject_alternative_name"
    assert engines.is_engine({san: [engine_client_name("east").encode()]})
    assert not engines.is_engine({san: [engine_client_name("west").encode()]})
    assert not engines.is_engine({san: [gateway_name("east", "demo").encode()]})
    assert engines.is_gateway({san: [engine_server_name("east").encode()]})
    for other in (
        engine_client_name("east"),
        engine_server_name("west"),
        gateway_name("east", "demo"),
    ):
        assert not engines.is_gateway({san: [other.encode()]})
    assert group_of([engine_client_name("east")], "engines") is None


def test_a_key_as_text_and_back(made: Path) -> None:
    text = (made / "east/identity.pub").read_text()
    key = StatementKey.parse(text)
    assert StatementKey.parse(str(key)) == key
    assert len({key, StatementKey.parse(text)}) == 1
    assert key.fingerprint().startswith("SHA256:")
    assert len(key.fingerprint()) == len("SHA256:") + 24 + 5
    assert utc_now().tzinfo is not None
