"""What a soak found: a row a process, and what every run is judged by anyway."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from chaos.report import as_dict
from chaos.runner import Outcome
from chaos.soak.trend import UNIT, Trend
from federation.bench.report import Target
from local_group.config import MIB


def soak_dict(outcome: Outcome, seed: int, rate: float, trends: Sequence[Trend], short: int) -> Any:
    """The report as it stands in the JSON file: that of the runs, and `soak`."""
    report = as_dict(outcome, seed)
    for one in report["scenarios"]:
        if one["held"]:  # an hour of charts in which nothing is to be seen
            one["figures"].pop("story", None)
    counted = [r for r in outcome.counted if not r.interrupted]
    report["soak"] = {
        "rate": rate,
        "trends": [
            {
                "process": t.process,
                "figure": t.figure,
                "seconds": round(t.seconds, 1),
                "begin": t.begin,
                "growth": t.growth,
                "noise": t.noise,
                "held": t.held,
                "medians": t.medians,
            }
            for t in trends
        ],
        "short_lives": short,
    }
    worst = {figure: _worst(trends, figure) for figure in UNIT}
    report["targets"] = [
        *(
            Target(f"growth of {name} in any process, of what is noise", share, "<=", 1.0).as_dict()
            for name, share in worst.items()
        ),
        Target(
            "wrong bytes", sum(r.figures.get("wrong_bytes", 0) for r in counted), "==", 0, "B"
        ).as_dict(),
        Target(
            "runs of which all invariants held, as a share",
            sum(r.held for r in counted) / len(counted) if counted else None,
            ">=",
            1.0,
        ).as_dict(),
    ]
    report["held"] = outcome.held and bool(trends) and all(t.held for t in trends)
    return report


def _worst(trends: Sequence[Trend], figure: str) -> float | None:
    shares = [t.share for t in trends if t.figure == figure]
    return round(max(shares), 3) if shares else None


def show_trends(report: dict[str, Any], console: Console) -> None:
    """The table of processes."""
    table = Table(
        "process", "minutes", "figure", "at first", "growth", "noise", "", title_justify="left",
        title="what grew, the first third of each life left out",
    )  # fmt: skip
    for column in table.columns[3:6]:
        column.justify = "right"
    for one in report["soak"]["trends"]:
        unit, suffix = (MIB, " MiB") if one["figure"] == "rss" else (1, "")
        table.add_row(
            one["process"],
            f"{one['seconds'] / 60:.1f}",
            one["figure"],
            *(f"{one[name] / unit:.1f}{suffix}" for name in ("begin", "growth", "noise")),
            Text("no trend", "green") if one["held"] else Text("GROWS", "bold red"),
        )
    console.print(table)
    if not report["soak"]["trends"]:
        console.print(Text("no process lived long enough to tell", "bold red"))
    console.print(
        f"{report['soak']['short_lives']} processes lived too short to say anything of",
        style="dim",
    )
