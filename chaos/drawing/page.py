"""The page: a table of all runs on top, then a chart for each. Pure; everything from a report is escaped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from chaos.drawing.chart import Chart
from chaos.drawing.growth import growth
from chaos.drawing.style import STYLE
from chaos.errors import INTERRUPTED

MIB = 1024 * 1024


def page(report: Mapping[str, Any]) -> str:
    """A report of `moonmesh chaos run --json` as HTML."""
    return "".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            "<title>moonmesh chaos</title>",
            f"<style>{STYLE}</style></head><body>",
            *_head(report),
            *growth(report),
            *_table(report),
            *_targets(report),
            *(part for number, one in enumerate(report["scenarios"]) for part in _run(one, number)),
            "</body></html>\n",
        ]
    )


def _head(report: Mapping[str, Any]) -> Iterator[str]:
    runs = report["scenarios"]
    held = sum(one["held"] for one in runs)
    skipped = sum(bool(one.get("skipped")) for one in runs)
    checked = sum(one["figures"].get("verified_bytes", 0) for one in runs)
    yield f"<h1>moonmesh chaos: {held} of {len(runs) - skipped} held</h1><p>"
    if report.get("interrupted"):
        yield "<strong>Interrupted: what was run until then.</strong> "
    yield f"{report['seconds']:.0f} s, {checked / 1e9:.1f} GB checked"
    if skipped:
        yield f", {skipped} not run here"
    yield f". {escape(str(report.get('written_at', '')))}, seed {report.get('seed', '')}."
    yield f"<br><code>{escape(str(report.get('command', '')))}</code></p>"
    for left in report.get("left", ()):
        yield f"<p><strong>Could not be taken down: {escape(left)}</strong></p>"


def _table(report: Mapping[str, Any]) -> Iterator[str]:
    yield (
        '<table><thead><tr><th>scenario<th>what happens<th class="n">s<th class="n">MiB checked'
        '<th class="n">wrong bytes<th class="n">hits return, s<th class="n">local p99, ms<th>'
        "</thead><tbody>"
    )
    for number, one in enumerate(report["scenarios"]):
        figures = one["figures"]
        p99 = (figures.get("local_p99") or {}).get("fault_ms")
        yield (
            f'<tr><td><a href="#run-{number}">{escape(_name(one))}</a><td>{escape(one["summary"])}'
            f'<td class="n">{one["seconds"]:.1f}'
            f'<td class="n">{figures.get("verified_bytes", 0) / MIB:.0f}'
            f'<td class="n">{figures.get("wrong_bytes", "")}'
            f'<td class="n">{_value(one, "returns")}'
            f'<td class="n">{"" if p99 is None else f"{p99:.2f}"}<td>{_mark(one)}'
        )
    yield "</tbody></table>"


def _targets(report: Mapping[str, Any]) -> Iterator[str]:
    known = [target for target in report.get("targets", ()) if target["value"] is not None]
    if not known:
        return
    yield '<h2>Targets</h2><table><thead><tr><th>figure<th class="n">measured<th>wanted<th>'
    yield "</thead><tbody>"
    for target in known:
        mark = ("held", "met") if target["met"] else ("broken", "missed")
        yield (
            f'<tr><td>{escape(target["name"])}<td class="n">{target["value"]:,.4g}'
            f"<td>{escape(target['op'])} {target['target']:,g}"
            f'<td><span class="mark {mark[0]}">{mark[1]}</span>'
        )
    yield "</tbody></table>"


def _run(one: Mapping[str, Any], number: int) -> Iterator[str]:
    yield f'<section id="run-{number}"><h2>{escape(_name(one))} {_mark(one)}</h2>'
    yield f"<p>{escape(one['summary'])}"
    if one["error"] or one.get("skipped"):
        yield f"<br>{escape(one['error'] or one['skipped'])}</p></section>"
        return
    yield f"<br><code>{escape(one['again'])}</code></p>"
    broken = [i for i in one["invariants"] if not i["held"] and not i["off"]]
    if broken:
        yield "<ul>"
        for invariant in broken:
            yield (
                f"<li><strong>{escape(invariant['name'])}</strong>: {_shown(invariant['value'])}, and "
                f"not {escape(invariant['limit'])} {escape(invariant['detail'])}"
            )
        yield "</ul>"
    if (told := one["figures"].get("story")) is not None:
        yield f"<figure>{Chart(told, one['name']).svg()}</figure>"
    yield "<details><summary>all invariants</summary><table><tbody>"
    for invariant in one["invariants"]:
        if invariant["off"]:
            word, text = "off", invariant["off"]
        else:
            word = "held" if invariant["held"] else "broken"
            limit = invariant["limit"]
            text = f"{_shown(invariant['value'])} (wanted {limit}) {invariant['detail']}"
        yield (
            f'<tr><td>{escape(invariant["name"])}<td><span class="mark {word}">{word}</span>'
            f"<td>{escape(text)}"
        )
    yield "</tbody></table></details></section>"


def _name(one: Mapping[str, Any]) -> str:
    return f"{one['name']} (round {one['round'] + 1})" if one.get("round") else str(one["name"])


def _mark(one: Mapping[str, Any]) -> str:
    word, kind = ("held", "held") if one["held"] else ("broken", "broken")
    if one.get("repeated"):
        word, kind = "again", "off"
    if one["error"]:
        word = "not finished" if one["error"] == INTERRUPTED else "not run"
    if one.get("skipped"):
        word, kind = "not run here", "off"
    return f'<span class="mark {kind}">{word}</span>'


def _value(one: Mapping[str, Any], name: str) -> str:
    values = [i["value"] for i in one["invariants"] if i["name"] == name and not i["off"]]
    return _shown(values[0]) if values else ""


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    return f"{value:.4g}" if isinstance(value, float) else escape(str(value))
