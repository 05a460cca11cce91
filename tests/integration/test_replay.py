"""`moonmesh bench replay` and `moonmesh demo` on real groups."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from federation.bench.piped import last_lines
from federation.bench.workspace import reap_abandoned
from federation.cli import demo, main
from tests.support.groups import command, environment, free_port_base
from tests.support.own_tmp import own_tmp
from tests.support.wait import wait_for

pytestmark = pytest.mark.real


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A TMPDIR that must be empty, and unused, in the end.

    It comes after `tmp_path`, which pytest makes in the TMPDIR of before.
    """
    with own_tmp() as path:
        yield path
        left = processes_of(path)
        for process in left:
            process.kill()
        names = [p.name for p in path.iterdir()]
    assert left == []
    assert names == []


def processes_of(path: Path) -> list[psutil.Process]:
    """Processes that name `path` in their command line or environment, but for this one."""
    found = []
    for process in psutil.process_iter():
        try:
            text = " ".join([*process.cmdline(), *process.environ().values()])
        except psutil.Error:
            continue
        if str(path) in text and process.pid != os.getpid():
            found.append(process)
    return found


def replay_command(*more: str) -> list[str]:
    # No --port-base of tests here: a bench looks for free ports below Mooncake's own.
    return command("bench", "replay", *more)


