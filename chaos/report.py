"""What a run found: a table for people, JSON for machines, JUnit XML for CI."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

from pydantic import BaseModel, ConfigDict, ValidationError
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from chaos.drawing.page import page
from chaos.errors import INTERRUPTED
from chaos.runner import Outcome, Result
from chaos.targets import targets, whole_suite
from federation.bench.report import command_line, machine, now_utc, versions, write_whole
from federation.errors import UsageError
from local_group.config import MIB


def as_dict(outcome: Outcome, seed: int) -> dict[str, Any]:
    """The report as it stands in the JSON file."""
    return {
        "chaos": 1,
        "written_at": now_utc(),
        "command": command_line(),
        "seed": seed,
        "seconds": round(outcome.seconds, 2),
        "held": outcome.held,
        "interrupted": bool(outcome.interrupted),
        "left": outcome.left,
        "machine": machine(),
        "versions": versions(),
        "scenarios": [_scenario(result) for result in outcome.results],
        "targets": [
            target.as_dict() for target in targets(outcome.results, outcome.interrupted != 0)
        ],
    }


def _scenario(result: Result) -> dict[str, Any]:
    return {
        "name": result.name,
        "summary": result.summary,
        "seed": result.seed,
        "round": result.round,
        "held": result.held,
        "repeated": result.repeated,
        "seconds": round(result.seconds, 2),
        "error": result.error,
        "skipped": result.skipped,
        "again": result.again,
        "invariants": [asdict(verdict) for verdict in result.verdicts],
        "figures": result.figures,
    }


def write_all(
    report: dict[str, Any],
    *,
    json_file: Path | None = None,
    junit: Path | None = None,
    html: Path | None = None,
) -> list[UsageError]:
    """Writes those that are asked for; one that cannot be written keeps no other from it.

    Returns:
        Why those that were not written could not be.
    """
    errors = []
    for write, path in ((write_json, json_file), (write_junit, junit), (write_html, html)):
        if path is not None:
            try:
                write(report, path)
            except UsageError as error:
                errors.append(error)
    return errors


def write_json(report: dict[str, Any], path: Path) -> None:
    """Writes the JSON file, whole or not at all.

    Raises:
        UsageError: if it cannot be written.
    """
    write_whole(json.dumps(report, indent=2) + "\n", path)


def write_html(report: dict[str, Any], path: Path) -> None:
    """Writes the report as one HTML page, with all that it needs in it.

    Raises:
        UsageError: if it cannot be written.
    """
    write_whole(page(report), path)


def write_junit(report: dict[str, Any], path: Path) -> None:
    """Writes JUnit XML: a test case a scenario and round.

    Raises:
        UsageError: if it cannot be written.
    """
    scenarios = report["scenarios"]
    suite = Xml.Element(
        "testsuite",
        name="chaos",
        tests=str(len(scenarios)),
        failures=str(sum(_failed(s) and not s["error"] for s in scenarios)),
        errors=str(sum(bool(s["error"]) for s in scenarios)),
        skipped=str(sum(bool(s["skipped"]) for s in scenarios)),
        time=str(report["seconds"]),
        timestamp=report["written_at"],
    )
    for one in scenarios:
        name = one["name"] if one["round"] == 0 else f"{one['name']} (round {one['round'] + 1})"
        case = Xml.SubElement(
            suite, "testcase", classname="chaos", name=name, time=str(one["seconds"])
        )
        if one["skipped"]:
            Xml.SubElement(case, "skipped", message=_xml(one["skipped"]))
        elif one["error"]:
            Xml.SubElement(case, "error", message=_xml(one["error"])).text = one["again"]
        elif _failed(one):
            broken = [i for i in one["invariants"] if not i["held"] and not i["off"]]
            text = "\n".join([*(_line(i) for i in broken), f"again: {one['again']}"])
            message = ", ".join(i["name"] for i in broken)
            Xml.SubElement(case, "failure", message=message).text = _xml(text)
    Xml.indent(suite)
    write_whole(Xml.tostring(suite, encoding="unicode", xml_declaration=True) + "\n", path)


def _failed(one: dict[str, Any]) -> bool:
    """Whether a scenario broke, and was not run again after."""
    return not one["held"] and not one["repeated"] and not one["skipped"]


def _xml(text: str) -> str:
    """Without the control characters that XML cannot hold."""
    return "".join(c for c in text if c in "\n\t" or ord(c) >= 32)


class _Shown(BaseModel):
    """Of a report, what `show` needs."""

    model_config = ConfigDict(strict=True)


class _Invariant(_Shown):
    name: str
    held: bool
    off: str
    value: Any
    limit: str
    detail: str


class _Figures(_Shown):
    verified_bytes: float = 0


class _ScenarioShown(_Shown):
    name: str
    seed: int
    held: bool
    repeated: bool
    seconds: float
    error: str
    skipped: str = ""
    again: str
    invariants: list[_Invariant]
    figures: _Figures


class _TargetShown(_Shown):
    name: str
    met: bool | None
    value: float | None
    op: str
    target: float


class _Report(_Shown):
    seconds: float
    held: bool
    interrupted: bool
    left: list[str]
    scenarios: list[_ScenarioShown]
    targets: list[_TargetShown]


def read_json(path: Path) -> dict[str, Any]:
    """A report that `--json` wrote.

    Raises:
        UsageError: the file is none.
    """
    try:
        report = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot be read: {error}", where=str(path)) from error
    except RecursionError:
        raise UsageError("cannot be read: it is nested too deep", where=str(path)) from None
    if not isinstance(report, dict) or report.get("chaos") != 1:
        raise UsageError("is no report of `moonmesh chaos run --json`", where=str(path))
    try:
        _Report.model_validate(report)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise UsageError(
            f"is a damaged report: {field}: {first['msg'][:1].lower()}{first['msg'][1:]}",
            where=str(path),
            hint="write it again with `moonmesh chaos run --json`",
        ) from error
    return report


def show(report: dict[str, Any], console: Console) -> None:
    """The table, what is broken, and how to repeat it."""
    table = Table(
        "scenario", "seed", "s", "MiB checked", "", "what is broken, or worth knowing",
        title=f"moonmesh chaos, {report['seconds']:.0f} s"
        + (" (interrupted: what was run until then)" if report["interrupted"] else ""),
        title_justify="left",
    )  # fmt: skip
    for column in table.columns[1:4]:
        column.justify = "right"
    for one in report["scenarios"]:
        mark = Text("held", "green") if one["held"] else Text("BROKEN", "bold red")
        if one["repeated"]:
            mark = Text("again", "yellow")
        if one["error"]:
            word = "not finished" if one["error"] == INTERRUPTED else "NOT RUN"
            mark = Text(word, "bold red")
        if one.get("skipped"):
            mark = Text("not run", "yellow")
        checked = one["figures"].get("verified_bytes", 0) / MIB
        table.add_row(
            Text(one["name"]),
            str(one["seed"]),
            f"{one['seconds']:.1f}",
            f"{checked:.0f}",
            mark,
            Text(_remark(one)),
        )
    console.print(table)
    for target in _told(report):
        met = {True: "[green]met[/green]", False: "[red]missed[/red]", None: "n/a"}[target["met"]]
        value = target["value"]
        shown = "n/a" if value is None else f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"
        console.print(
            f"{met}  {escape(target['name'])}: {shown} "
            f"(wanted {escape(target['op'])} {target['target']:,})",
            highlight=False,
        )
    for one in report["scenarios"]:
        if not one["held"] and not one.get("skipped"):
            console.print(Text(f"\n{one['name']}, seed {one['seed']}:", "bold red"))
            if one["error"]:
                console.print(Text(f"  {one['error']}"))
            for invariant in one["invariants"]:
                if not invariant["held"] and not invariant["off"]:
                    console.print(Text(f"  {_line(invariant)}"))
            console.print(Text(f"  again: {one['again']}"))
    for left in report["left"]:
        console.print(Text(f"could not be taken down: {left}", "bold red"))


def _told(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The targets to show: of less than a whole suite only those that have a value."""
    names = {one["name"] for one in report["scenarios"] if not one.get("skipped")}
    whole = "soak" in report or whole_suite(names, report["interrupted"])
    return [t for t in report["targets"] if whole or t["value"] is not None]


def _remark(one: dict[str, Any]) -> str:
    if one.get("skipped"):
        return str(one["skipped"])
    if one["error"]:
        return str(one["error"]).splitlines()[0][:100]
    broken = [i["name"] for i in one["invariants"] if not i["held"] and not i["off"]]
    if broken:
        return ", ".join(broken)
    shown = {"felt", "hits", "returns", "local_p99", "contained", "leased"}
    parts = [
        f"{i['name']} {_number(i['value'])}"
        + (f" (not told from {i['limit']})" if i["unsure"] else "")
        for i in one["invariants"]
        if i["name"] in shown and not i["off"]
    ]
    parts += [f"{i['name']} off" for i in one["invariants"] if i["off"]]
    return ", ".join(parts)


def _line(invariant: dict[str, Any]) -> str:
    text = f"{invariant['name']}: {_number(invariant['value'])}, and not {invariant['limit']}"
    return f"{text} ({invariant['detail']})" if invariant["detail"] else text


def _number(value: Any) -> str:
    return (
        "nothing" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    )
