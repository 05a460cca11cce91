"""Invariants about what guards hold back, on records made by hand; and that the suite has all guards."""

from __future__ import annotations

import re
from typing import Any

import pytest

from chaos.invariants.verdict import Verdict
from chaos.monitor import guard_numbers
from chaos.record import Record
from chaos.suites import find
from federation.limits.names import GuardName
from tests.support.groups import REPOSITORY
from tests.unit.test_chaos_judge import FAULT, call, sound, verdict


def with_reads(*took: float) -> Record:
    record = sound(waits={"median_ms": 100, "calls": 3})
    for group in record.fault.samples:
        record.fault.samples[group] = []
    record.fault.samples["west"] = [
        call(FAULT + 0.1, "peer", ms=ms, local=0, peer=4) for ms in took
    ] + [call(FAULT - 0.5, "peer", ms=900.0, local=0, peer=4)] * 9
    return record


@pytest.mark.parametrize(
    ("took", "held"),
    [((1, 2, 900), True), ((100, 100, 100), True), ((1, 101, 101), False), ((1, 1), False)],
)
def test_half_of_the_reads_do_not_wait(took: tuple[float, ...], held: bool) -> None:
    assert verdict(with_reads(*took), "waits").held is held


@pytest.mark.parametrize(("worst", "held"), [(900, True), (899, False)])
def test_no_read_waits_longer_than_so(worst: float, held: bool) -> None:
    record = with_reads(1, 2, 900)
    wanted = {"median_ms": 100, "calls": 3, "worst_ms": worst}
    record.scenario = sound(waits=wanted).scenario
    assert verdict(record, "waits").held is held


def test_no_reads_show_nothing() -> None:
    assert not verdict(with_reads(), "waits").held


def booked(books: dict[str, Any], **wanted: Any) -> Verdict:
    record = sound(books=[{"name": "evil", "what": "served", **wanted}])
    record.books["evil"] = books
    return verdict(record, "books")


@pytest.mark.parametrize(
    ("served", "held"), [(0, False), (1, True), (60, True), (61, False), (None, False)]
)
def test_a_book_is_within_its_bounds(served: int | None, held: bool) -> None:
    books = {} if served is None else {"served": served}
    assert booked(books, at_most=60).held is held


@pytest.mark.parametrize(("seconds", "held"), [(2.0, True), (1.4, False), (0.0, False)])
def test_a_rate_is_over_the_seconds_of_the_attack(seconds: float, held: bool) -> None:
    assert booked({"served": 60, "seconds": seconds}, at_most=40, per_s=True).held is held


@pytest.mark.parametrize(
    ("most", "held"),
    [(0, False), (1, True), (4 << 20, True), ((4 << 20) + 1, False), (None, False)],
)
def test_a_guard_holds_no_more_than_its_limit(most: int | None, held: bool) -> None:
    what = {"group": "west", "peer": "evil", "what": "incoming.memory_bytes", "at_most": "4 MiB"}
    record = sound(peaks=[what])
    for one in record.passes if most is not None else ():
        one.usage["west"].guards = {"evil.incoming.memory_bytes": most}
    assert verdict(record, "peak").held is held


def test_numbers_of_guards_are_told_by_peer_and_direction() -> None:
    shown = {"breaker": "closed", "open": {"pull": 2, "hello": 1}, "memory_bytes": 5}
    status = {"peers": [{"name": "evil", "guards": {"incoming": shown}}, {"name": "old"}]}
    assert dict(guard_numbers(status)) == {
        "evil.incoming.memory_bytes": 5,
        "evil.incoming.open": 3,
        "evil.incoming.open_pull": 2,
        "evil.incoming.open_hello": 1,
    }


@pytest.mark.parametrize("guard", list(GuardName))
def test_every_guard_has_a_scenario_that_says_how_it_shows(guard: GuardName) -> None:
    heads = [
        line
        for path in find(["guards"])
        for line in path.read_text().splitlines()
        if line.startswith("#")
    ]
    assert f"{guard.value}:" in " ".join(heads).replace(",", ":"), "no head of a scenario names it"


@pytest.mark.parametrize("guard", list(GuardName))
def test_the_documentation_says_what_breaks_without_each(guard: GuardName) -> None:
    text = (REPOSITORY / "docs" / "chaos.md").read_text("utf-8")
    (row,) = re.findall(rf"^\| `{guard.value}` \| ([\w-]+) \((\w+)\) \|", text, re.MULTILINE)
    (path,) = find([f"guards/{row[0]}"])
    assert guard.value in path.read_text()
