"""`moonmesh prefetch`, and how an engine is told that its keys are not its gateway's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from federation.cli.main import app
from federation.cli.prefetch import _known
from federation.config import Limits
from federation.errors import UsageError
from federation.identity import Envelope
from federation.keys.namespace import Namespace
from federation.router import KEYS_MAX
from federation.transfer.handover import EngineService
from federation.transfer.slots import Slots
from moonmesh.v1 import engine_pb2
from tests.support.groups import write_group

FIELDS: dict[str, Any] = {
    "model": "demo-7b",
    "revision": "r1",
    "engine": "e",
    "kv_dtype": "bf16",
    "block_tokens": 64,
    "layout": "page_first",
}
PLAIN = Namespace(**FIELDS, keys=("x/{hex}", "lmcache"))


def run(folder: Path, *arguments: str, text: str | None = None) -> Any:
    write_group(
        folder, port_base=7400, namespaces={"demo": FIELDS, "other": {**FIELDS, "model": "m"}}
    )
    options = ["prefetch", "-c", str(folder / "group.toml"), "--seconds", "0.1", *arguments]
    return CliRunner().invoke(app, options, input=text)


@pytest.mark.parametrize(
    ("arguments", "text", "why"),
    [
        (["k"], None, "(?s)which namespace are the keys of?.*are: demo, other"),
        (["--namespace", "none", "k"], None, "no namespace 'none' here"),
        (["--namespace", "demo"], None, "give the chain's keys, or a file that has them"),
        (["--namespace", "demo", "--keys-file", "-", "k"], "k", "give the chain's keys"),
        (["--namespace", "demo", "--keys-file", "-"], "\n\n", "0 keys; a chain has 1 to 65536"),
        (["--namespace", "demo", "--keys-file", "-"], "k\n" * (KEYS_MAX + 1), "65537 keys"),
        (["--namespace", "demo", "--keys-file", "nowhere"], None, "cannot be read"),
        (["--namespace", "demo", "k", ""], None, r"an empty key \(number 2 of the chain\)"),
        (["--namespace", "demo", "é" * 513], None, r"a key over 1024 bytes \(number 1 of the"),
    ],
)
def test_what_cannot_be_prefetched_is_told(
    tmp_path: Path, arguments: list[str], text: str | None, why: str
) -> None:
    failed = run(tmp_path, *arguments, text=text)
    assert isinstance(failed.exception, UsageError)
    with pytest.raises(UsageError, match=why):
        raise failed.exception


def test_what_cannot_be_asked_for_is_not_taken_for_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def all_here(group: object, space: object, chain: list[str], seconds: float) -> tuple[int, int]:
        asked.append(chain)
        return 1, len(chain)

    monkeypatch.setattr("federation.cli.prefetch._run", all_here)
    done = run(tmp_path, "--namespace", "demo", "a", "b,c", "d" * 1024)
    assert done.output == (
        "2 of 3 blocks are here; 1 were brought; 1 cannot be asked for: a comma in the key\n"
    )
    assert done.exit_code == 1
    assert asked == [["a", "d" * 1024]]
    assert run(tmp_path, "--namespace", "demo", "a", "b").exit_code == 0


async def attached(namespace: Envelope, patterns: list[str]) -> engine_pb2.AttachReply:
    service = EngineService(
        group="east",
        known=[PLAIN],
        namespaces=[PLAIN.fingerprint()],
        exported=[],
        ledger=None,  # type: ignore[arg-type]
        puller=None,  # type: ignore[arg-type]
        promise=lambda fingerprint, key: True,
        given=lambda block, before: None,
        read_on=lambda fingerprint, before: None,
        prefetched=lambda block, before: None,
        touch=lambda fingerprint: None,
        limits=Limits(),
        on_error=lambda what: None,
        slots=Slots(1 << 20),
    )
    request = engine_pb2.AttachRequest(envelope_json=namespace.canonical(), patterns=patterns)
    raw = await service.attach(request.SerializeToString(), None)  # type: ignore[arg-type]
    return engine_pb2.AttachReply.FromString(raw)


async def test_an_engine_works_with_its_gateway_only_where_both_store_under_the_same_keys() -> None:
    patterns = [pattern.text for pattern in PLAIN.patterns]
    assert (await attached(PLAIN, patterns)).federated
    assert (await attached(PLAIN, patterns[::-1])).federated
    for wrong in ([], patterns[:1], [*patterns, "y/{hex}"]):
        reply = await attached(PLAIN, wrong)
        assert not reply.federated
        assert "x/{hex}" in reply.reason
        assert "at the engine: give it the same `keys`" in reply.reason
    unknown = Envelope(**{**FIELDS, "tp": 2})
    assert (await attached(unknown, [])).reason == "no namespace of group.toml has this envelope"


def test_of_what_the_master_cannot_say_it_is_not_said_that_it_is_here() -> None:
    assert _known({"in memory": 9, "on disk": 0, "being written": None}) == {"in memory", "on disk"}
