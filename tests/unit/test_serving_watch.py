"""What a gateway makes of a serving process's silence, and of what it reports."""

from __future__ import annotations

import json

import pytest

from federation.counters import counters
from federation.peers.details import PULLS_MAX
from federation.peers.watch import Absorber, Watch
from federation.trust.handshakes import RefusalLog
from moonmesh.v1 import serving_pb2


def test_silence_is_counted_in_ticks_since_the_last_answer() -> None:
    watch = Watch()
    assert [watch.tick(), watch.tick()] == [1, 2]
    watch.pong()
    watch.pong()
    assert [watch.tick(), watch.tick(), watch.tick()] == [0, 1, 2]


def report(total: int, *refused: tuple[str, int]) -> serving_pb2.ServingReport:
    message = serving_pb2.ServingReport(details_json=json.dumps({"blocks": total}))
    message.counters["moonmesh_absorbed_test_total"] = total
    for who, count in refused:
        message.refused.add(who=who, reason="r", count=count, last_at=float(count))
    return message


def test_what_it_counted_outlives_it() -> None:
    def total() -> int:
        return counters.snapshot().get("moonmesh_absorbed_test_total", 0)

    before, log = total(), RefusalLog()
    first = Absorber(log)
    first.absorb(report(5, ("evil", 2)))
    first.absorb(report(7, ("evil", 3), ("bad", 1)))
    second = Absorber(log)  # of the next process, which begins at 0
    second.absorb(report(4, ("evil", 1)))
    assert total() - before == 11
    assert {entry.who: entry.count for entry in log.entries()} == {"evil": 4, "bad": 1}
    assert second.details == {"blocks": 4}


@pytest.mark.parametrize("details", ["[]", "{", "[" * 200_000, '{"guards": 5}'])
def test_a_report_that_is_none_is_refused(details: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json's own, or ours
        Absorber(RefusalLog()).absorb(serving_pb2.ServingReport(details_json=details))


def test_a_counter_with_no_counters_name_is_refused() -> None:
    message = serving_pb2.ServingReport(details_json="{}")
    message.counters["rm -rf"] = 1
    with pytest.raises(ValueError, match="counter"):
        Absorber(RefusalLog()).absorb(message)


def test_details_stay_what_they_were_where_a_report_has_none() -> None:
    absorber = Absorber(RefusalLog())
    absorber.absorb(serving_pb2.ServingReport(details_json='{"blocks": 4}', pulls=3))
    absorber.absorb(serving_pb2.ServingReport(store_well=True, pulls=PULLS_MAX))
    assert (absorber.details, absorber.pulls) == ({"blocks": 4}, PULLS_MAX)
    with pytest.raises(ValueError, match="pulls open"):
        absorber.absorb(serving_pb2.ServingReport(pulls=PULLS_MAX + 1))
