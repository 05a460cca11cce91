"""Results and engines' views as text."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from chaos.sim.playing import Played
    from chaos.sim.run import Result
    from gossip.view import PeerView


def progress(console: Console) -> Progress:
    """A bar on a terminal, nothing elsewhere."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )


def tell(result: Played, console: Console) -> None:
    """The short story of a world in which something broke."""
    failure = result.failure
    if failure is None:
        return
    lines = [
        f"BROKEN, seed {result.request.seed}, after {failure.at:.3f} s: {failure.invariant}",
        f"  {failure.detail}",
        "  faults that began before, of those concerned:",
        *(f"    {line}" for line in failure.faults or ["none"]),
        "  what was said of those concerned, last:",
        *(f"    {line}" for line in failure.story or ["nothing"]),
        f"  again: {result.request.command}",
    ]
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def summary(results: list[Result], console: Console) -> None:
    """One table of all worlds."""
    from chaos.sim.convergence import percentile

    broken = sum(result.failure is not None for result in results)
    table = Table("figure", "value")
    table.columns[1].justify = "right"
    table.add_row(
        "worlds in which all invariants held", f"{len(results) - broken} of {len(results)}"
    )
    table.add_row("simulated", f"{sum(r.seconds for r in results):,.0f} s")
    table.add_row("messages, replies included", f"{sum(r.messages for r in results):,}")
    table.add_row("of these lost", f"{sum(r.lost for r in results):,}")
    sent = [r.bytes_per_group_second for r in results]
    table.add_row("bytes a second and group", f"{sum(sent) / max(1, len(sent)):,.0f}")
    taken = sorted(rounds for result in results for rounds in result.rounds_to_converge)
    if taken:
        table.add_row("statements followed", f"{len(taken):,}")
        table.add_row("rounds until known everywhere, p50", _rounds(percentile(taken, 0.5)))
        table.add_row("p99", _rounds(percentile(taken, 0.99)))
        table.add_row("longest", _rounds(taken[-1]))
    if len(results) == 1:
        table.add_row("hash of all that happened", results[0].digest)
    console.print(table)


def describe(peer: PeerView) -> str:
    """What an engine believes of a peer, in one line."""
    words = [peer.name, str(peer.version or "-"), peer.state.value]
    words.append("no link" if peer.link is None else f"link {peer.link.value}")
    if peer.health.name not in ("OK", "UNKNOWN"):
        words.append(peer.health.name.lower())
    if peer.quarantine is not None:
        words.append(f"quarantined ({peer.quarantine.reason.value})")
    words.append("pullable" if peer.pullable else "not pullable")
    return ", ".join(words)


def event_text(event: object) -> str:
    """An event of an engine as people read it."""
    values = [getattr(event, f.name) for f in fields(event)] if is_dataclass(event) else []
    shown = [_value(value) for value in values if value not in ("", (), 0.0)]
    return f"{type(event).__name__}({', '.join(shown)})"


def _value(value: object) -> str:
    if isinstance(value, Enum):
        return str(value.name).lower()
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return "+".join(map(str, value))
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _rounds(value: float) -> str:
    return "not within the run" if math.isinf(value) else f"{value:.2f}"
