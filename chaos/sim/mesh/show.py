"""Results of worlds of gateways as text."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table

from chaos.sim.mesh.run import Result

TIERS = ("local", "peer", "computed")


def summary(results: list[Result], console: Console) -> None:
    """One table of all worlds."""
    broken = sum(result.failure is not None for result in results)
    table = Table("figure", "value")
    table.columns[1].justify = "right"
    table.add_row(
        "worlds in which all invariants held", f"{len(results) - broken} of {len(results)}"
    )
    table.add_row("simulated", f"{sum(r.seconds for r in results):,.0f} s")
    tally: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for result in results:
        tally.update(result.tally)
        refused.update(result.refused)
    table.add_row("reads of engines", f"{tally['reads']:,}")
    asked = sum(tally[tier] for tier in TIERS)
    names = ("from their own Mooncake", "from peers", "computed")
    for tier, name in zip(TIERS, names, strict=True):
        share = f" ({tally[tier] / asked:.1%})" if asked else ""
        table.add_row(f"blocks {name}", f"{tally[tier]:,}{share}")
    table.add_row("bytes from peers", f"{tally['peer_bytes']:,}")
    table.add_row("bytes between groups, all in all", f"{sum(r.line_bytes for r in results):,}")
    table.add_row("blocks that engines were told exist", f"{tally['existed']:,}")
    table.add_row("calls to a gateway that was off or frozen", f"{tally['unanswered']:,}")
    for name, n in sorted(refused.items()):
        table.add_row(_worded(name), f"{n:,}")
    if len(results) == 1:
        table.add_row("hash of all that happened", results[0].digest)
    console.print(table)


def _worded(name: str) -> str:
    return name.removeprefix("moonmesh_").replace("_total", "").replace("_", " ")
