"""The page of a report: it holds all that was seen, nothing of it can be code, and it loads nothing."""

from __future__ import annotations

import itertools
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest

from chaos.drawing.chart import PEERS_MAX, Chart
from chaos.drawing.page import page
from chaos.monitor import peer_states
from chaos.report import as_dict, write_html
from chaos.steps import Link
from chaos.story import BIN_S, BINS_MAX, story
from tests.support.records import BEGIN, FAULT, sound
from tests.unit.test_chaos_report import outcome

TOLD: dict[str, Any] = {
    "seconds": 2.0,
    "bin_s": 0.25,
    "faults": [["cut east - west", 0.5, 1.0], ["kill gateway of west", 0.6, 1.1]],
    "local_ms": [[0.5, 1.5], [0.6, 2.5], None, [0.7, 3.0], [0.5, 1.0], [0.5, 1.0], None, None],
    "peer_ms": [[5.0, 20.0], None, [500.0, 500.0], None, [6.0, 9.0], None, None, None],
    "tiers": [[0, 8, 0], [0, 0, 0], [0, 0, 8], [4, 2, 2], [0, 8, 0], [0] * 3, [0] * 3, [0] * 3],
    "peers": {"east > west": [[0.1, "closed"], [0.7, "open"], [1.4, "half_open"]]},
}


def drawn(**changes: Any) -> Xml.Element:
    return Xml.fromstring(Chart({**TOLD, **changes}, "a <name>").svg())


def classes(svg: Xml.Element) -> list[str]:
    return [str(e.get("class")) for e in svg.iter() if e.get("class")]


def test_a_chart_has_each_fault_and_a_band_under_it() -> None:
    svg = drawn()
    faults = [e for e in svg.iter("rect") if e.get("class") == "fault"]
    bands = [e for e in svg.iter("rect") if e.get("class") == "band"]
    assert [e.findtext("title") for e in faults] == [
        "cut east - west: 0.5 to 1 s",
        "kill gateway of west: 0.6 to 1.1 s",
    ]
    assert [e.get("x") for e in faults] == [e.get("x") for e in bands]
    height = float(str(svg.get("viewBox")).split()[3])
    for band in bands:
        assert float(band.get("y", "0")) + float(band.get("height", "0")) < height


def test_a_line_is_broken_where_there_were_no_calls() -> None:
    lines = [e for e in drawn().iter("polyline") if e.get("class") == "local p99"]
    assert [len(str(e.get("points")).split()) for e in lines] == [2, 3]


def test_slow_is_drawn_above_fast() -> None:
    (first, second, third) = (
        str(e.get("points")).split()[0] for e in drawn().iter("polyline")
        if e.get("class") == "peer p50"
    )  # fmt: skip
    heights = [float(point.split(",")[1]) for point in (first, second, third)]
    assert heights[1] < heights[2] < heights[0], "500, 6 and 5 ms: y grows downward"


def test_shares_of_a_bin_fill_it() -> None:
    groups = list(drawn().iter("g"))
    assert len(groups) == 4, "of bins with reads"
    for group in groups:
        assert sum(float(r.get("height", "0")) for r in group.iter("rect")) == pytest.approx(
            56, abs=0.2
        )


def test_breakers_are_drawn_from_change_to_change() -> None:
    states = [
        e for e in drawn().iter("rect") if (e.findtext("title") or "").startswith("east > west")
    ]
    assert [e.get("class") for e in states] == ["state closed", "state open", "state half_open"]
    for before, after in itertools.pairwise(states):
        end = float(before.get("x", "0")) + float(before.get("width", "0"))
        assert end == pytest.approx(float(after.get("x", "0")), abs=0.2)


def test_a_chart_of_nothing_and_one_of_many_peers() -> None:
    empty: dict[str, Any] = {"faults": [], "local_ms": [], "peer_ms": [], "tiers": [], "peers": {}}
    assert "fault" not in classes(drawn(**empty))
    many = {f"g{n} > h": [[0.0, "closed"]] for n in range(PEERS_MAX + 3)}
    svg = drawn(peers=many)
    assert "and 3 more" in [e.text for e in svg.iter("text")]


def test_a_story_has_the_fault_what_came_of_it_and_no_more_bins_than_so() -> None:
    record = sound()
    one = record.fault
    step = Link(do="link", mode="cut", at=1, lasts=1, source="east", to="west")
    one.steps = [(step, FAULT)]
    one.usage["west"].peers = {
        "east": [(BEGIN + 0.1, "closed"), (BEGIN + 0.5, "closed"), (BEGIN + 1.5, "open")]
    }
    told = story(record)
    assert told["faults"] == [["cut east - west", 1.0, 2.0]]
    assert told["bin_s"] == BIN_S
    assert told["peers"] == {"west > east": [[0.1, "closed"], [1.5, "open"]]}
    tiers = told["tiers"]
    assert sum(bin_[2] for bin_ in tiers[:4]) == 0
    assert sum(bin_[2] for bin_ in tiers[4:8]) == 80, "ten reads of four blocks in each group"
    assert len(tiers) == len(told["local_ms"]) == len(told["peer_ms"]) <= BINS_MAX
    one.fault_end = BEGIN + 100
    assert len(story(record)["tiers"]) <= BINS_MAX


def test_how_a_peer_is_seen() -> None:
    status = {
        "peers": [
            {"name": "a", "state": "alive", "breaker": "open"},
            {"name": "b", "state": "down", "breaker": "closed"},
        ]
    }
    assert list(peer_states(status)) == [("a", "open"), ("b", "down")]
    assert list(peer_states({})) == []


class _Page(HTMLParser):
    """Tags and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


def test_the_page_loads_nothing_and_what_a_report_says_is_never_code(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\"'&"
    report = as_dict(outcome(), 7)
    for one in report["scenarios"]:
        one["name"] = one["summary"] = one["again"] = evil
        one["figures"]["story"] = {**TOLD, "faults": [[evil, 0, 1]], "peers": {evil: [[0, evil]]}}
        for invariant in one["invariants"]:
            invariant["name"] = invariant["limit"] = invariant["detail"] = evil
    report["command"] = report["targets"][0]["name"] = evil
    report["left"] = [evil]
    text = page(report)
    found = _Page(text)
    assert {"script", "link", "img", "iframe"}.isdisjoint(found.tags)
    assert [v for n, v in found.attributes if n in ("href", "src") and not v.startswith("#")] == []
    assert [n for n, _ in found.attributes if n.startswith("on")] == []
    assert re.findall(r"url\(|@import|https?://", text) == []
    write_html(report, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == text


def test_the_page_has_a_row_and_a_section_for_each_run() -> None:
    report = as_dict(outcome(), 7)
    found = _Page(page(report))
    count = len(report["scenarios"])
    ids = [value for name, value in found.attributes if name == "id"]
    links = [value[1:] for name, value in found.attributes if name == "href"]
    assert ids == links == [f"run-{number}" for number in range(count)]
