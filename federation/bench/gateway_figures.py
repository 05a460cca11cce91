"""What a replay's gateways say of bytes moved, the age of views, pulls, and what all of it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from federation.bench.session import Outcome
from federation.bench.spans import durations_ms, load_spans
from federation.bench.tally import Tally, quantile
from federation.telemetry import SPAN_PEER_PULL


def gateway_figures(outcome: Outcome) -> dict[str, Any]:
    """Figures of the federated mode; each None where it was not measured."""
    tally = outcome.tallies.get("federated")
    gateways = tally.gateways if tally is not None else []
    counted = _counted(tally)
    pulls = pull_durations(outcome)
    age_s = view_age_s(gateways)
    # As it was, not as it was asked for: on a busy machine requests are sent late.
    rate = tally.rate if tally is not None else None
    p50, p99 = quantile(pulls, 0.50), quantile(pulls, 0.99)
    if not pulls:  # tracing is off: the worse of the gateways' own quantiles, a block each
        own = [g["pulls"]["pull_ms"] for g in gateways if "pulls" in g]
        p50 = max((o["p50"] for o in own if o["p50"] is not None), default=None)
        p99 = max((o["p99"] for o in own if o["p99"] is not None), default=None)
    return {
        "peer_bytes": _sum(counted, "moonmesh_peer_bytes_total"),
        "metadata_bytes": _sum(counted, "moonmesh_metadata_sent_bytes_total"),
        "view_age_requests": age_s * rate if age_s is not None and rate else None,
        "pull_ms_p50": p50,
        "pull_ms_p99": p99,
    }


def cost_figures(outcome: Outcome, block_bytes: int) -> dict[str, Any]:
    """What hints cost that were stale or wrong, and what it cost to send them.

    Blocks changed are those that came into a group: written by its engine, or pulled and admitted. Those
    that went again are told to peers as well, and not counted.

    Args:
        block_bytes: of each block.
    """
    tally = outcome.tallies.get("federated")
    counted = _counted(tally)
    missing = _sum(counted, "moonmesh_pull_missing_total")
    came = _sum(counted, "moonmesh_peer_blocks_total")
    admitted = _sum(counted, "moonmesh_admitted_total")
    sent = _sum(counted, "moonmesh_metadata_sent_bytes_total")
    wasted = share = metadata = None
    if tally is not None and missing is not None and came is not None:
        wasted = missing + max(0, came - tally.peer_hits)
        share = wasted / tally.blocks if tally.blocks else None
    if tally is not None and admitted is not None and sent is not None:
        changed = (tally.misses + admitted) * block_bytes
        metadata = sent / changed if changed else None
    return {
        "stale_misses": tally.stale_misses if tally is not None else None,
        "wasted_pulls": wasted,
        "wasted_share": share,
        "metadata_share": metadata,
    }


def pull_durations(outcome: Outcome) -> Sequence[float]:
    """How long each pull from a peer took, in ms, from the gateways' spans: exact over all groups,
    where quantiles of each gateway could not be joined."""
    folders = [f for f in outcome.trace_dirs.get("federated", ()) if f.is_dir()]
    if not folders:
        return []
    return durations_ms(load_spans(folders).traces.values(), SPAN_PEER_PULL)


def view_age_s(gateways: Sequence[Mapping[str, Any]]) -> float | None:
    """Mean age, in seconds, of the views that look-ups were answered from, over all gateways."""
    total, count = 0.0, 0
    for gateway in gateways:
        found = gateway.get("pulls", {}).get("view_age_ms", {})
        if found.get("count"):
            total += float(found["mean"]) * int(found["count"]) / 1e3
            count += int(found["count"])
    return total / count if count else None


def _counted(tally: Tally | None) -> list[Mapping[str, Any]]:
    """The counters of each gateway that answered."""
    gateways = tally.gateways if tally is not None else []
    return [g["counters"] for g in gateways if isinstance(g.get("counters"), Mapping)]


def _sum(counted: Sequence[Mapping[str, Any]], name: str) -> int | None:
    return sum(int(c.get(name, 0)) for c in counted) if counted else None
