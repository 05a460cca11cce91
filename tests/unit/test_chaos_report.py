"""Reports: what is broken is named with its seed and the command that repeats it."""

from __future__ import annotations

import io
import json
import os
import shlex
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest
from rich.console import Console
from typer.testing import CliRunner

from chaos.ablate import ablate, as_markdown
from chaos.cli import _word, app
from chaos.errors import INTERRUPTED
from chaos.invariants.verdict import Verdict
from chaos.report import as_dict, read_json, show, write_all, write_json, write_junit
from chaos.runner import Outcome, Result
from chaos.targets import targets
from federation.errors import UsageError
from federation.limits.names import GuardName
from federation.limits.switches import VARIABLE

FIGURES = {
    "verified_bytes": 3 * 10**9,
    "wrong_bytes": 0,
    "peer_reads_during_fault": 1000,
    "of_them_in_time": 999,
    "gateway_memory_of_cap": 0.4,
    "local_p99": {"fault_ms": 2.0, "allowed_ms": 2.1},
}


def result(name: str, *verdicts: Verdict, error: str = "", round_: int = 0) -> Result:
    return Result(
        name,
        "a summary",
        f"smoke/{name}",
        7 + round_,
        round_,
        seconds=1.5,
        verdicts=list(verdicts),
        error=error,
        figures={} if error else dict(FIGURES),
    )


def suite(count: int) -> list[Result]:
    """So many scenarios that held."""
    return [result(f"other-{i}", GOOD) for i in range(count)]


GOOD = Verdict("wrong_bytes", True, 0, "0")
BAD = Verdict("deadlines", False, 3, "0 of the calls", "the latest by 30 ms")
OFF = Verdict("acknowledged", True, off="killed")


def outcome() -> Outcome:
    return Outcome(
        results=[
            result("peer-frozen", GOOD, OFF),
            result("broken", GOOD, BAD),
            result("odd", error="no ports\x00"),
        ],
        seconds=9,
    )


def text(report: dict[str, object]) -> str:
    out = io.StringIO()
    show(report, Console(file=out, width=200))
    return out.getvalue()


def test_a_broken_invariant_is_named_with_seed_and_command() -> None:
    shown = text(as_dict(outcome(), 7))
    assert "deadlines: 3, and not 0 of the calls (the latest by 30 ms)" in shown
    assert "again: moonmesh chaos run smoke/broken --seed 7" in shown
    assert "NOT RUN" in shown
    assert "acknowledged off" in shown


def test_the_outcome_holds_only_if_all_ran_and_held_and_nothing_is_left() -> None:
    assert not outcome().held
    assert Outcome(results=[result("a", GOOD, OFF)]).held
    assert not Outcome(results=[result("a", GOOD)], left=["process 1"]).held
    assert not Outcome(results=[result("a", error="x")]).held
    assert not Outcome(results=[result("a", GOOD)], interrupted=2).held
    assert not Outcome().held, "nothing was run"


def test_a_scenario_that_was_interrupted_is_told_as_not_finished(tmp_path: Path) -> None:
    stopped = Outcome(results=[result("a", GOOD), result("b", error=INTERRUPTED)], interrupted=2)
    assert not stopped.broke, "there is nothing to look at"
    report = as_dict(stopped, 7)
    assert report["held"] is False
    assert [s["error"] for s in report["scenarios"]] == ["", "interrupted"]
    assert "not finished" in text(report)
    assert not write_all(
        report, json_file=tmp_path / "k.json", junit=tmp_path / "k.xml", html=tmp_path / "k.html"
    )
    suites = Xml.parse(tmp_path / "k.xml").getroot()
    assert (suites.get("tests"), suites.get("errors")) == ("2", "1")
    assert "not finished" in (tmp_path / "k.html").read_text()
    assert CliRunner().invoke(app, ["report", str(tmp_path / "k.json")]).exit_code == 1


def test_a_report_that_cannot_be_written_keeps_no_other_from_it(tmp_path: Path) -> None:
    junit, html = tmp_path / "k.xml", tmp_path / "k.html"
    (error,) = write_all(as_dict(outcome(), 7), json_file=tmp_path, junit=junit, html=html)
    assert "Is a directory" in str(error)
    assert junit.is_file()
    assert html.is_file()


@pytest.mark.parametrize(("verdict", "code"), [(GOOD, 2), (BAD, 1)])
def test_what_broke_decides_the_exit_code_before_what_was_not_written(
    tmp_path: Path, verdict: Verdict, code: int
) -> None:
    write_json(as_dict(Outcome(results=[result("a", verdict)]), 7), tmp_path / "k.json")
    again = CliRunner().invoke(app, ["report", str(tmp_path / "k.json"), "--html", str(tmp_path)])
    assert again.exit_code == code
    assert "cannot be written" in again.stderr
    assert "wrong bytes" in again.stdout


