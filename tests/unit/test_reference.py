"""The reference of the configuration says all of it, and the operations manual knows every name."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from federation.cli import reference
from federation.cli.main import app
from federation.config import GroupFile
from federation.errors import ConfigError, TrustError
from federation.peering import Peering
from federation.trust.authority import Authority
from tests.support.groups import REPOSITORY, write_group

PACKAGES = ("federation", "local_group", "gossip")
OPERATIONS = (REPOSITORY / "docs" / "operations.md").read_text("utf-8")
UNITS = {
    "blocks", "bytes", "calls", "changes", "connections", "descriptors", "engines", "entries", "failures",
    "groups", "hellos", "keys", "minutes", "ms", "percent",
    "processes", "pulls", "port", "ranks", "requests", "retries", "steps", "stores", "streams",
    "tokens",
}  # fmt: skip
"""The words with which a whole number's docstring may begin."""


def every_field() -> list[tuple[type[BaseModel], str]]:
    """Every model of both files with each of its fields."""
    found: list[tuple[type[BaseModel], str]] = []
    models: list[type[BaseModel]] = [GroupFile, Peering]
    while models:
        model = models.pop()
        found += [(model, name) for name, _ in reference.fields(model)]
        models += [section.model for _, _, section in reference.sections(model)]
    return found


@pytest.mark.parametrize(("model", "name"), every_field())
def test_a_field_is_explained(model: type[BaseModel], name: str) -> None:
    field = dict(reference.fields(model))[name]
    assert field.description, f"{model.__name__}.{name} has no docstring"
    if reference.kind(field).words in ("whole number", "size"):
        unit = field.description.split()[0].strip(",.:;").lower()
        assert unit in UNITS, f"{model.__name__}.{name}: begin its docstring with its unit"


def test_the_reference_has_every_field_once() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", reference.markdown(), re.MULTILINE)
    assert Counter(rows) == Counter(name for _, name in every_field())
    assert len(rows) > 60


@pytest.mark.parametrize(
    "row",
    [
        '| `staging_bytes` | size | `"256 MiB"` | 16 MiB to 1024 GiB | Bytes of staging,',
        '| `dram` | size | `"0 bytes"` |  | Bytes of memory',
        '| `protocol` | `"tcp"` or `"rdma"` | `"tcp"` |  | Mooncake\'s transport',
        "| `engines_tcp` | true or false | `false` |  | Also serve engines",
        "| `peering` | path | none |  | The group's `peering.toml`",
        "| `export` | list of text | `[]` | at most 256 entries | Namespaces,",
        "| `port_base` | whole number | **required** | 1024 to 65535 | Port,",
        "| `model` | text | **required** | 1 to 256 characters | Model name",
        "| `hop_limit` | whole number | `1` | 1 | Groups",
        "| `key` | text | none |  | The key that signs",
    ],
)
def test_a_row_says_type_default_and_bounds(row: str) -> None:
    assert f"\n{row}" in reference.markdown()


@pytest.mark.parametrize(
    "heading", ["[master]", "[stores]", "[namespaces.NAME]", "[limits]", "[self]", "[[peers]]"]
)
def test_a_section_has_a_heading(heading: str) -> None:
    assert f"\n### `{heading}`\n" in reference.markdown()


def test_the_examples_are_the_files_themselves() -> None:
    for name in ("group.toml", "peering.toml"):
        text = (REPOSITORY / "deploy" / "two-datacenters" / "east" / name).read_text("utf-8")
        assert f"```toml\n{text.strip()}\n```" in reference.markdown()


def test_the_committed_reference_is_current() -> None:
    result = CliRunner().invoke(app, ["config", "reference"])
    committed = (REPOSITORY / "docs" / "configuration.md").read_text("utf-8")
    assert result.stdout == committed, "run ./dev docs"


@pytest.mark.parametrize(
    ("value", "text"),
    [(64 << 20, "64 MiB"), (1 << 30, "1 GiB"), (1536, "1536 bytes"), (4096, "4 KiB")],
)
def test_sizes_are_told_in_the_largest_whole_unit(value: int, text: str) -> None:
    assert reference.size(value) == text


