"""What a run measured, beside its verdicts: what the suite's targets are made of."""

from __future__ import annotations

from typing import Any

from chaos.invariants.comparison import Compared
from chaos.invariants.judge import cap_bytes
from chaos.record import Record
from chaos.story import story

IN_TIME_MS = 10.0
"""How far beyond its deadline a read of a frozen peer may return."""


def figures(record: Record, limits: dict[str, Any], compared: Compared) -> dict[str, Any]:
    """All figures of a run, for its JSON report.

    Args:
        limits: `[limits]` of the groups, as they ran.
        compared: the local reads of this record.
    """
    topology = record.scenario.topology
    during = [s for group in topology.groups for s in record.fault.during(group, "peer")]
    growth = max(
        (u.rss - record.base_rss.get(g, 0) for p in record.passes for g, u in p.usage.items()),
        default=0,
    )
    cap = cap_bytes(limits, topology.serving_workers, topology.pulling_workers)
    return {
        "verified_bytes": record.verified_bytes(),
        "wrong_bytes": sum(t.wrong_bytes for _, t in record.totals())
        + sum(a.wrong_bytes for _, a in record.audits()),
        "poisoned_bytes": sum(t.poisoned_bytes for _, t in record.totals()),
        "calls": sum(len(calls) for one in record.passes for calls in one.samples.values()),
        "calls_left_out": sum(t.behind for _, t in record.totals()),
        "peer_reads_during_fault": len(during),
        "of_them_in_time": sum(s.late_ms <= IN_TIME_MS for s in during),
        "scheduling_ms_max": max((t.scheduling_ms_max for _, t in record.totals()), default=0.0),
        "gateway_rss_growth_max": growth,
        "gateway_memory_of_cap": round(growth / cap, 3),
        "local_p99": _local_p99(compared),
        "cores": [
            {"kind": p.kind, "before": p.cores_before, "while": p.cores, "burnt": p.burnt}
            for p in record.passes
        ],
        "books": record.books,
        "story": story(record),
    }


def _local_p99(found: Compared) -> dict[str, Any]:
    return {
        "against": found.against,
        "fault_ms": found.fault_ms,
        "other_ms": found.other_ms,
        "allowed_ms": found.allowed_ms,
        "excess_ms": found.excess_ms,
        "calls": found.calls,
        "cores": found.cores,
    }
