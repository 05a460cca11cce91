"""`moonmesh sim mesh`: whole gateways in one process and no time."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from chaos.sim.playing import play_all


class FaultsWish(str, Enum):
    none = "none"
    all = "all"


def mesh(
    groups: Annotated[int, typer.Option(min=2, max=64, help="Groups in the world.")] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Of all that is drawn.")] = 0,
    rounds: Annotated[
        int, typer.Option(min=10, max=100_000, help="Hello intervals, which are seconds.")
    ] = 60,
    faults: Annotated[FaultsWish, typer.Option(help="What breaks.")] = FaultsWish.none,
    seeds: Annotated[int, typer.Option(min=1, max=1_000_000, help="So many, from --seed up.")] = 1,
    processes: Annotated[
        int | None, typer.Option(min=1, max=64, help="At once.", show_default="as many as cores")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report.")] = None,
) -> None:
    """Runs worlds of whole gateways; exit 1 if an invariant breaks, with the story and the command that
    repeats it."""
    from chaos.sim.mesh.run import HEAL_ROUNDS, ROUNDS_MIN, Request, run_seeds
    from chaos.sim.mesh.show import summary
    from federation.bench.report import check_writable
    from federation.errors import UsageError

    check_writable(json_file)
    if rounds < ROUNDS_MIN:
        raise UsageError(
            f"a world needs at least {ROUNDS_MIN} rounds, not {rounds}",
            where="--rounds",
            hint=f"the last {HEAL_ROUNDS} are without faults",
        )
    requests = [
        Request(groups=groups, seed=chosen, rounds=rounds, faults=faults.value)
        for chosen in range(seed, seed + seeds)
    ]
    play_all(requests, run_seeds, summary, processes=processes, json_file=json_file)
