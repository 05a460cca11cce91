"""What each admission policy serves and moves over real groups: one replay of the same requests for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from federation.bench.report import Target
from federation.bench.tally import Tally
from federation.config import Admit

RATIO_TARGET: Final = 0.96
"""Hit rate over that of one real pool, where pools are so small that policies differ."""
MOVED_TARGET: Final = 0.85
"""Bytes that cross borders, over those if nothing is admitted."""


def frontier_figures(tallies: Mapping[str, Tally], admit: Admit) -> dict[str, dict[str, Any]]:
    """A column a policy; none where only one was measured.

    Args:
        admit: the policy of the federated mode; of the others their mode is the name.
    """
    played = {admit if name == "federated" else name: tally for name, tally in tallies.items()}
    columns = {name: played[name] for name in ("never", admit, "always") if name in played}
    if len(columns) < 2:
        return {}
    pool = played["one-pool"].hit_rate if "one-pool" in played else None
    moved = {name: _peer_bytes(tally) for name, tally in columns.items()}
    never = moved.get("never")
    return {
        name: {
            "hit_rate": tally.hit_rate,
            "ratio_to_one_pool": tally.hit_rate / pool if tally.hit_rate and pool else None,
            "foreign_bytes": moved[name],
            "foreign_over_never": of / never if (of := moved[name]) is not None and never else None,
            "copies_made": _sum(tally, "moonmesh_admitted_total"),
            "copies_given_back": _sum(tally, "moonmesh_copies_given_back_total"),
            "not_admitted_for_the_quota": _sum(tally, "moonmesh_admission_over_quota_total"),
        }
        for name, tally in columns.items()
    }


def frontier_targets(columns: Mapping[str, Mapping[str, Any]], admit: Admit) -> list[Target]:
    """What the policy of the federated mode is to show beside the others."""
    chosen = columns.get(admit)
    if chosen is None or "never" not in columns:
        return []
    return [
        Target(f"{admit}: ratio_to_one_pool", chosen["ratio_to_one_pool"], ">=", RATIO_TARGET),
        Target(f"{admit}: foreign_over_never", chosen["foreign_over_never"], "<=", MOVED_TARGET),
    ]


def _peer_bytes(tally: Tally) -> int | None:
    return _sum(tally, "moonmesh_peer_bytes_total")


def _sum(tally: Tally, name: str) -> int | None:
    """Of a counter, over all gateways that answered; None if none did."""
    counted = [each["counters"] for each in tally.gateways if "counters" in each]
    return sum(int(each.get(name, 0)) for each in counted) if counted else None
