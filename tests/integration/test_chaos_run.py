"""The chaos runner on real groups: what holds is said to hold, what breaks ends the run with 1."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as Xml

import psutil
import pytest

from chaos.cleanup import MARK, marked, runs_folder
from tests.support.groups import CHAOS_PORTS, command, environment, moonmesh
from tests.support.own_tmp import own_tmp
from tests.support.wait import wait_for

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

TOPOLOGY = """
[topology]
groups = ["east", "west"]
dram = "128 MiB"
hostile = { evil = ["demo"] }
"""
LENIENT = """
[invariants]
local_p99 = { off = "the machine runs other tests; the suite smoke compares latencies" }
deadlines = { allowed_share = 0.05 }
errors = { given_up_share = 0.5 }
"""
"""For a machine that runs other tests beside this one."""
CUT = f"""
name = "cut"
summary = "the network is cut"
workload = {{ seconds = 10 }}
{TOPOLOGY}
[[steps]]
do = "link"
mode = "cut"
at = 0.5
lasts = 1
source = "east"
to = "west"
{LENIENT}
returns = {{ within_s = 8 }}
"""
KILLED = f"""
name = "killed"
summary = "SIGKILL to a gateway"
workload = {{ seconds = 8 }}
{TOPOLOGY}
[[steps]]
do = "kill"
at = 0.5
group = "east"
part = "gateway"
{LENIENT}
"""
LIAR = f"""
name = "liar"
summary = "a peer that sends other bytes than it says"
workload = {{ seconds = 3, peer_owners = ["east", "west", "evil"] }}
{TOPOLOGY}
[[steps]]
do = "hostile"
at = 0.2
lasts = 2.5
name = "evil"
target = "west"
answer = "wrong-bytes"
claims = ["east"]
{LENIENT}
counters = [{{ group = "west", name = "moonmesh_digest_mismatch_total" }}]
"""
IMPOSSIBLE = f"""
name = "impossible"
summary = "nothing is broken, and a refusal is expected nevertheless"
workload = {{ seconds = 1 }}
{TOPOLOGY}
{LENIENT}
wrong_bytes = {{ verified_mib = 1 }}
refused = [{{ group = "west", who = "evil", says = "anything" }}]
"""


@pytest.fixture(scope="module", autouse=True)
def _own_tmp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs of other tests do not clean up after a run that is killed here."""
    tmp_path_factory.getbasetemp()  # in the TMPDIR of before
    with own_tmp():
        yield


def write(folder: Path, **files: str) -> list[str]:
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text)
    return [str(folder / f"{name}.toml") for name in files]


def test_what_holds_ends_with_0_and_reports(tmp_path: Path) -> None:
    report, junit = tmp_path / "report.json", tmp_path / "junit.xml"
    files = write(tmp_path, cut=CUT, liar=LIAR)
    done = moonmesh(
        "chaos", "run", *files, "--seed", "5", "--port-base", CHAOS_PORTS,
        "--json", report, "--junit", junit,
        timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    assert [s["name"] for s in found["scenarios"]] == ["cut", "liar"]
    assert all(s["held"] for s in found["scenarios"])
    assert all(s["figures"]["verified_bytes"] > 20 << 20 for s in found["scenarios"])
    assert sum(s["figures"]["wrong_bytes"] for s in found["scenarios"]) == 0
    assert found["left"] == []
    assert Xml.parse(junit).getroot().get("failures") == "0"
    again = moonmesh("chaos", "report", report)
    assert again.returncode == 0
    assert "cut" in again.stdout


class AfterAKill(NamedTuple):
    """What a run was like that came after one whose runner was killed."""

    record: str
    """The id of the killed run."""
    left: int
    """Processes that it left."""
    done: subprocess.CompletedProcess[str]
    """The run after it."""


@pytest.fixture(scope="module")
def after_a_kill(tmp_path_factory: pytest.TempPathFactory) -> AfterAKill:
    (file,) = write(tmp_path_factory.mktemp("killed"), impossible=IMPOSSIBLE)
    arguments = ["chaos", "run", file, "--seed", "5", "--port-base", CHAOS_PORTS]
    runner = subprocess.Popen(
        command(*arguments),
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    record = ""

    def running() -> bool:
        nonlocal record
        for entry in runs_folder().glob(f"{runner.pid}-*.json"):
            record = entry.stem
        return bool(record) and len(list(marked(record, [runner.pid]))) >= 6

    try:
        wait_for(running, 60, "the groups of the run")
    finally:
        os.kill(runner.pid, signal.SIGKILL)
        runner.wait()
    left = len(list(marked(record)))
    return AfterAKill(record, left, moonmesh(*arguments, timeout=120))


def test_what_a_killed_runner_leaves_is_removed_by_the_next(after_a_kill: AfterAKill) -> None:
    record = after_a_kill.record
    assert after_a_kill.left, "nothing was left: this shows nothing"
    assert f"cleaned up after the run {record}" in after_a_kill.done.stdout
    assert not list(marked(record))
    assert not (runs_folder() / f"{record}.json").exists()


def test_a_broken_invariant_ends_with_1_and_says_how_to_repeat_it(after_a_kill: AfterAKill) -> None:
    done = after_a_kill.done
    assert done.returncode == 1, done.stdout + done.stderr
    flat = re.sub(r"\s+", " ", done.stdout)
    assert "impossible, seed 5:" in flat
    assert "refused evil: 0, and not says 'anything'" in flat
    assert "--seed 5" in flat
    assert "again: moonmesh chaos run" in flat
    assert "wrong_bytes:" not in flat, "what held is not called broken"


def test_an_interrupted_run_takes_everything_down(tmp_path: Path) -> None:
    (file,) = write(tmp_path, killed=KILLED)
    report = tmp_path / "report.json"
    runner = subprocess.Popen(
        command("chaos", "run", file, "--port-base", CHAOS_PORTS, "--json", str(report)),
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert runner.stdout is not None
    for line in runner.stdout:
        if "SIGKILL to gateway" in line:
            runner.send_signal(signal.SIGTERM)
            break
    rest = runner.stdout.read()
    assert runner.wait(60) == 128 + signal.SIGTERM, rest
    assert "stopping" in rest
    found = json.loads(report.read_text())
    assert not found["held"]
    assert [(s["name"], s["error"]) for s in found["scenarios"]] == [("killed", "interrupted")]
    assert not list(runs_folder().glob(f"{runner.pid}-*.json"))
    assert not [pid for pid in psutil.pids() if _started_by(pid, runner.pid)]


def _started_by(pid: int, runner: int) -> bool:
    """Whether a process carries the mark of a run of `runner`."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).environ().get(MARK, "").startswith(f"{runner}-")
    return False
