"""Whether a fault reached what it was meant to break: else a run in which all holds shows nothing."""

from __future__ import annotations

import statistics

from chaos.invariants.parameters import Felt, Keeps
from chaos.invariants.verdict import Verdict
from chaos.load.spec import Sample
from chaos.record import SETTLED_S, Record


def felt(record: Record, p: Felt) -> Verdict:
    """All that the scenario names as a sign of its fault was seen while it lasted."""
    peer = _while_it_lasted(record, "peer")
    given_up = sum(s.misses for s in _while_it_lasted(record, "local"))
    whole = sum(s.misses == 0 for s in peer)
    share = whole / max(1, len(peer))
    slow = statistics.quantiles((s.ms for s in peer), n=4)[2] if len(peer) > 1 else 0.0
    signs: list[tuple[bool, float, str, str]] = []
    if p.peer_hits_below is not None:
        text = f"{whole} of {len(peer)} fresh chains were read whole while it lasted"
        held = bool(peer) and share < p.peer_hits_below
        signs.append((held, round(share, 3), f"< {p.peer_hits_below:g}", text))
    if p.peer_ms_at_least is not None:
        text = f"a quarter of {len(peer)} reads of fresh chains took so long"
        held = bool(peer) and slow >= p.peer_ms_at_least
        signs.append((held, round(slow, 1), f">= {p.peer_ms_at_least:g} ms", text))
    if p.given_up_at_least is not None:
        text = "blocks of the own groups that their Mooncake did not give in time"
        held = given_up >= p.given_up_at_least
        signs.append((held, given_up, f">= {p.given_up_at_least}", text))
    if p.restarts_at_least is not None:
        held = record.restarts >= p.restarts_at_least
        text = "parts of groups were started anew"
        signs.append((held, record.restarts, f">= {p.restarts_at_least}", text))
    return Verdict(
        name="felt",
        held=all(sign[0] for sign in signs),
        value=signs[0][1],
        limit=", ".join(sign[2] for sign in signs),
        detail="; ".join(sign[3] for sign in signs),
    )


def _while_it_lasted(record: Record, kind: str) -> list[Sample]:
    groups = record.scenario.topology.groups
    return [s for group in groups for s in record.fault.during(group, kind)]


def keeps(record: Record, p: Keeps) -> Verdict:
    """Groups beside the fault were given as many blocks a second as before it."""
    one = record.fault
    before = after = calls_before = calls_after = 0
    for group in p.groups:
        for s in one.of(group, "local", "peer"):
            if one.begin + SETTLED_S <= s.at < one.fault_at:
                before, calls_before = before + s.local + s.peer, calls_before + 1
            elif one.fault_at + SETTLED_S <= s.at < one.fault_end:
                after, calls_after = after + s.local + s.peer, calls_after + 1
    quiet_s = one.fault_at - one.begin - SETTLED_S
    fault_s = one.fault_end - one.fault_at - SETTLED_S
    share = (after / fault_s) / (before / quiet_s) if before and fault_s > 0 else 0.0
    enough = min(calls_before, calls_after) >= p.calls
    return Verdict(
        name="keeps",
        held=enough and share >= p.at_least,
        value=round(share, 3),
        limit=f">= {p.at_least:g} of the blocks a second before the fault",
        detail=f"{', '.join(p.groups)}: {before} blocks in {quiet_s:.1f} s, {after} in {fault_s:.1f} s"
        + ("" if enough else f"; fewer than {p.calls} calls show nothing"),
    )
