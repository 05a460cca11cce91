"""`moonmesh peer init` and `peer show`, as they are called."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner, Result

from federation.cli.peer import app
from federation.errors import ConfigError, MoonmeshError, TrustError, UsageError
from federation.peering import load_peering
from federation.trust.credentials import load_credentials, load_engine_credentials
from federation.trust.keys import StatementKey

TWO = ["--group", "east=127.0.0.1:7402", "--group", "west=127.0.0.1:7502"]
EXAMPLE = Path(__file__).parents[2] / "deploy" / "two-datacenters"


def call(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    # A MoonmeshError is told by `main`; here the test wants to see it.
    if isinstance(result.exception, MoonmeshError):
        raise result.exception
    return result


def init(folder: Path, *arguments: str) -> Result:
    result = call("init", folder, *arguments)
    assert result.exit_code == 0, result.output
    return result


def check(folder: Path) -> None:
    """Each group of the folder can start, and each has the others' keys."""
    keys = {}
    for name in ("east", "west"):
        peering = load_peering(folder / name / "peering.toml")
        own = load_credentials(peering.own.credentials, name, peering.federation)
        load_engine_credentials(peering.own.credentials, name, "server")
        load_engine_credentials(peering.own.credentials, name, "client")
        keys[name] = own.statement_key
    for name, other in (("east", "west"), ("west", "east")):
        (peer,) = load_peering(folder / name / "peering.toml").peers
        assert (peer.name, peer.keys) == (other, (keys[other],))


def test_groups_on_the_command_line(tmp_path: Path) -> None:
    result = init(tmp_path, "--federation", "demo", *TWO, "--namespaces", "chat, code")
    check(tmp_path)
    (peer,) = load_peering(tmp_path / "east" / "peering.toml").peers
    assert peer.address == "127.0.0.1:7502"
    assert peer.exports == peer.imports == ("chat", "code")
    assert f"{tmp_path}/east" in result.output
    assert "Keep it offline; no host needs it." in result.output
    assert "397 days" in result.output


def test_the_worked_example(tmp_path: Path) -> None:
    for name in ("east", "west"):
        (tmp_path / name).mkdir()
        shutil.copy(EXAMPLE / name / "peering.toml", tmp_path / name)
    init(tmp_path)
    check(tmp_path)
    before = (tmp_path / "east/credentials/key.pem").read_bytes()

    # Again: nothing is overwritten. Renewed: the certificate's key is, the statement key is not.
    assert "0 files written" in init(tmp_path).output
    assert (tmp_path / "east/credentials/key.pem").read_bytes() == before
    init(tmp_path, "--renew", "--days", "10")
    check(tmp_path)
    assert (tmp_path / "east/credentials/key.pem").read_bytes() != before
    init(tmp_path, "--force")
    check(tmp_path)


def test_a_group_joins_later(tmp_path: Path) -> None:
    init(tmp_path, "--federation", "demo", *TWO)
    (tmp_path / "north").mkdir()
    text = 'federation = "demo"\n[self]\ngroup = "north"\ncredentials = "credentials"\n'
    (tmp_path / "north/peering.toml").write_text(text)
    init(tmp_path)
    check(tmp_path)
    load_credentials(tmp_path / "north/credentials", "north", "demo")


def test_force_with_groups_writes_their_new_keys(tmp_path: Path) -> None:
    init(tmp_path, "--federation", "demo", *TWO)
    with pytest.raises(UsageError, match="exists already, and is not overwritten"):
        init(tmp_path, "--federation", "demo", *TWO)
    check(tmp_path)
    init(tmp_path, "--federation", "demo", *TWO, "--force")
    check(tmp_path)


def test_a_group_with_two_gateways(tmp_path: Path) -> None:
    groups = ["--group", "east=h1:7402,h2:7402", "--group", "west=127.0.0.1:7502"]
    init(tmp_path, "--federation", "demo", *groups)
    check(tmp_path)
    (east,) = load_peering(tmp_path / "west" / "peering.toml").peers
    assert east.gateways == ("h1:7402", "h2:7402")
    assert "find it at h1:7402, h2:7402." in (tmp_path / "east" / "peering.toml").read_text()
    shown = call("show", "-c", tmp_path / "west" / "peering.toml").output
    assert "h1:7402" in shown
    assert "h2:7402" in shown


