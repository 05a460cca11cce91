"""`moonmesh peer release`, from the command line to the engine; and what is told of our load."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from federation.admin_service import AdminService
from federation.cli.main import app
from federation.counters import counters
from federation.errors import MoonmeshError, UsageError
from federation.peers.load import SERVED_BYTES, LoadMeter
from federation.peers.side import PeerSide
from gossip.engine import GossipEngine
from moonmesh.v1 import engine_pb2
from tests.support.gossip import engine, says
from tests.support.groups import write_group


def service(east: GossipEngine | None) -> AdminService:
    sessions = SimpleNamespace(links={"west": None}, answer=lambda: None)
    side = None if east is None else PeerSide(None, east, sessions, None)  # type: ignore[arg-type]
    return AdminService(None, None, side, None, None)  # type: ignore[arg-type]


async def asked(east: GossipEngine | None, peer: str) -> engine_pb2.ReleasePeerReply:
    raw = engine_pb2.ReleasePeerRequest(peer=peer).SerializeToString()
    reply = await service(east).release_peer(raw, None)  # type: ignore[arg-type]
    return engine_pb2.ReleasePeerReply.FromString(reply)


async def test_a_peer_is_released_once() -> None:
    east = engine("east", "west")
    east.receive("west", says(), 0.0)
    east.receive("west", says(wall_time_ms=1), 0.0)
    assert not east.pullable("west", 0.0)
    assert await asked(east, "west") == engine_pb2.ReleasePeerReply(
        known=True, reason="equivocation"
    )
    assert east.pullable("west", 0.0)
    assert await asked(east, "west") == engine_pb2.ReleasePeerReply(known=True)


async def test_who_is_no_peer_is_not_released() -> None:
    assert await asked(engine("east", "west"), "wset") == engine_pb2.ReleasePeerReply(
        peers=["west"]
    )
    assert await asked(None, "west") == engine_pb2.ReleasePeerReply()


def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reply: engine_pb2.ReleasePeerReply | str
) -> Result:
    monkeypatch.setattr("federation.cli.health.ask_release", lambda *_: reply)
    config = write_group(tmp_path, port_base=24000)
    return CliRunner().invoke(app, ["peer", "release", "west", "-c", str(config)])


@pytest.mark.parametrize(
    ("reason", "code", "words"),
    [
        ("equivocation", 0, "west is out of quarantine (equivocation)"),
        ("", 1, "west is not in quarantine"),
    ],
)
def test_the_exit_code_tells_whether_it_was_in_quarantine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str, code: int, words: str
) -> None:
    reply = engine_pb2.ReleasePeerReply(known=True, reason=reason)
    result = run(tmp_path, monkeypatch, reply)
    assert (result.exit_code, result.stdout.strip()) == (code, words)


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (engine_pb2.ReleasePeerReply(peers=["a", "b"]), UsageError, "its peers: a, b"),
        ("the gateway does not answer: UNAVAILABLE", MoonmeshError, "is the group up?"),
    ],
)
def test_what_cannot_be_done_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reply: Any,
    kind: type[MoonmeshError],
    words: str,
) -> None:
    result = run(tmp_path, monkeypatch, reply)
    assert type(result.exception) is kind
    assert words in str(result.exception)


def test_load_is_measured() -> None:
    serving: Any = SimpleNamespace(pulls=3)
    meter = LoadMeter()
    meter.measure(serving, 0.0)
    counters.add(SERVED_BYTES, 5000)
    assert meter.measure(serving, 2.0) == (3, 2500)
    serving.pulls = 0
    assert meter.measure(serving, 3.0) == (0, 0)
