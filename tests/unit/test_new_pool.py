"""`moonmesh new-pool`, from the command line to the pool's watch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from federation.admin_service import AdminService
from federation.cli.main import app
from local_group.process_errors import GroupError
from moonmesh.v1 import engine_pb2
from tests.support.groups import write_group

LEADS = {"leading": {"role": "leader"}}


async def test_a_gateway_says_why_it_is_refused() -> None:
    async def refuse() -> str:
        return "somebody leads"

    raw = engine_pb2.NewPoolRequest().SerializeToString()
    for new_pool, why in ((refuse, "somebody leads"), (None, "")):
        service = AdminService(None, None, None, None, None, new_pool)  # type: ignore[arg-type]
        reply = await service.new_pool(raw, None)  # type: ignore[arg-type]
        assert engine_pb2.NewPoolReply.FromString(reply).refused == why


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    config = write_group(tmp_path, port_base=24000)

    def command(refused: str, status: Any = LEADS) -> Any:
        monkeypatch.setattr("federation.cli.health.ask_new_pool", lambda *_: refused)
        monkeypatch.setattr("federation.cli.health.ask_status", lambda *_: status)
        monkeypatch.setattr("federation.cli.leading._POLL_S", 0.01)
        monkeypatch.setattr("federation.cli.leading.await_leader.__defaults__", (0.05,))
        return CliRunner().invoke(app, ["new-pool", "-c", str(config)])

    return command


def test_it_is_done_once_the_group_is_led(run: Callable[..., Any]) -> None:
    done = run("")
    assert (done.exit_code, done.stdout.strip()) == (
        0,
        'group "east" has the pool of the master 127.0.0.1:24000',
    )
    barred = {"leading": {"role": "follower", "barred": "another pool"}}
    failed = run("", barred)
    assert type(failed.exception) is GroupError
    assert "neither leads nor follows: another pool" in str(failed.exception)


def test_a_refusal_is_said(run: Callable[..., Any]) -> None:
    failed = run("h1:7402 leads this group")
    assert type(failed.exception) is GroupError
    assert "h1:7402 leads this group" in str(failed.exception)
