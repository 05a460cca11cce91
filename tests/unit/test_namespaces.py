"""Namespaces of two groups beside each other: what differs is named, and nothing is believed unchecked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from federation.cli.main import app
from federation.config import NAMESPACES_MAX, GroupFile, load_group
from federation.errors import PeerError
from federation.identity import Envelope
from federation.limits.errors import ShedError
from federation.peers.callers import Caller
from federation.peers.link import PeerLink
from federation.peers.namespaces import (
    ENVELOPE_BYTES_MAX,
    Told,
    as_json,
    match,
    read_told,
    shared_with,
    told_to,
)
from moonmesh.v1 import engine_pb2, peer_pb2
from tests.support.credentials import Made
from tests.support.group_toml import GOOD, message_of, write
from tests.support.groups import write_group
from tests.support.wire import East, linked

FIELDS: dict[str, Any] = {
    "model": "demo-7b",
    "revision": "r1",
    "engine": "e",
    "kv_dtype": "bf16",
    "block_tokens": 64,
    "layout": "page_first",
}


def namespace(**changes: Any) -> Envelope:
    return Envelope(**{**FIELDS, **changes})


def told(name: str = "demo", out: bool = True, into: bool = True, **changes: Any) -> Told:
    unattested = changes.pop("unattested", False)
    return Told(name, namespace(**changes), out, into, unattested)


def reply_of(*namespaces: Told) -> peer_pb2.NamespacesReply:
    reply = peer_pb2.NamespacesReply()
    for each in namespaces:
        reply.namespaces.add(
            name=each.name,
            fingerprint=each.fingerprint,
            envelope_json=each.envelope.canonical(),
            exported=each.exported,
            imported=each.imported,
            unattested=each.unattested,
        )
    return reply


def group(folder: Path, **namespaces: dict[str, Any]) -> GroupFile:
    write_group(folder, port_base=7400, namespaces=namespaces)
    return load_group(folder / "group.toml")


def test_a_peer_is_told_what_is_shared_with_it_and_reads_just_that(tmp_path: Path) -> None:
    other = {**FIELDS, "revision": "r2"}
    secret = {**FIELDS, "model": "secret"}
    made = group(
        tmp_path, demo={**FIELDS, "keys": ["lmcache"], "unattested": True}, two=other, three=secret
    )
    names = {name: n.fingerprint() for name, n in made.namespaces.items()}
    caller = Caller(
        "west", [], frozenset({names["demo"]}), frozenset({names["demo"], names["two"]})
    )
    reply = told_to(caller, made)
    assert b"secret" not in reply.SerializeToString()
    assert (
        read_told(reply, "east")
        == [
            Told("demo", namespace(), exported=True, imported=True, unattested=True),
            Told("two", namespace(revision="r2"), exported=False, imported=True, unattested=False),
        ]
        == shared_with(made, caller.exported, caller.imported)
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"fingerprint": b"f" * 16}, "is not that of its fingerprint"),
        ({"envelope_json": "{"}, "cannot be read"),
        ({"envelope_json": "[" * 8000}, "cannot be read"),
        (
            {"envelope_json": json.dumps({**FIELDS, "new": 1})},
            "cannot be read: it may be of another",
        ),
        ({"envelope_json": " " * (ENVELOPE_BYTES_MAX + 1)}, "is too long"),
        ({"name": "a\x1b[2J"}, "whose name is none"),
        ({"name": "a" * 65}, "whose name is none"),
        ({"name": ""}, "whose name is none"),
    ],
)
def test_what_a_peer_tells_is_checked(change: dict[str, Any], why: str) -> None:
    reply = reply_of(told())
    for field, value in change.items():
        setattr(reply.namespaces[0], field, value)
    with pytest.raises(PeerError, match=why):
        read_told(reply, "west")


def test_a_field_that_would_move_the_cursor_is_refused() -> None:
    reply = reply_of(told(salt="a"))
    (message,) = reply.namespaces
    message.envelope_json = message.envelope_json.replace('"a"', '"\x9b2J"')
    assert "2J" in message.envelope_json
    with pytest.raises(PeerError, match="cannot be read"):
        read_told(reply, "west")


def test_as_many_as_there_can_be_are_read_and_no_more() -> None:
    full = [told(f"n{n}", revision=f"r{n}") for n in range(NAMESPACES_MAX)]
    assert len(read_told(reply_of(*full), "west")) == NAMESPACES_MAX
    with pytest.raises(PeerError, match="more than there can be"):
        read_told(reply_of(*full, told("more")), "west")


@pytest.mark.parametrize("field", list(Envelope(**FIELDS).fields()))
def test_every_field_that_differs_is_named_and_nothing_crosses(field: str) -> None:
    value = FIELDS.get(field, Envelope(**FIELDS).fields()[field])
    other = value + 1 if isinstance(value, int) else f"{value}x"
    (found,) = match([told()], [told("theirs", **{field: other})])
    if field == "model":  # that is another namespace, not another idea of this one
        assert found.theirs is None
        (found,) = match([told()], [told("demo", **{field: other})])  # unless it is called the same
    assert not (found.same)
    assert not (found.goes)
    assert not (found.comes)
    assert [d.field for d in found.differs] == [field]
    assert f"{field}: {value!r} here, {other!r} there" in found.why("west")
    assert as_json([found], "west")[0]["differs"] == {field: {"ours": value, "theirs": other}}


def test_the_nearest_is_named_and_one_that_is_ours_is_no_other() -> None:
    ours = [told("a"), told("b", revision="r2")]
    theirs = [
        told("x", revision="r2"),
        told("y", kv_dtype="fp8", tp=2),
        told("z", kv_dtype="fp8"),
    ]
    one, two = match(ours, theirs)
    assert two.same
    assert two.goes
    assert two.comes
    assert one.theirs is not None
    assert one.theirs.name == "z"
    assert match(ours, [])[0].why("west") == "west shares no such namespace with this group"


@pytest.mark.parametrize(
    ("ours", "theirs", "goes", "comes", "why"),
    [
        ({}, {}, True, True, ""),
        ({}, {"into": False}, False, True, "west does not import it from here"),
        ({}, {"out": False}, True, False, "west does not export it to here"),
        ({"into": False}, {"out": False}, True, False, ""),
        (
            {"unattested": True},
            {},
            True,
            True,
            "attested blocks alone: west has not unattested = true",
        ),
        (
            {},
            {"unattested": True},
            True,
            True,
            "attested blocks alone: this group has not unattested = true",
        ),
        ({"unattested": True}, {"unattested": True}, True, True, ""),
    ],
)
def test_what_crosses_and_why_not(
    ours: dict[str, Any], theirs: dict[str, Any], goes: bool, comes: bool, why: str
) -> None:
    (found,) = match([told(**ours)], [told("theirs", **theirs)])
    assert (found.goes, found.comes, found.why("west")) == (goes, comes, why)


async def ask_often(link: PeerLink) -> None:
    for _ in range(200):
        await link.namespaces(5.0)


async def test_a_peer_is_asked_over_the_wire(tmp_path: Path) -> None:
    made = Made(tmp_path)
    east = East(made)
    east.told = reply_of(told())
    async with linked(east, made) as link:
        assert read_told(await link.namespaces(5.0), "east") == [told()]
    # What it costs is paid for, like a catalog.
    stingy = East(made, peer_catalog_bytes_per_s=1 << 20)
    stingy.told = reply_of(*(told(f"n{n}", revision=f"r{n}") for n in range(256)))
    async with linked(stingy, made) as link:
        with pytest.raises(ShedError):
            await ask_often(link)


def test_two_namespaces_of_one_key_are_refused_in_group_toml(tmp_path: Path) -> None:
    text = GOOD.replace("[namespaces.demo]\n", '[namespaces.demo]\nkeys = ["sglang-hicache"]\n')
    start = text.index("[namespaces.demo]")
    section = text[start : text.index("[limits]")]
    other = section.replace("[namespaces.demo]", "[namespaces.other]").replace('"bf16"', '"fp8"')
    said = message_of(write(tmp_path, text + other))
    assert 'would be of both "demo" (demo-7b_{hex:64}_{tp_rank}_{k|v}) and "other"' in said
    assert "let the engines write what tells them apart" in said
    good = other.replace('"sglang-hicache"]', '"sglang-hicache:fp8"]')
    assert len(load_group(write(tmp_path, text + good)).namespaces) == 2
    said = message_of(write(tmp_path, text.replace('"sglang-hicache"', '"sglang"')))
    assert "neither a pattern (it has no field in braces) nor one of: sglang-hicache" in said
    assert "group.toml" in said


def test_the_command_shows_the_field_that_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group(tmp_path, demo={**FIELDS, "keys": ["lmcache"], "unattested": True})
    rows = as_json(match([told()], [told("theirs", kv_dtype="fp8")]), "west")
    document = {
        "group": "east",
        "namespaces": {
            "demo": {
                "fingerprint": "ab",
                "envelope": FIELDS,
                "keys": ["{model}@{hex}"],
                "unattested": True,
            }
        },
        "unmatched_keys": 7,
        "peers": [
            {"peer": "west", "problem": "", "namespaces": rows, "others": ["more"]},
            {"peer": "north", "problem": "no connection", "namespaces": [], "others": []},
        ],
    }
    answers: list[Any] = []

    def ask(socket: Path, method: str, *args: object) -> Any:
        assert method == "Namespaces"
        return answers.pop()

    monkeypatch.setattr("federation.cli.health._ask", ask)
    run = ["namespaces", "-c", str(tmp_path / "group.toml")]
    answers.append(engine_pb2.NamespacesAnswer(namespaces_json=json.dumps(document)))
    shown = CliRunner().invoke(app, run, env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    for part in (
        "7 keys in Mooncake are of none",
        "kv_dtype: 'bf16' here, 'fp8' there",
        "keys: {model}@{hex}",
        "no connection",
    ):
        assert part in shown.output
    answers.append(engine_pb2.NamespacesAnswer(namespaces_json=json.dumps(document)))
    assert json.loads(CliRunner().invoke(app, [*run, "--json"]).output) == document
    answers.append("the gateway has no socket: it is not running")
    failed = CliRunner().invoke(app, run)
    assert "it is not running" in str(failed.exception)
