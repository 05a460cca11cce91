"""What `moonmesh up` and `status` show, and how they ask a gateway; no processes."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from rich.console import Console
from typer.testing import CliRunner

from federation.cli import render
from federation.cli.group import beside_mooncake
from federation.cli.health import ask_status, serving
from federation.cli.main import app, main
from federation.cli.supervise import LiveView, PlainView, ReportView, rebuild
from federation.config import Limits, load_group
from federation.limits.guards import Guards
from federation.limits.names import Failure, GuardName
from federation.limits.ticket import Cost, Ticket
from local_group import process_errors
from local_group.child import Progress
from local_group.errors import MoonmeshError
from local_group.report import ChildReport, GroupReport
from moonmesh.v1 import engine_pb2
from tests.support.groups import environment, write_group

GATEWAY: dict[str, Any] = {
    "group": "east",
    "epoch": 7,
    "certificate_expires": None,
    "peers": [
        {
            "name": "west",
            "address": "127.0.0.1:7502",
            "state": "suspect",
            "reason": "[bold]certificate expired[/nonsense]",
            "breaker": "open",
            "heard_ago_s": 1.5,
            "views": [{"namespace": "demo", "blocks": 12, "age_s": 0.25}],
        },
        {"name": "north", "state": "down", "heard_ago_s": None, "views": []},
        {
            "name": "south",
            "state": "alive",
            "link": "not_heard",
            "quarantine": {
                "reason": "equivocation",
                "detail": "two at [1.2]",
                "for_s": 3.0,
                "healed_by": "a valid statement of a higher epoch",
            },
        },
    ],
    "refused": [{"who": "mallory", "reason": "not in peering.toml", "count": 3}],
    "not_connected": [{"who": "unknown (TLS)", "reason": "it refused us", "count": 2}],
    "store": {"breaker": "closed", "outcomes": {"hit": 4}, "none": None},
    "counters": {},
    "problems": ["the listing is [old]"],
}
REPORT = GroupReport(
    "east",
    "degraded",
    42,
    [ChildReport("master", "ready", 43, 3700.0, 1, 54 << 20, "was killed by SIGKILL")],
    ["store-0 is [dead]"],
)


class FakeGateway:
    """gRPC on a unix socket: health and Admin.Status."""

    def __init__(self, socket: Path, status_json: str) -> None:
        self.server = grpc.server(futures.ThreadPoolExecutor(2))
        self.health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.server)

        def status(_: engine_pb2.StatusRequest, __: object) -> engine_pb2.StatusReply:
            return engine_pb2.StatusReply(status_json=status_json)

        handler = grpc.unary_unary_rpc_method_handler(
            status,
            request_deserializer=engine_pb2.StatusRequest.FromString,
            response_serializer=engine_pb2.StatusReply.SerializeToString,
        )
        self.server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("moonmesh.v1.Admin", {"Status": handler})]
        )
        self.server.add_insecure_port(f"unix:{socket}")
        self.server.start()


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "g.sock"


@pytest.fixture
def gateway(socket: Path) -> Iterator[FakeGateway]:
    fake = FakeGateway(socket, json.dumps(GATEWAY))
    yield fake
    fake.server.stop(None).wait()


async def test_serving(gateway: FakeGateway, socket: Path, tmp_path: Path) -> None:
    assert await serving(socket)
    gateway.health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    assert not await serving(socket)
    assert not await serving(tmp_path / "none.sock")


def test_the_gateway_s_status_is_asked(gateway: FakeGateway, socket: Path, tmp_path: Path) -> None:
    assert ask_status(socket) == GATEWAY
    gateway.server.stop(None).wait()
    assert str(ask_status(socket)).startswith("the gateway ")
    socket.touch()
    assert ask_status(socket, timeout=0.5) == "the gateway does not answer: UNAVAILABLE"


@pytest.mark.parametrize("text", ["[]", "not json"])
def test_a_status_that_is_none(socket: Path, text: str) -> None:
    fake = FakeGateway(socket, text)
    assert ask_status(socket) == "the gateway's status is not JSON"
    fake.server.stop(None).wait()


def shown(report: GroupReport, gateway: dict[str, Any] | None, width: int = 140) -> str:
    stream = io.StringIO()
    render.print_status(report, gateway, Console(file=stream, width=width, highlight=False))
    return stream.getvalue()


def test_status_for_people() -> None:
    text = shown(REPORT, GATEWAY, 160)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == 'group "east" is degraded (supervisor pid 42)'
    assert "! store-0 is [dead]" in lines
    assert "master ready 43 1 h 1 min 1 54 MiB was killed by SIGKILL" in lines
    # What peers say is shown as it is, never taken for markup.
    assert (
        "west 127.0.0.1:7502 suspect open 1.5 s ago demo: 12 blocks, 0.25 s old "
        "[bold]certificate expired[/nonsense]"
    ) in lines
    assert "north - down - - - -" in lines
    assert "south - alive, in quarantine, does not hear us - - - -" in lines
    assert "! south is in quarantine for 3.0 s (equivocation): two at [1.2]" in text.replace(
        "  !", "!"
    )
    assert "moonmesh peer release south" in text
    assert "mallory 3 not in peering.toml" in lines
    assert lines.index("not connected times reason") + 1 == lines.index(
        "unknown (TLS) 2 it refused us"
    )
    assert "store breaker closed, outcomes (hit 4)" in lines
    assert "! the listing is [old]" in lines
    assert "counters" not in text


def test_a_catalog_that_cannot_be_had_is_told_with_the_reason() -> None:
    views = [{"namespace": "demo", "blocks": 0, "trouble": "it [refused]"}, {"trouble": ""}, "odd"]
    text = shown(REPORT, {"peers": [{"name": "west", "views": views}]}, 200)
    assert "  ! the catalog of west for demo: it [refused]\n" in text
    assert text.count("the catalog of") == 1


def guards_shown(outgoing: Any = None, incoming: Any = None) -> list[str]:
    peer = {"name": "west", "guards": {"outgoing": outgoing, "incoming": incoming}}
    lines = [" ".join(line.split()) for line in shown(REPORT, {"peers": [peer]}, 200).splitlines()]
    return [line for line in lines if line.startswith("guards of")]


def test_guards_at_rest_are_not_shown() -> None:
    guards = Guards(Limits(), ["west"], random.Random(1))["west"]
    assert guards_shown(guards.outgoing.status(0.0), guards.incoming.status(0.0)) == []


def test_guards_that_are_not_at_rest_are_one_line() -> None:
    guards = Guards(Limits(peer_retries_few=2, peer_retry_percent=0), ["west"], random.Random(1))
    out, into = guards["west"].outgoing, guards["west"].incoming
    guards.resize_pool(1 << 30)
    out.admit(Cost(retry=True), 0.0)
    for _ in range(5):
        out.note(Failure.ERROR, 0.0)
    out.admit(Cost(), 0.0)
    ticket = into.admit(Cost(), 0.0)
    assert isinstance(ticket, Ticket)
    ticket.lease(3 << 19, 0.0)
    into.refuse(GuardName.WINDOW, 0.0)
    assert guards_shown(out.status(0.5), into.status(0.5)) == [
        "guards of west out: breaker open, failed lately (error 5), refused lately (breaker 1), "
        "retries left 1 of 2; in: refused lately (window 1), leased 1.5 of 64 MiB"
    ]
    assert guards_shown(out.status(1000.0), into.status(1000.0)) == [
        "guards of west out: breaker half_open, retries left 1 of 2"
    ], "what is long past is not told"


def test_odd_guards_of_a_gateway_do_no_harm() -> None:
    assert guards_shown("x", {"lately": 3, "paused_s": [], "leased_bytes": "many"}) == []
    assert guards_shown({"off": ["breaker"]}) == ["guards of west out: OFF: breaker"]


def test_status_of_a_stopped_group() -> None:
    assert shown(GroupReport("east", "stopped"), None).strip() == 'group "east" is stopped'


def test_odd_shapes_from_a_gateway_do_no_harm() -> None:
    text = shown(REPORT, {"peers": "x", "refused": [1], "problems": 3, "n": [1, {"a": 2}]})
    assert "1; a 2" in text


def test_status_for_programs() -> None:
    answer = json.loads(render.as_json(REPORT, GATEWAY))
    assert answer["ready"] is False
    assert answer["gateway"]["epoch"] == 7
    assert answer["children"][0]["restarts"] == 1
    answer = json.loads(render.as_json(REPORT, "the gateway has no socket"))
    assert answer["gateway"] is None
    assert answer["gateway_problem"] == "the gateway has no socket"


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (5.9, "5 s"), (61, "1 min"), (7320, "2 h 2 min")]
)
def test_durations(seconds: float | None, text: str) -> None:
    report = GroupReport("e", "ready", 1, [ChildReport("m", "ready", 2, seconds)])
    assert text in shown(report, None)


def test_progress_in_lines(tmp_path: Path) -> None:
    group = load_group(write_group(tmp_path, port_base=24000, gateway={"enabled": True}))
    stream = io.StringIO()
    view = PlainView(group, stream)
    view.update(Progress("master", "starting", "waiting for its admin HTTP to answer"))
    view.update(Progress("master", "ready", seconds=0.1234))
    view.started({})
    view.close()
    first, second, third = stream.getvalue().splitlines()
    assert first == "master: starting, waiting for its admin HTTP to answer"
    assert second == "master: ready after 123 ms"
    assert third.startswith('group "east" is ready: master 127.0.0.1:24000, engines unix:')
    assert "peers 127.0.0.1:24002; logs in " in third


def test_progress_on_a_terminal(tmp_path: Path) -> None:
    group = load_group(write_group(tmp_path, port_base=24000))
    stream = io.StringIO()
    view = LiveView(group, Console(file=stream, force_terminal=True, width=100))
    view.update(Progress("master", "starting", "waiting for [it]"))
    view.update(Progress("master", "ready", seconds=0.2))
    view.started({})
    view.close()
    assert "waiting for [it]" in stream.getvalue()
    assert "200 ms" in stream.getvalue()


def test_a_report_crosses_the_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group = load_group(write_group(tmp_path, port_base=24000))
    reading, writing = os.pipe()
    view = ReportView(group, writing)
    view.update(Progress("master", "ready", "", 0.2))
    view.failed(process_errors.PortInUse("port 1 is in use", where="w", hint="h"))
    view.close()
    view.update(Progress("master", "stopped"))  # after it: the log alone
    with os.fdopen(reading) as pipe:
        progress, error = map(json.loads, pipe)
    assert Progress(*progress["progress"]) == Progress("master", "ready", "", 0.2)
    again = rebuild(*error["error"])
    assert type(again) is process_errors.PortInUse
    assert str(again) == "w: port 1 is in use\n  h"
    assert capsys.readouterr().out.count("master: ") == 2


def test_a_start_without_the_gateway_crosses_the_pipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = load_group(write_group(tmp_path, port_base=24000, gateway={"enabled": True}))
    reading, writing = os.pipe()
    ReportView(group, writing).started({"gateway": process_errors.ChildDied("it died", hint="h")})
    with os.fdopen(reading) as pipe:
        (message,) = map(json.loads, pipe)
    again = rebuild(*message["started"]["gateway"])
    assert type(again) is process_errors.ChildDied
    captured = capsys.readouterr()
    assert captured.err.startswith("error MM205: it died\n")
    assert 'group "east" runs without the federation: Mooncake is ready' in captured.out
    assert "the gateway is tried again until it is ready" in captured.out


def test_a_group_goes_on_when_whoever_waited_has_gone(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    view = ReportView(load_group(write_group(tmp_path, port_base=24000)), writing)
    os.close(reading)
    view.update(Progress("master", "ready"))
    view.started({})


def test_the_gateway_is_one_more_child(tmp_path: Path) -> None:
    gateway = {"enabled": True, "engines_tcp": True, "peering": "peering.toml"}
    path = write_group(tmp_path, port_base=24000, gateway=gateway)
    (spec,) = beside_mooncake(load_group(path), path)
    assert [use.port for use in spec.ports] == [24002, 24003]
    assert spec.argv[1:] == ("-m", "federation.gateway_process", "-c", str(path))
    path = write_group(tmp_path, port_base=24000)
    assert beside_mooncake(load_group(path), path) == ()


def test_help_names_the_commands() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    for word in ("up", "down", "status"):
        assert word in result.output
    assert "report-fd" not in CliRunner().invoke(app, ["up", "--help"]).output


def test_errors_are_told_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["moonmesh", "status", "-c", str(tmp_path / "no[ne].toml")])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("error MM101: ")
    assert "no[ne].toml: there is no such file" in told.replace("\n", "")


def test_codes_are_given_once() -> None:
    import importlib
    import pkgutil

    import federation
    import local_group

    for package in (local_group, federation):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    classes: list[type[MoonmeshError]] = [MoonmeshError]
    for each in classes:
        classes += each.__subclasses__()
    own: dict[str, str] = {}
    for each in classes:
        code = vars(each).get("code")  # a subclass may share its parent's by not naming one
        if code is not None:
            assert own.setdefault(code, each.__qualname__) == each.__qualname__, code


def test_the_command_line_loads_little() -> None:
    """`moonmesh --help` is quick because commands import what they need when they run."""
    heavy = [
        "pydantic",
        "grpc",
        "aiohttp",
        "numpy",
        "mooncake",
        "psutil",
        "cryptography",
        "asyncio",
    ]
    script = f"import sys, federation.cli.main; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
        check=True,
    )
    assert result.stdout.strip() == "[]"
