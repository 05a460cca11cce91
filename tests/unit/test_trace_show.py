from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from federation.bench.spans import load_spans, parse_span
from federation.cli.trace import app, trace_tree
from federation.errors import UsageError

MS = 1_000_000


def a_span(trace: str, span: str, parent: str = "", group: str = "east", **more: Any) -> str:
    record: dict[str, Any] = {
        "trace": trace,
        "span": span,
        "parent": parent,
        "name": "engine.get",
        "kind": "internal",
        "service": "engine",
        "group": group,
        "start_ns": 1000 * MS,
        "end_ns": 1002 * MS,
        "attributes": {},
    }
    return json.dumps(record | more)


@pytest.fixture
def groups(tmp_path: Path) -> tuple[Path, Path]:
    """Trace aa: east → west; bb: newer and longer, in east alone; cc: east → west, newest, short."""
    east, west = tmp_path / "east", tmp_path / "west"
    files = {
        east / "data" / "traces" / "engine.1.jsonl": [
            a_span("aa", "01", end_ns=1009 * MS, attributes={"moonmesh.keys": 24}),
            a_span("bb", "01", start_ns=2000 * MS, end_ns=2100 * MS),
            "{ half a li",
            a_span("cc", "01", start_ns=3000 * MS, end_ns=3001 * MS),
        ],
        east / "data" / "traces" / "gateway.2.jsonl.1": [
            a_span("aa", "02", "01", name="peer.pull", start_ns=1001 * MS),
        ],
        west / "traces" / "gateway.3.jsonl": [
            a_span(
                "aa",
                "03",
                "02",
                "west",
                name="serve.pull",
                start_ns=1001 * MS,
                status="error",
                error="no such key",
            ),
            '{"trace": 1}',
            "[]",
            a_span("cc", "02", "77", "west", start_ns=3000 * MS, end_ns=3001 * MS),
        ],
    }
    for path, lines in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
    return east, west


def rendered(tree: object) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=200).print(tree)
    return out.getvalue().splitlines()


def test_a_trace_is_joined_over_the_files_of_both_groups(groups: tuple[Path, Path]) -> None:
    found = load_spans(groups)
    trace = found.find("aa")
    assert trace.groups == ("east", "west")
    head, get, pull, serve = rendered(trace_tree(trace))
    assert "9.0 ms, 3 spans, through east, west" in head
    assert "engine.get  east engine  9.00 ms  +0.00  keys=24" in get
    assert pull.index("peer.pull") > get.index("engine.get")
    assert serve.index("serve.pull") > pull.index("peer.pull")
    assert serve.endswith("no such key")


def test_malformed_lines_are_counted_by_file_and_no_obstacle(groups: tuple[Path, Path]) -> None:
    found = load_spans(groups)
    assert {Path(f).name: n for f, n in found.malformed.items()} == {
        "engine.1.jsonl": 1,
        "gateway.3.jsonl": 2,
    }
    assert set(found.traces) == {"aa", "bb", "cc"}


def test_traces_that_crossed_come_first(groups: tuple[Path, Path]) -> None:
    found = load_spans(groups)
    assert [t.trace for t in found.ranked()] == ["cc", "aa", "bb"]
    assert [t.trace for t in found.ranked(longest=True)] == ["aa", "cc", "bb"]


def test_a_span_without_its_parent_is_shown_and_says_so(groups: tuple[Path, Path]) -> None:
    lines = rendered(trace_tree(load_spans(groups).find("cc")))
    assert sum("what called it is not in these files" in line for line in lines) == 1


def test_spans_that_are_each_others_parents_do_not_hang_it(tmp_path: Path) -> None:
    (tmp_path / "x.1.jsonl").write_text(
        "\n".join([a_span("aa", "01", "02"), a_span("aa", "02", "01"), a_span("aa", "03", "03")])
    )
    lines = rendered(trace_tree(load_spans([tmp_path]).find("aa")))
    assert sum("engine.get" in line for line in lines) == 3


def test_a_very_deep_trace_is_cut(tmp_path: Path) -> None:
    spans = [a_span("aa", f"{i:04x}", f"{i - 1:04x}" if i else "") for i in range(2000)]
    (tmp_path / "x.1.jsonl").write_text("\n".join(spans))
    lines = rendered(trace_tree(load_spans([tmp_path]).find("aa")))
    assert any("deeper spans are not shown" in line for line in lines)


@pytest.mark.parametrize(
    "change",
    [
        {"start_ns": "1"},
        {"start_ns": 5, "end_ns": 4},
        {"start_ns": -1},
        {"attributes": 3},
        {"name": None},
        {"trace": "not hex"},
        {"span": ""},
        {"group": "x" * 300},
    ],
)
def test_what_is_no_span(change: dict[str, Any]) -> None:
    assert parse_span(a_span("aa", "01").encode()) is not None
    changed = json.loads(a_span("aa", "01")) | change
    assert parse_span(json.dumps(changed).encode()) is None


def test_reading_is_bounded(groups: tuple[Path, Path]) -> None:
    found = load_spans(groups, limit=2)
    assert sum(len(t.spans) for t in found.traces.values()) == 2
    assert found.skipped >= 1


def test_show_takes_an_id_or_shows_the_newest_that_crossed(groups: tuple[Path, Path]) -> None:
    folders = [str(g) for g in groups]
    run = CliRunner().invoke
    assert "trace cc" in run(app, ["show", *folders]).output
    longest = run(app, ["show", "--longest", *folders]).output
    assert "trace aa" in longest
    assert "gateway.3.jsonl: 2 line(s) that are no spans" in longest.replace("\n", "")
    assert "trace bb" in run(app, ["show", "b", *folders]).output


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (["abc"], "name the folders"),
        (["dead", "EAST"], "no trace dead"),
        (["aa", "--latest", "EAST"], "not both"),
        (["EAST", "--latest", "--longest"], "not both"),
        (["no/such/folder"], "no such folder"),
        (["EMPTY"], "no spans"),
    ],
)
def test_what_show_cannot_do_it_says(
    groups: tuple[Path, Path], tmp_path: Path, args: list[str], what: str
) -> None:
    (tmp_path / "empty").mkdir()
    places = {"EAST": str(groups[0]), "EMPTY": str(tmp_path / "empty")}
    result = CliRunner().invoke(app, ["show", *(places.get(a, a) for a in args)])
    assert isinstance(result.exception, UsageError)
    assert what in str(result.exception)


def test_an_ambiguous_id_asks_for_more(tmp_path: Path) -> None:
    (tmp_path / "x.1.jsonl").write_text("\n".join([a_span("ab", "01"), a_span("ac", "01")]))
    with pytest.raises(UsageError, match="2 traces begin with a"):
        load_spans([tmp_path]).find("a")
