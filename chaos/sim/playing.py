"""Worlds of either simulator, run on some processes, with what a command shows and writes of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from chaos.sim.run import Failure

PLAIN_WIDTH = 140


class Played(Protocol):
    """What became of a world."""

    @property
    def failure(self) -> Failure | None:
        """What did not hold."""

    @property
    def request(self) -> Any:
        """With the `seed` and the `command` that runs it again."""

    def as_dict(self) -> dict[str, Any]:
        """For a report."""


Q = TypeVar("Q")
P = TypeVar("P", bound=Played)


def play_all(
    requests: Sequence[Q],
    run_seeds: Callable[[Sequence[Q], int], Iterator[P]],
    summary: Callable[[list[P], Console], None],
    *,
    processes: int | None,
    json_file: Path | None,
) -> None:
    """Runs worlds with a bar, tells the story of each that breaks, and shows and writes the whole.

    Args:
        processes: at once; None: as many as there are cores.

    Raises:
        typer.Exit: with 1, if an invariant broke.
    """
    from chaos.sim.show import progress, tell
    from federation.bench.report import write_whole
    from federation.cli.errors import print_error
    from federation.errors import UsageError

    cores = len(os.sched_getaffinity(0)) if processes is None else processes
    screen = console()
    results: list[P] = []
    with progress(screen) as bar:
        task = bar.add_task("seeds", total=len(requests))
        for result in run_seeds(requests, min(cores, len(requests))):
            results.append(result)
            bar.advance(task)
            tell(result, bar.console)
    summary(results, screen)
    held = all(result.failure is None for result in results)
    if json_file is not None:
        report = {"held": held, "seeds": [result.as_dict() for result in results]}
        try:
            write_whole(json.dumps(report, indent=2) + "\n", json_file)
        except UsageError as error:
            if held:
                raise
            print_error(error)  # what broke decides the exit code
    if not held:
        raise typer.Exit(1)


def console() -> Console:
    """Where results are printed."""
    from rich.console import Console

    screen = Console(highlight=False)
    return screen if screen.is_terminal else Console(width=PLAIN_WIDTH, highlight=False)