def test_inline_keys_that_are_old_are_told(tmp_path: Path) -> None:
    init(tmp_path, "--federation", "demo", *TWO)
    with pytest.raises(ConfigError, match='another key for peer "west"') as caught:
        init(tmp_path, "--force")
    new = (tmp_path / "west/credentials/identity.pub").read_text().strip()
    assert f'key = "{new}"' in caught.value.hint


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--group", "east=h:1"], "--group needs --federation NAME"),
        (["--federation", "De mo", *TWO], "'De mo' is not a federation's id"),
        (["--federation", "demo", "--group", "east"], '"east" is not NAME=HOST:PORT'),
        (["--federation", "demo", "--group", "E=h:1"], "'E' is not a group's name"),
        (["--federation", "demo", "--group", "ca=h:1"], '"ca" is the folder of the CA'),
        (["--federation", "demo", "--group", "east=h"], "'h' has no port"),
        (["--federation", "demo", *TWO, *TWO], 'group "east" is given twice'),
        (
            ["--federation", "demo", "--group", "a=h:1", "--group", "b=h:1"],
            'two groups have the address "h:1"',
        ),
        (
            ["--federation", "demo", "--group", "a=h:1,i:1", "--group", "b=j:1,I:1"],
            'two groups have the address "I:1"',
        ),
        (["--federation", "demo", "--group", "a=h:1,H:01"], 'group "a" has an address twice'),
        (["--federation", "demo", "--group", "a=h:1,"], "'' has no port"),
        (
            ["--federation", "demo", "--group", "a=h:1,h:2,h:3,h:4,h:5"],
            'group "a" has 5 addresses: at most 4',
        ),
        (["--federation", "demo", *TWO, "--namespaces", 'a"b'], "cannot be a namespace's name"),
        (["--force", "--renew"], "--force and --renew exclude each other"),
        ([], r"there is no \*/peering.toml in it"),
        (
            ["--federation", "demo", *(f"--group=g{i}=h:{i + 1}" for i in range(65))],
            "65 groups are more than 64",
        ),
    ],
)
def test_refused_before_anything_is_written(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        call("init", tmp_path / "new", *arguments)
    assert not (tmp_path / "new").exists()


def test_files_that_do_not_belong_together(tmp_path: Path) -> None:
    init(tmp_path, "--federation", "demo", *TWO)
    with pytest.raises(ConfigError, match='is of federation "demo", not "prod"'):
        init(tmp_path, "--federation", "prod")
    path = tmp_path / "west/peering.toml"
    path.write_text(path.read_text().replace('group = "west"', 'group = "east"', 1))
    path.write_text(path.read_text().replace('name = "east"', 'name = "north"', 1))
    with pytest.raises(ConfigError, match='is of group "east", and so is'):
        init(tmp_path)


def test_days_are_bounded(tmp_path: Path) -> None:
    assert call("init", tmp_path, "--days", "0").exit_code == 2


def test_show(tmp_path: Path) -> None:
    init(tmp_path, "--federation", "demo", *TWO, "--namespaces", "chat")
    result = call("show", "-c", tmp_path / "east" / "peering.toml")
    assert result.exit_code == 0
    assert "127.0.0.1:7502" in result.output
    assert "east.demo.moonmesh, valid until" in result.output
    west = StatementKey.parse((tmp_path / "west/credentials/identity.pub").read_text())
    assert west.fingerprint()[:20] in result.output
    assert StatementKey.of(Ed25519PrivateKey.generate()).fingerprint()[:20] not in result.output


def test_show_refuses_what_the_gateway_would_refuse(tmp_path: Path) -> None:
    init(tmp_path, "--federation", "demo", *TWO)
    (tmp_path / "east/credentials/key.pem").chmod(0o644)
    with pytest.raises(TrustError, match="can be read by others"):
        call("show", "-c", tmp_path / "east" / "peering.toml")
