"""The command `moonmesh bench gossip`; loaded by `moonmesh` by name."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

PLAIN_WIDTH = 120


def gossip(
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of it, and 256 groups.")] = False,
    link_hours: Annotated[
        float, typer.Option(min=1, max=1e6, help="Hours of all links that are watched for DOWNs.")
    ] = 500,
    seeds: Annotated[int, typer.Option(min=1, max=1_000_000, help="Worlds with all faults.")] = 50,
    only: Annotated[
        list[str] | None,
        typer.Option(help="One measurement; may be repeated. `real` starts a real group."),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report.")] = None,
) -> None:
    """Measure gossip in the simulator: convergence, detection, bytes, CPU, worlds with all faults."""
    from rich.console import Console

    from chaos.sim.bench import STEPS, GossipBench, gossip_report
    from federation.bench.report import check_writable
    from federation.errors import UsageError

    check_writable(json_file)
    chosen = tuple(only or ())
    for name in chosen:
        if name not in STEPS:
            raise UsageError(
                f"nothing is measured under the name {name!r}",
                where="--only",
                hint=f"there is: {', '.join(STEPS)}",
            )
    cores = len(os.sched_getaffinity(0))
    aside = Console(stderr=True, highlight=False)
    options = GossipBench(
        link_hours=link_hours,
        seeds=seeds,
        processes=cores,
        only=chosen,
        say=lambda text: aside.print(text, style="dim", markup=False),
    )
    if quick:
        options = replace(
            options,
            link_hours=link_hours / 10,
            seeds=max(1, seeds // 10),
            large=256,
            updates=40,
        )
    report = gossip_report(options)
    console = Console()
    report.print(console if console.is_terminal else Console(width=PLAIN_WIDTH))
    if json_file is not None:
        report.write(json_file)
