"""`moonmesh sim`: a federation in one process and no time. Loaded by `moonmesh` by name."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from chaos.sim.mesh.cli import mesh
from chaos.sim.playing import play_all

app = typer.Typer(
    help="Simulate: the same engines, a virtual clock, a network that breaks.", no_args_is_help=True
)

GOLDEN = "tests/data/{gossip,mesh}"
"""Where the scenarios are, in a source tree."""


app.command()(mesh)


class FaultsWish(str, Enum):
    none = "none"
    loss = "loss"
    all = "all"


class PresetWish(str, Enum):
    wan = "wan"
    lan = "lan"
    test = "test"


@app.command()
def gossip(
    groups: Annotated[int, typer.Option(min=2, max=1024, help="Groups in the world.")] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Of all that is drawn.")] = 0,
    rounds: Annotated[int, typer.Option(min=10, max=100_000, help="Hello intervals.")] = 200,
    faults: Annotated[
        FaultsWish, typer.Option(help="What breaks: 20 % of the messages, or everything there is.")
    ] = FaultsWish.none,
    seeds: Annotated[int, typer.Option(min=1, max=1_000_000, help="So many, from --seed up.")] = 1,
    preset: Annotated[PresetWish, typer.Option(help="Intervals of gossip.")] = PresetWish.wan,
    processes: Annotated[
        int | None, typer.Option(min=1, max=64, help="At once.", show_default="as many as cores")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report.")] = None,
) -> None:
    """Runs worlds; exit 1 if an invariant breaks, with the story and the command that repeats it."""
    from chaos.sim.run import HEAL_ROUNDS, ROUNDS_MIN, Request, run_seeds
    from chaos.sim.show import summary
    from federation.bench.report import check_writable
    from federation.errors import UsageError

    check_writable(json_file)
    if faults is FaultsWish.all and rounds < ROUNDS_MIN:
        raise UsageError(
            f"all faults need at least {ROUNDS_MIN} rounds, not {rounds}",
            where="--rounds",
            hint=f"the last {HEAL_ROUNDS} are without faults",
        )
    requests = [
        Request(
            groups=groups,
            seed=chosen,
            rounds=rounds,
            faults=faults.value,
            preset=preset.value,
        )
        for chosen in range(seed, seed + seeds)
    ]
    play_all(requests, run_seeds, summary, processes=processes, json_file=json_file)


@app.command()
def golden(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Scenarios.", show_default=f"all in {GOLDEN}"),
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Write what comes of them now.")] = False,
) -> None:
    """Plays scenario files; exit 1 if something else comes of them than they say."""
    from chaos.sim.golden import difference, play
    from federation.bench.report import write_whole
    from federation.errors import UsageError

    folders = (Path("tests/data") / kind for kind in ("gossip", "mesh"))
    chosen = files or [path for folder in folders for path in sorted(folder.glob("*.txt"))]
    if not chosen:
        raise UsageError("no scenarios", where=GOLDEN, hint="name files, or go to the source tree")
    for path in chosen:
        if not path.is_file():
            raise UsageError("no such file", where=str(path))
    other = False
    for path in chosen:
        found = difference(path)
        if not found:
            continue
        other = True
        if write:
            write_whole(play(path.read_text("utf-8"), str(path)), path)
            typer.echo(f"{path}: written")
        else:
            typer.echo(found, nl=False)
    if other and not write:
        raise typer.Exit(1)