def test_a_group_without_peers_is_checked(tmp_path: Path) -> None:
    path = write_group(tmp_path, port_base=7400, gateway={"enabled": True})
    result = CliRunner().invoke(app, ["config", "check", "-c", str(path)])
    assert result.exit_code == 0
    first, group, *rest = result.stdout.splitlines()
    assert first == "ok"
    assert 'group "east": 1 store of 64 MiB over tcp' in group
    assert "  no peering.toml: the group runs alone" in rest


@pytest.mark.parametrize(
    ("peering", "said"),
    [
        (None, "peering.toml: there is no such file"),
        ('federation = "demo"\n[self]\ngroup = "west"\ncredentials = "c"\n', 'is "west", but'),
    ],
)
def test_the_peering_of_a_group_is_checked_too(
    tmp_path: Path, peering: str | None, said: str
) -> None:
    path = write_group(
        tmp_path, port_base=7400, gateway={"enabled": True, "peering": "peering.toml"}
    )
    if peering is not None:
        (tmp_path / "peering.toml").write_text(peering)
    result = CliRunner().invoke(app, ["config", "check", "-c", str(path)])
    assert isinstance(result.exception, ConfigError)
    assert result.exception.exit_code == 2
    assert said in str(result.exception)
    assert "ok" not in result.stdout


@pytest.fixture
def member(tmp_path: Path) -> Path:
    """group.toml of a group with peers and good credentials."""
    Authority(tmp_path / "ca", "demo").group("east", tmp_path / "c")
    (tmp_path / "peering.toml").write_text(
        'federation = "demo"\n[self]\ngroup = "east"\ncredentials = "c"\n'
    )
    gateway = {"enabled": True, "peering": "peering.toml", "engines_tcp": True}
    return write_group(tmp_path, port_base=7400, gateway=gateway)


def test_the_credentials_are_checked_too(member: Path) -> None:
    result = CliRunner().invoke(app, ["config", "check", "-c", str(member)])
    assert result.exit_code == 0
    until = r"valid until \d{4}-\d\d-\d\d \d\d:\d\d UTC \(\d+ days\)"
    assert re.search(f"certificate towards peers: {until}", result.stdout)
    assert re.search(rf"certificate towards engines over TCP: {until}", result.stdout)


@pytest.mark.parametrize("name", ["key.pem", "engine-server.key"])
def test_what_is_wrong_with_the_credentials_is_told(member: Path, name: str) -> None:
    (member.parent / "c" / name).chmod(0o640)
    result = CliRunner().invoke(app, ["config", "check", "-c", str(member)])
    assert isinstance(result.exception, TrustError)
    assert result.exception.exit_code == 1
    assert f"{name} can be read by others" in str(result.exception)
    assert "ok" not in result.stdout


def in_sources(pattern: str, *others: str) -> list[str]:
    """What a pattern's group matches in the sources, and in those of other packages."""
    return [
        name
        for package in (*PACKAGES, *others)
        for path in sorted((REPOSITORY / package).rglob("*.py"))
        for name in re.findall(pattern, path.read_text("utf-8"))
    ]


def test_every_counter_is_explained_and_every_explained_one_exists() -> None:
    counted = set(in_sources(r'"(moonmesh_[a-z0-9_]+_total)[{"]'))
    explained = re.findall(r"^\| `(moonmesh_[a-z0-9_]+)` \|", OPERATIONS, re.MULTILINE)
    assert len(counted) > 30
    assert set(explained) == counted
    assert len(explained) == len(counted), "a counter is explained twice"
    assert set(re.findall(r"moonmesh_[a-z0-9_]+_total", OPERATIONS)) == counted


def test_every_error_code_is_explained_and_every_explained_one_exists() -> None:
    codes = in_sources(
        r'^    code(?:: ClassVar\[str\])? = "(MM\d{3})"'.replace("^", r"(?m)^"), "chaos"
    )
    explained = re.findall(r"^\| (MM\d{3}) \|", OPERATIONS, re.MULTILINE)
    assert len(codes) > 20
    assert len(codes) == len(set(codes)), "two errors have one code"
    assert explained == sorted(codes)
