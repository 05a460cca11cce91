"""All that may pile up in a gateway is judged: each row of the table, at its limit and above it."""

from __future__ import annotations

from typing import Any

import pytest

from chaos.invariants.bounds import BOUNDS, Bound, broken, held
from chaos.layout import BASE_LIMITS
from federation.config import Limits

LIMITS = Limits(**BASE_LIMITS)
OVER = 0.1


def status(n: int) -> dict[str, Any]:
    """A gateway's, with `n` of everything; its second peer has less."""

    def store() -> dict[str, Any]:
        return {"queued": n, "bounce_used_bytes": n, "breaker": "closed"}

    def peer(name: str, n: int) -> dict[str, Any]:
        calls = {"pull": n} if n else {}
        guards = {"open": calls, "memory_bytes": n, "catalog_bytes": n, "breaker": "closed"}
        views = [{"blocks": 0}, {"blocks": n if name == "east" else 0}]
        return {"name": name, "views": views, "guards": {"outgoing": guards, "incoming": guards}}

    return {
        "peers": [peer("east", n), peer("north", n // 2)],
        "staging": {"bytes": n - n // 2, "reserved": n // 2},
        "holdings": {"blocks": n},
        "store": store(),
        "queues": dict.fromkeys(
            (
                "admission_blocks",
                "journal_bytes",
                "foreign_blocks",
                "feed_blocks",
                "pulls",
                "engines",
            ),
            n,
        ),
        "telemetry": {"spans_queued": n},
        "counters": {f"c{i}": 1 for i in range(min(n, 10_000))},
        "refused": [{}] * min(n, 10_000),
        "problems": [""] * min(n, 10_000),
        "serving": {
            "rss_bytes": n,
            "blocks": n,
            "store": store(),
            "telemetry": {"spans_queued": n},
            "queues": {"gone_blocks": n, "said": n, "hellos": n},
        },
    }


@pytest.mark.parametrize("row", BOUNDS, ids=lambda row: row.name)
def test_a_row_holds_at_its_limit_and_breaks_above_it(row: Bound) -> None:
    fine = {each.name: 0.0 for each in BOUNDS}
    limit = row.limit(LIMITS) * (1 + OVER if row.watched else 1)
    for value, ok in ((int(limit), True), (int(limit) + 1, False)):
        (seen,) = [v for name, v in held(status(value)) if name == row.name]
        assert seen == value, "of several peers the one with most"
        found = broken({**fine, row.name: seen}, LIMITS, OVER)
        assert found == ([] if ok else [f"{row.name} {seen:.0f} > {limit:.0f}"])


@pytest.mark.parametrize(
    "row", [row for row in BOUNDS if row.name.startswith("serving")], ids=lambda row: row.name
)
def test_of_several_serving_processes_each_is_looked_at(row: Bound) -> None:
    little, much = status(1), status(7)
    several = {**little, "serving_others": [little["serving"], much["serving"]]}
    assert dict(held(several))[row.name] == 7
    restarting = {**little, "serving": None, "serving_others": [much["serving"]]}
    assert dict(held(restarting))[row.name] == 7


def test_windows_of_a_peer_have_the_room_of_all_serving_processes() -> None:
    one = status(60)
    two = {**one, "serving_others": [one["serving"]]}
    assert dict(held(one))["windows of a peer"] == 60
    assert dict(held(two))["windows of a peer"] == 30, "status has the sum of both"


def test_names_are_one_each() -> None:
    assert len({row.name for row in BOUNDS}) == len(BOUNDS)


@pytest.mark.parametrize("row", BOUNDS, ids=lambda row: row.name)
def test_what_a_gateway_always_tells_has_to_be_told(row: Bound) -> None:
    told = {each.name: 0.0 for each in BOUNDS if each is not row}
    assert broken(told, LIMITS, OVER) == ([f"{row.name} not told"] if row.always else [])


def test_a_gateway_that_never_answered_is_judged_by_other_rows() -> None:
    assert dict(held({})) == {}
    assert broken({}, LIMITS, OVER) == []


def test_a_serving_process_that_has_told_nothing_yet_breaks_nothing() -> None:
    young = status(0)
    young["serving"] = {"state": "starting", "rss_bytes": None}
    for peer in young["peers"]:
        peer["guards"]["incoming"] = None
    assert broken(dict(held(young)), LIMITS, OVER) == []
    assert broken(dict(held({**young, "serving": None})), LIMITS, OVER) == []


def test_only_what_is_looked_at_from_time_to_time_may_be_over_its_limit() -> None:
    assert [row.name for row in BOUNDS if row.watched] == ["serving memory"]