def figures_of(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    report = json.loads(path.read_text())
    return report, report["figures"]


def test_a_replay_in_all_modes(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = subprocess.run(
        replay_command("--requests", "180", "--rate", "40", "--deadline-ms", "5000", "--json",
            str(out),),
        env=environment(), capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    report, found = figures_of(out)
    assert set(found) >= {
        "requests", "blocks", "local_hits", "peer_hits", "misses", "hit_rate",
        "isolated_hit_rate", "one_pool_hit_rate", "one_pool_lru_hit_rate", "ratio_to_one_pool",
        "wrong_bytes", "deadline_overruns", "deadline_overruns_raw", "worst_overrun_ms",
        "worst_overrun_raw_ms", "peer_bytes", "metadata_bytes", "view_age_requests",
        "pull_ms_p50", "pull_ms_p99", "stale_misses", "wasted_pulls", "wasted_share", "metadata_share",
    }  # fmt: skip
    assert found["requests"] == 180
    assert found["local_hits"] + found["peer_hits"] + found["misses"] == found["blocks"]
    assert found["peer_hits"] > 0
    assert found["peer_bytes"] >= found["peer_hits"] * 8192
    assert found["wrong_bytes"] == found["errors"] == 0
    assert found["isolated_hit_rate"] < found["hit_rate"] <= found["one_pool_lru_hit_rate"] * 1.001
    # Real Mooncake with room for all must do what plain arithmetic says, within what is in flight.
    assert found["one_pool_hit_rate"] == pytest.approx(found["one_pool_lru_hit_rate"], rel=0.05)
    assert {t["name"] for t in report["targets"]} == {
        "wrong_bytes", "deadline_overruns", "ratio_to_one_pool", "wasted_share", "metadata_share",
    }  # fmt: skip
    assert "federated: 180 requests" in result.stderr
    assert report["interrupted"] is False


def test_local_calls_are_measured_against_plain_mooncake(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = subprocess.run(
        command("bench", "local", "--rounds", "12", "--exists-keys", "300", "--json", str(out)),
        env=environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    report, found = figures_of(out)
    for call in ("get", "put", "exists"):
        times = found[call]
        assert times["rounds"] == 12
        assert 0 < times["plain_ms_p50"] <= times["plain_ms_p99"]
        assert 0 < times["federated_ms_p50"] <= times["federated_ms_p99"]
    assert len(report["targets"]) == 4


def test_a_pull_is_measured_against_its_parts(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = subprocess.run(
        command("bench", "pull", "--rounds", "2", "--blocks", "32", "--block-bytes", "262144",
            "--singles", "8", "--shaped-singles", "20", "--json", str(out),),
        env=environment(), capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    report, found = figures_of(out)
    parts = [
        found[f"part: {name}"]["core_s_per_gb"] for name in ("get", "stream", "digests", "put")
    ]
    assert all(cost > 0 for cost in parts)
    inside, deferred = found["put inside"], found["put deferred"]
    assert inside["parts_core_s_per_gb"] == pytest.approx(sum(parts))
    assert deferred["parts_core_s_per_gb"] == pytest.approx(sum(parts[:3]))
    for pull in (inside, deferred):
        assert pull["core_s_per_gb of engine"] > 0
        assert pull["cost_over_parts"] > 0
    assert 0 < found["first_block_ms_p50"] <= found["first_block_ms_p99"]
    judged = {target["name"]: target["value"] for target in report["targets"]}
    assert len(judged) == 8
    assert all(value is not None for value in judged.values())
    assert 0 < judged["share of a shaped link"] < 1.1


def test_interrupted_it_takes_all_down_and_prints_what_it_has(place: Path, tmp_path: Path) -> None:
    sign = signal.SIGTERM  # the others end a session alike: see tests/unit/test_bench_session.py
    out, log = tmp_path / "out.json", tmp_path / "log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            replay_command("--requests", "700", "--rate", "20", "--json", str(out)),
            env=environment(), stdout=output, stderr=output,
        )  # fmt: skip
    try:
        wait_for(lambda: "federated: 7" in log.read_text(), 90, f"replies:\n{last_lines(log)}")
        process.send_signal(sign)
        assert process.wait(60) == 128 + sign, log.read_text()
    finally:
        process.kill()
        process.wait()
    report, found = figures_of(out)
    assert report["interrupted"] is True
    assert 0 < found["requests"] < 700
    assert found["isolated_hit_rate"] is None
    assert {t["name"]: t["met"] for t in report["targets"]}["ratio_to_one_pool"] is None
    assert "interrupted" in log.read_text()


def test_what_a_killed_replay_leaves_is_taken_down_by_the_next_one(
    place: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            replay_command("--requests", "700", "--rate", "20"),
            env=environment(), stdout=output, stderr=output,
        )  # fmt: skip
    try:
        wait_for(lambda: "federated: 7" in log.read_text(), 90, f"replies:\n{last_lines(log)}")
    finally:
        process.kill()
        process.wait()
    (folder,) = place.iterdir()
    left = {p.pid for p in processes_of(place)}
    assert len(left) >= 8  # supervisors, masters, stores, gateways
    said: list[str] = []
    reap_abandoned(said.append)
    assert str(folder) in said[0]
    wait_for(lambda: not processes_of(place), 30, "engines to end, whose bench is gone")


def test_a_malformed_line_ends_it_before_anything_starts(place: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    good = '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1]}\n'
    trace.write_text(good * 2 + "{}\n" + good)
    result = subprocess.run(
        replay_command("--trace", str(trace)),
        env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert result.returncode == 1
    assert f"{trace}:3: timestamp is missing" in result.stderr.replace("\n", "")
    assert "Traceback" not in result.stderr


@pytest.fixture
def port_bases() -> tuple[int, int]:
    """Claimed in the TMPDIR that all tests share: to be asked for before `place`."""
    return free_port_base(), free_port_base()


def test_the_demo_with_the_worked_example(
    port_bases: tuple[int, int], place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The very files, but for their ports, which may be taken on a machine that runs tests.
    example = tmp_path / "example"
    shutil.copytree(demo.find_example(), example)
    for base, free in zip((7400, 7500), port_bases, strict=True):
        for path in example.glob("*/*.toml"):
            text = re.sub(rf"\b{base}\b", str(free), path.read_text())
            path.write_text(text.replace(f":{base + 2}", f":{free + 2}"))
    monkeypatch.setattr(demo, "find_example", lambda: example)
    result = CliRunner().invoke(main.app, ["demo", "--requests", "200", "--rate", "80"])
    assert result.exit_code == 0, result.output
    for expected in ("isolated", "federated", "one pool", "p50", "engine.get", "serve.pull"):
        assert expected in result.output
    assert "through east, west" in result.output or "through west, east" in result.output


def test_the_demo_needs_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "EXAMPLE", Path("no") / "such")
    result = CliRunner().invoke(main.app, ["demo"])
    assert "run it there, as ./dev demo" in str(result.exception)
