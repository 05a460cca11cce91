"""Every invariant, on records made by hand: it holds where it should, and breaks where it should."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from chaos.execution import seen_enough
from chaos.invariants.judge import cap_bytes
from chaos.invariants.parameters import Invariants
from chaos.layout import BASE_LIMITS
from chaos.record import PROBE, Record
from federation.limits_config import SERVING_BYTES_PER_BLOCK
from local_group.config import MIB
from tests.support.records import (
    BEGIN,
    END,
    FAULT,
    GROUPS,
    HEALED,
    add,
    audit,
    call,
    judged,
    scenario,
    sound,
    totals,
    verdict,
)


def test_a_sound_run_breaks_nothing() -> None:
    record = sound(
        felt={"peer_hits_below": 0.5},
        returns={"within_s": 1},
        contained={"group": "west", "origin": "evil"},
        leased={"name": "evil"},
        counters=[{"group": "west", "name": "moonmesh_x_total"}],
        refused=[{"group": "west", "who": "evil", "says": "lie"}],
    )
    verdicts = judged(record)
    assert [v for v in verdicts if not v.held] == []
    assert len(verdicts) == 15


BREAKS: list[tuple[str, Callable[[Record], None]]] = [
    ("wrong_bytes", lambda r: setattr(totals(r), "wrong_bytes", 1)),
    ("wrong_bytes", lambda r: setattr(audit(r), "wrong_bytes", 1)),
    ("late_writes", lambda r: setattr(totals(r), "late_writes", 1)),
    ("deadlines", lambda r: add(r, call(FAULT, late_ms=10.1))),
    ("deadlines", lambda r: r.passes[0].ended.update(west=False)),
    ("errors", lambda r: totals(r).errors.append("get: ValueError: x")),
    ("errors", lambda r: totals(r).codes.update({"peer -800": 1})),
    ("errors", lambda r: totals(r).codes.update({"put -901": 10_000})),
    ("errors", lambda r: add(r, *(call(HEALED, local=0, misses=4) for _ in range(300)))),
    ("acknowledged", lambda r: setattr(audit(r), "lost", 1)),
    ("acknowledged", lambda r: setattr(audit(r), "unread", 1)),
    ("bounded", lambda r: setattr(r.passes[0].usage["west"], "descriptors", 10_000)),
    ("bounded", lambda r: setattr(r.passes[0].usage["west"], "threads", 10_000)),
    ("bounded", lambda r: r.passes[0].usage["west"].held.update({"staging bytes": 65 * MIB})),
    ("bounded", lambda r: r.passes[0].usage["west"].held.pop("counters")),
    ("bounded", lambda r: setattr(r.passes[0].usage["west"], "seen", 0)),
    ("healthy", lambda r: r.problems.append("west: gateway is restarting")),
    ("leftovers", lambda r: r.leftovers.append("1 sleep")),
]


@pytest.mark.parametrize(("name", "spoil"), BREAKS)
def test_one_thing_wrong_breaks_one_invariant(name: str, spoil: Callable[[Record], None]) -> None:
    record = sound()
    spoil(record)
    assert [v.name for v in judged(record) if not v.held] == [name]


def test_lateness_up_to_the_slack_and_few_timeouts_are_let_pass() -> None:
    record = sound()
    add(record, call(FAULT, late_ms=10.0))
    add(record, call(FAULT, local=0, misses=4))
    totals(record).codes.update({"put -900": 4, "local -901": 4})
    assert all(v.held for v in judged(record))


def test_memory_may_grow_by_what_the_limits_allow_and_a_tenth() -> None:
    cap = cap_bytes(BASE_LIMITS)
    record = sound()
    usage = record.passes[0].usage["west"]
    usage.rss = 100 * MIB + int(1.09 * cap)
    assert verdict(record, "bounded").held
    usage.rss = 100 * MIB + int(1.11 * cap)
    assert not verdict(record, "bounded").held


def test_further_processes_have_memory_of_their_own() -> None:
    one = cap_bytes(BASE_LIMITS)
    more = (32 + 16) * MIB + SERVING_BYTES_PER_BLOCK * BASE_LIMITS["holdings_blocks"]
    assert cap_bytes(BASE_LIMITS, serving=2) == one + more, "bounce buffers, kept memory, blocks"
    assert cap_bytes(BASE_LIMITS, pulling=2) == one + 2 * 64 * MIB, "staging, which each has mapped"


def test_too_little_verified_proves_nothing() -> None:
    assert not verdict(sound(wrong_bytes={"verified_mib": 10_000}), "wrong_bytes").held


def test_a_fault_that_nobody_felt_proves_nothing() -> None:
    record = sound(felt={"peer_hits_below": 0.5})
    assert verdict(record, "felt").held
    for group in GROUPS:
        record.passes[0].samples[group] = [call(FAULT + 0.1, "peer", peer=4)]
    assert not verdict(record, "felt").held


def test_hits_are_counted_in_blocks_while_the_fault_lasts() -> None:
    record = sound(hits={"at_least": 0.8})
    assert not verdict(record, "hits").held
    for group in GROUPS:
        record.passes[0].samples[group] = [
            call(FAULT - 1, "peer", local=0, misses=4),
            call(FAULT + 0.1, "peer", local=0, peer=4),
        ]
    assert verdict(record, "hits").value == 1


def test_peer_hits_have_to_return_to_every_group_in_time() -> None:
    record = sound(returns={"within_s": 1, "chains": 3})
    assert verdict(record, "returns").value == pytest.approx(0.0, abs=0.2)
    west = record.passes[0].samples["west"]
    record.passes[0].samples["west"] = [
        s._replace(peer=0, misses=4) if s.kind == "peer" and s.at < HEALED + 1.5 else s
        for s in west
    ]
    late = verdict(record, "returns")
    assert not late.held
    assert late.detail.startswith("west: 1.5")
    record.passes[0].samples["west"] = [s for s in west if s.kind != "peer" or s.at < HEALED]
    assert "west: not at all" in verdict(record, "returns").detail


def test_the_load_goes_on_until_hits_are_back_and_local_reads_can_be_compared() -> None:
    record = sound(returns={"within_s": 3})
    one = record.passes[0]
    compared = one.compared[1]
    assert not seen_enough(record.scenario, one, GROUPS, compared - 0.01), (
        "hits alone are not enough"
    )
    assert seen_enough(record.scenario, one, GROUPS, compared)
    unjudged = scenario(returns={"within_s": 3}, local_p99={"off": "nothing to compare"})
    assert seen_enough(unjudged, one, GROUPS, HEALED)
    assert not seen_enough(scenario(), one, GROUPS, END), (
        "nothing is waited for: it goes on to its end"
    )
    one.samples["east"] = [s for s in one.samples["east"] if s.kind != "peer" or s.at < HEALED]
    assert not seen_enough(record.scenario, one, GROUPS, END), "east's are not back"


def test_chains_of_hostile_peers_count_neither_for_returns_nor_against() -> None:
    record = sound(returns={"within_s": 1})
    west = record.passes[0].samples["west"]
    # Every other chain that west asks for is the hostile peer's, and never read whole.
    lies = [call(BEGIN + 0.05 + i / 10, "peer", local=0, misses=4, owner="evil") for i in range(50)]
    record.passes[0].samples["west"] = west + lies
    assert verdict(record, "returns").held
    honest = [s for s in west if s.kind != "peer"]
    whole = [s._replace(local=0, peer=4, misses=0) for s in lies]
    record.passes[0].samples["west"] = honest + whole
    assert verdict(record, "returns").held, "east asked for west's, and they returned"
    record.passes[0].samples["east"] = [
        s for s in record.passes[0].samples["east"] if s.kind != "peer"
    ]
    assert not verdict(record, "returns").held, "nobody asked a real group for anything"


def test_only_the_owners_that_are_named_have_to_return() -> None:
    def without_easts(**returns: Any) -> Record:
        record = sound(returns=returns)
        record.passes[0].samples["west"] = [
            s for s in record.passes[0].samples["west"] if s.kind != "peer" or s.at < HEALED
        ]
        return record

    assert not verdict(without_easts(within_s=1), "returns").held
    assert verdict(without_easts(within_s=1, owners=["west"]), "returns").held


@pytest.mark.parametrize(
    ("sign", "spoil"),
    [
        ({"peer_hits_below": 0.5}, {"peer": 4, "misses": 0}),
        ({"peer_ms_at_least": 0.9}, {"ms": 0.8}),
    ],
)
def test_each_sign_of_a_fault_can_be_missing(sign: dict[str, Any], spoil: dict[str, Any]) -> None:
    record = sound(felt=sign)
    assert verdict(record, "felt").held
    for group in GROUPS:
        record.passes[0].samples[group] = [
            s._replace(**spoil) if s.kind == "peer" else s for s in record.passes[0].samples[group]
        ]
    assert not verdict(record, "felt").held


def test_a_fault_of_the_own_mooncake_is_felt_in_blocks_that_it_did_not_give() -> None:
    record = sound(felt={"given_up_at_least": 8})
    add(record, call(FAULT + 0.1, local=0, misses=4), call(HEALED, local=0, misses=4))
    assert not verdict(record, "felt").held, "one while it lasted, one after"
    add(record, call(FAULT + 0.2, local=0, misses=4))
    assert verdict(record, "felt").held


def test_all_signs_that_are_named_have_to_be_seen() -> None:
    record = sound(felt={"peer_hits_below": 0.5, "given_up_at_least": 1})
    found = verdict(record, "felt")
    assert not found.held
    assert found.limit == "< 0.5, >= 1"


def test_a_sign_has_to_be_named() -> None:
    with pytest.raises(ValidationError, match="felt needs"):
        scenario(felt={})


def test_local_reads_are_compared_with_their_spread() -> None:
    record = sound()
    same = verdict(record, "local_p99")
    assert same.held
    assert "with burners" in same.detail
    # Twice as slow, all along: beyond any spread.
    slow = [s._replace(ms=2 * s.ms) for s in record.passes[0].samples[PROBE]]
    record.passes[0].samples[PROBE] = slow
    slower = verdict(record, "local_p99")
    assert not slower.held
    assert slower.value == pytest.approx(2 * (same.value or 0))


def test_without_burners_local_reads_are_compared_with_those_before_the_fault() -> None:
    record = sound()
    del record.passes[1]
    record.quiet = [[1.0] * 20] * 10
    assert not verdict(record, "local_p99").held
    record.quiet = [[2.0] * 20] * 10
    found = verdict(record, "local_p99")
    assert found.held
    assert "while nothing was broken" in found.detail


def test_a_read_that_missed_took_its_whole_deadline() -> None:
    record = sound()
    missed = [call(FAULT + 0.35 + i / 50, ms=0.1, local=0, misses=4) for i in range(30)]
    record.passes[0].samples[PROBE] += missed
    found = verdict(record, "local_p99")
    assert not found.held
    assert (found.value or 0) > 100


def test_reads_that_were_due_during_a_stall_count() -> None:
    workload = record_of_one_stall().scenario.workload
    one = record_of_one_stall().passes[0]
    (stretch,) = one.stretches(FAULT, HEALED, workload)
    period = 1000 / workload.probe_rate
    assert stretch[:3] == [100.0, 100.0 - period, 100.0 - 2 * period]
    assert len(stretch) == 11


def record_of_one_stall() -> Record:
    record = sound()
    record.passes[0].samples[PROBE] = [call(FAULT, ms=100.0)]
    return record


def test_what_cannot_be_told_apart_is_said() -> None:
    record = sound()
    reads_ = record.passes[0].samples[PROBE]
    slow = [s._replace(ms=9.0) if i == 400 else s for i, s in enumerate(reads_)]
    record.passes[0].samples[PROBE] = [
        s._replace(ms=9.0) if 2 <= i - 399 <= 3 else s for i, s in enumerate(slow)
    ]
    found = verdict(record, "local_p99")
    assert (found.held, found.unsure) == (True, True)


def test_few_local_reads_cannot_be_compared() -> None:
    record = sound()
    record.passes[1].samples[PROBE] = record.passes[1].samples[PROBE][:50]
    assert "too few" in verdict(record, "local_p99").detail
    assert not verdict(record, "local_p99").held


@pytest.mark.parametrize(
    "origins",
    [
        {},
        {"guest/evil": 3, "demo/evil": 1},
        {"guest/evil": 3, "guest/east": 1},
    ],
)
def test_poison_that_spreads_or_is_not_on_record_is_not_contained(
    origins: dict[str, int],
) -> None:
    record = sound(contained={"group": "west", "origin": "evil"})
    assert verdict(record, "contained").held
    record.origins["west"] = origins
    assert not verdict(record, "contained").held


@pytest.mark.parametrize("purged", [(2, 1), (0, 0), None, "the gateway does not answer"])
def test_poison_that_cannot_be_purged_is_not_contained(
    purged: tuple[int, int] | str | None,
) -> None:
    record = sound(contained={"group": "west", "origin": "evil"})
    record.purged = purged
    assert not verdict(record, "contained").held


@pytest.mark.parametrize(("got", "held"), [(0, False), (26 * MIB, True), (27 * MIB, False)])
def test_what_is_leased_for_a_peer_is_bounded(got: int, held: bool) -> None:
    record = sound(leased={"name": "evil"})
    record.books["evil"]["window_bytes_max"] = got
    assert verdict(record, "leased").held is held


@pytest.mark.parametrize(
    ("low", "high", "held"), [(3, None, True), (4, None, False), (0, 2, False)]
)
def test_a_counter_is_summed_over_its_labels(low: int, high: int | None, held: bool) -> None:
    counter = {"group": "west", "name": "moonmesh_x_total", "at_least": low}
    if high is not None:
        counter["at_most"] = high
    assert verdict(sound(counters=[counter]), "counter").held is held


def test_what_is_off_is_shown_with_its_reason_and_not_judged() -> None:
    record = sound(acknowledged={"off": "the store was killed"})
    audit(record).lost = 10
    shown = verdict(record, "acknowledged")
    assert (shown.held, shown.off) == (True, "the store was killed")


def test_the_defaults_are_the_ones_that_always_apply() -> None:
    names = {name for name, value in Invariants() if value}
    assert names == {
        "wrong_bytes",
        "late_writes",
        "deadlines",
        "errors",
        "acknowledged",
        "bounded",
        "healthy",
        "leftovers",
        "local_p99",
    }


@pytest.mark.parametrize(("share", "held"), [(1.0, True), (0.96, True), (0.9, False)])
def test_groups_beside_the_fault_keep_their_throughput(share: float, held: bool) -> None:
    record = sound(keeps={"groups": ["west"], "calls": 10})
    one = record.fault
    before = [call(BEGIN + i / 200, local=100) for i in range(200)]
    during = [call(FAULT + i / 200, local=round(100 * share)) for i in range(200)]
    one.samples["west"] = before + during
    found = verdict(record, "keeps")
    assert found.held is held
    assert found.value == pytest.approx(share, abs=0.02)


def test_too_few_calls_do_not_show_that_throughput_was_kept() -> None:
    assert not verdict(sound(keeps={"groups": ["west"], "calls": 10_000}), "keeps").held


@pytest.mark.parametrize(("restarts", "held"), [(0, False), (1, False), (2, True)])
def test_a_restart_is_felt_where_parts_were_started_anew(restarts: int, held: bool) -> None:
    record = sound(felt={"restarts_at_least": 2})
    record.restarts = restarts
    assert verdict(record, "felt").held is held