def test_the_command_that_repeats_a_run_is_quoted(tmp_path: Path) -> None:
    path = tmp_path / "my own" / "it's.toml"
    again = Result("a", "", _word(path), 7, 0).again
    assert shlex.split(again) == ["moonmesh", "chaos", "run", str(path), "--seed", "7"]


def test_json_can_be_read_and_shown_again(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    report = as_dict(outcome(), 7)
    write_json(report, path)
    assert read_json(path) == json.loads(json.dumps(report))
    again = CliRunner().invoke(app, ["report", str(path)])
    assert again.exit_code == 1
    assert "smoke/broken --seed 7" in again.output


DAMAGED = '{"chaos":1,"held":true,"scenarios":[{}]}'


@pytest.mark.parametrize(
    "content", ["", "[]", '{"bench": "replay"}', DAMAGED, "[" * 100_000, '{"chaos":' * 100_000]
)
def test_what_is_no_report_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(UsageError):
        read_json(path)


def test_junit_has_a_case_a_scenario(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    write_junit(as_dict(outcome(), 7), path)
    suite = Xml.parse(path).getroot()
    assert [suite.get(name) for name in ("tests", "failures", "errors")] == ["3", "1", "1"]
    good, bad, odd = suite
    assert len(good) == 0
    failure = bad.find("failure")
    assert failure is not None
    assert "--seed 7" in (failure.text or "")
    assert odd.find("error") is not None


def test_a_scenario_counts_as_held_only_if_every_round_did() -> None:
    rounds = [result("a", GOOD), result("a", BAD, round_=1), *suite(14)]
    (first, *_) = as_dict(Outcome(results=rounds), 7)["targets"]
    assert (first["name"], first["value"], first["met"]) == (
        "scenarios that held 2 times in a row",
        14,
        False,
    )


def test_a_run_that_was_repeated_is_shown_and_fails_nothing_but_the_target(tmp_path: Path) -> None:
    first = result("a", BAD)
    first.repeated = True
    both = Outcome(results=[first, result("a", GOOD), *suite(14)])
    assert both.held
    report = as_dict(both, 7)
    assert report["targets"][0]["value"] == 14, "it did not hold each time"
    write_junit(report, tmp_path / "junit.xml")
    assert Xml.parse(tmp_path / "junit.xml").getroot().get("failures") == "0"
    console = Console(file=io.StringIO(), width=140)
    show(report, console)
    assert "again" in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("broken", "alone"), [(["deadlines", "returns"], True), (["deadlines", "wrong_bytes"], False)]
)
def test_only_what_depends_on_time_is_run_again(broken: list[str], alone: bool) -> None:
    found = result("a", *(Verdict(name, False) for name in broken))
    assert found.by_time_alone is alone


def test_the_targets_of_a_suite_are_measured() -> None:
    names = ("peer-frozen", "all-hostile", "giant-catalog")
    results = [*(result(name, GOOD) for name in names), *suite(12)]
    (_, *targets) = as_dict(Outcome(results=results), 7)["targets"]
    assert [target["value"] for target in targets] == [
        0,
        45 * 10**9,
        0.4,
        pytest.approx(2.0 / 2.1),
        0.999,
    ]
    assert all(target["met"] for target in targets)


@pytest.mark.parametrize(("scenarios", "interrupted"), [(14, 0), (15, 2)])
def test_of_a_part_of_a_suite_nothing_is_missed(scenarios: int, interrupted: int) -> None:
    part = Outcome(results=suite(scenarios), interrupted=interrupted)
    targets = as_dict(part, 7)["targets"]
    assert [target["met"] for target in targets] == [None, True, None, None, None, None]
    assert "missed" not in text(as_dict(part, 7))
    assert "n/a" not in text(as_dict(part, 7)), "what it says nothing about is not shown"
    assert "wrong bytes: 0 (wanted == 0)" in text(as_dict(part, 7))


def test_of_a_whole_suite_all_targets_are_shown() -> None:
    shown = text(as_dict(Outcome(results=suite(15)), 7))
    assert "scenarios that held once: 15 (wanted >= 15)" in shown
    assert "n/a" in shown


def test_of_a_run_of_nothing_nothing_is_said() -> None:
    assert {t["met"] for t in as_dict(Outcome(), 7)["targets"]} == {None}


def test_a_name_is_shown_as_it_is() -> None:
    odd = Outcome(results=[result("[/odd]", GOOD)])
    assert "[/odd]" in text(as_dict(odd, 7))


def test_of_several_rounds_the_worst_is_measured() -> None:
    rounds = [
        result(name, GOOD, round_=n) for n in range(2) for name in ("all-hostile", "flood-hellos")
    ]
    rounds[2].figures["local_p99"] = {"fault_ms": 4.0, "allowed_ms": 2.0}
    rounds[3].figures["gateway_memory_of_cap"] = 1.2
    targets = {t["target"]: t for t in as_dict(Outcome(results=rounds), 7)["targets"]}
    assert (targets[1.1]["value"], targets[1.1]["met"]) == (1.2, False)
    assert (targets[1.0]["value"], targets[1.0]["met"]) == (2.0, False)


def test_too_few_reads_of_a_frozen_peer_are_no_figure() -> None:
    few = result("peer-frozen", GOOD)
    few.figures["peer_reads_during_fault"] = 999
    (*_, last) = as_dict(Outcome(results=[few]), 7)["targets"]
    assert (last["value"], last["met"]) == (None, None)


def test_the_ablation_leaves_out_what_breaks_anyway() -> None:
    seen: list[tuple[GuardName | None, str | None]] = []

    def run(off: GuardName | None) -> Outcome:
        seen.append((off, os.environ.get(VARIABLE)))
        broken = [BAD] if off is None else [BAD, Verdict("wrong_bytes", False, 1)]
        return Outcome(results=[result("a", *broken)])

    rows = list(ablate([GuardName.DIGEST], run))
    assert seen == [(None, None), (GuardName.DIGEST, "digest")]
    assert VARIABLE not in os.environ
    assert [row.broken for row in rows] == [{"a": ["deadlines"]}, {"a": ["wrong_bytes"]}]
    table = as_markdown(rows, "moonmesh chaos ablate smoke", 1, "2 cores")
    assert "| digest | a (wrong_bytes: 1, and not ) |" in table


def test_list_shows_every_scenario() -> None:
    shown = CliRunner().invoke(app, ["list", "smoke"])
    assert shown.exit_code == 0
    assert "all-hostile" in shown.output


def test_an_unknown_scenario_is_a_usage_error() -> None:
    found = CliRunner().invoke(app, ["run", "smoke/none-such"])
    assert isinstance(found.exception, UsageError)


def test_an_unknown_guard_is_a_usage_error() -> None:
    found = CliRunner().invoke(app, ["ablate", "smoke/baseline", "--guard", "none-such"])
    assert isinstance(found.exception, UsageError)


def test_a_run_of_all_has_targets_of_its_own() -> None:
    kept = Verdict("keeps", True, 0.97, ">= 0.95")
    late = Verdict("returns", False, 5.5, "5 s")
    runs = [*suite(40), result("unaffected-pair", kept), result("partition-60", late)]
    found = {target.name: target for target in targets(runs)}
    assert found["scenarios that held once"].target == 35
    assert found["scenarios that held once"].value == 41
    assert found["bytes verified"].target == 2e9, "20 GB are of three rounds"
    assert found["throughput of a pair of groups while a third burns, of that before"].met
    assert found["peer hits are back after a cut of 60 s"].met is False
    again = [result(f"other-{i}", GOOD, round_=n) for i in range(40) for n in range(3)]
    (checked,) = (t for t in targets(again) if t.name == "bytes verified")
    assert checked.target == 20e9
    assert len(targets(suite(20))) == len(targets(runs)) - 2


def test_what_cannot_be_run_here_breaks_nothing_and_is_said(tmp_path: Path) -> None:
    skipped = result("lossy", error="")
    skipped.figures, skipped.skipped = {}, "loss cannot be made on loopback"
    made = Outcome(results=[*suite(20), skipped])
    assert made.held
    report = as_dict(made, 7)
    (row,) = (one for one in report["scenarios"] if one["name"] == "lossy")
    assert row["skipped"] == "loss cannot be made on loopback"
    assert report["targets"][0]["value"] == 20
    write_junit(report, tmp_path / "junit.xml")
    suites = Xml.parse(tmp_path / "junit.xml").getroot()
    assert suites.get("skipped") == "1"
    assert suites.get("failures") == "0"
    console = Console(file=io.StringIO(), width=200)
    show(report, console)
    assert isinstance(console.file, io.StringIO)
    assert "loss cannot be made" in console.file.getvalue()
    write_json(report, tmp_path / "report.json")
    assert read_json(tmp_path / "report.json") == report


def test_what_was_interrupted_is_no_finding_of_an_ablation() -> None:
    stopped = Outcome(results=[result("a", error=INTERRUPTED)], interrupted=2)
    (row,) = ablate([GuardName.DIGEST], lambda _: stopped)
    assert (row.broken, row.whole) == ({}, False)
