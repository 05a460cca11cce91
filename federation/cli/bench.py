"""`moonmesh bench ...`: measurements that share one form (see `federation.bench.report`)."""

from __future__ import annotations

import enum
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from federation.bench.report import Report

app = typer.Typer(help="Measure: a table, and JSON with --json.", no_args_is_help=True)

PLAIN_WIDTH = 120
"""Columns of a report that goes to no terminal."""
PORT_BASE = 7600
"""Where the search for free ports begins: beside the ports of the worked example."""
BLOCK_BYTES_MAX = 32 << 20
"""The largest block that a store client moves within a deadline (`StoreLimits.window_bytes`)."""


class ModeOption(str, enum.Enum):
    federated = "federated"
    isolated = "isolated"
    one_pool = "one-pool"
    all = "all"


class AdmitOption(str, enum.Enum):
    second_hit = "second-hit"
    always = "always"
    never = "never"


class PartOption(str, enum.Enum):
    loopback = "loopback"
    shaped = "shaped"
    workers = "workers"


class PlacementOption(str, enum.Enum):
    random = "random"
    first_block = "first-block"


def _aside() -> Callable[[str], None]:
    """Says what is going on, beside the report."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    return lambda text: console.print(text, style="dim", markup=False)


def _show(report: Report, json_file: Path | None, signal: int = 0) -> None:
    """Prints and writes a report; after a signal the exit code is as if that had ended us."""
    from rich.console import Console

    out = Console()
    report.print(out if out.is_terminal else Console(width=PLAIN_WIDTH))
    if json_file is not None:
        report.write(json_file)
    if signal:
        raise typer.Exit(128 + signal)


@app.callback()
def _keep_subcommands() -> None:
    """Measure: a table, and JSON with --json."""


@app.command()
def replay(
    trace: Annotated[
        Path | None,
        typer.Option(help="Mooncake trace, JSON lines.", show_default="the packaged cut"),
    ] = None,
    requests: Annotated[int, typer.Option(min=1, max=1_000_000, help="Play the first N.")] = 2000,
    groups: Annotated[int, typer.Option(min=1, max=16, help="Groups on this machine.")] = 2,
    block_bytes: Annotated[
        int, typer.Option(min=1, max=BLOCK_BYTES_MAX, help="Bytes a block.")
    ] = 8192,
    capacity_fraction: Annotated[
        float,
        typer.Option(
            min=0.001, max=100, help="Bytes that all groups can hold, over the unique bytes played."
        ),
    ] = 2.0,
    rate: Annotated[
        float | None,
        typer.Option(
            min=0.01, max=100_000, help="Requests a second.", show_default="as fast as answered"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random placement.")] = 0,
    mode: Annotated[ModeOption, typer.Option(help="What to measure.")] = ModeOption.all,
    placement: Annotated[
        PlacementOption, typer.Option(help="Which group a request goes to.")
    ] = PlacementOption.random,
    admit: Annotated[
        AdmitOption, typer.Option(help="What the federated groups keep of what they pull.")
    ] = AdmitOption.second_hit,
    frontier: Annotated[
        bool,
        typer.Option("--frontier", help="Play it with the other policies too: hits and bytes."),
    ] = False,
    concurrency: Annotated[int, typer.Option(min=8, max=256, help="Requests in flight.")] = 8,
    deadline_ms: Annotated[
        int, typer.Option(min=10, max=60_000, help="Of one read, and of one write.")
    ] = 1000,
    port_base: Annotated[
        int, typer.Option(min=1024, max=65_000, help="Look for free ports from here.")
    ] = PORT_BASE,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report.")] = None,
) -> None:
    """Play a trace over real groups, federated, isolated and as one pool, and check every byte.

    Starts its own groups in a temporary folder and always takes them down again.
    """
    from federation.bench.command import ReplayCommand, replay_report
    from federation.bench.report import check_writable
    from federation.cli.progress import ReplayProgress

    check_writable(json_file)
    progress = ReplayProgress()
    try:
        report, outcome = replay_report(
            ReplayCommand(
                trace=trace,
                requests=requests,
                groups=groups,
                block_bytes=block_bytes,
                capacity_fraction=capacity_fraction,
                rate=rate,
                seed=seed,
                mode=mode.value,
                placement=placement.value,
                concurrency=concurrency,
                deadline_ms=deadline_ms,
                port_base=port_base,
                admit=admit.value,
                frontier=frontier,
            ),
            progress,
        )
    finally:
        progress.close()
    if outcome.error is None or any(t.requests for t in outcome.tallies.values()):
        _show(report, json_file)
    if outcome.error is not None:
        raise outcome.error
    if outcome.signal:
        raise typer.Exit(128 + outcome.signal)


@app.command()
def catalog(
    blocks: Annotated[
        int, typer.Option(min=10_000, max=100_000_000, help="Blocks of a peer.")
    ] = 10_000_000,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=3600, help="For which changes come.")
    ] = 60.0,
    mutations: Annotated[
        int, typer.Option(min=100, max=100_000_000, help="Damaged messages.")
    ] = 20_000,
    seed: Annotated[int, typer.Option(min=0, help="Of the hashes.")] = 1,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report.")] = None,
) -> None:
    """Bytes and time of catalogs: snapshots, changes, look-ups in the views of eight peers.

    Everything is in this process; with ten million blocks it takes three minutes and 2 GB of memory.
    """
    from federation.bench.catalog import CatalogBench, catalog_report
    from federation.bench.report import check_writable

    check_writable(json_file)
    report = catalog_report(
        CatalogBench(blocks=blocks, seconds=seconds, mutations=mutations, seed=seed),
        _aside(),
    )
    _show(report, json_file)


@app.command()
def local(
    rounds: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Of each call, each way.")
    ] = 3000,
    blocks: Annotated[int, typer.Option(min=1, max=1024, help="Of one get and one put.")] = 128,
    block_bytes: Annotated[int, typer.Option(min=1, max=1 << 20, help="Bytes a block.")] = 65_536,
    exists_keys: Annotated[
        int, typer.Option(min=1, max=100_000, help="Of one batch_is_exist.")
    ] = 8000,
    port_base: Annotated[
        int, typer.Option(min=1024, max=65_000, help="Look for free ports from here.")
    ] = PORT_BASE,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report.")] = None,
) -> None:
    """What FederatedStore costs where no peer has a part in it: against plain Mooncake, call by call.

    Starts a real group in a temporary folder and always takes it down again; about five minutes.
    """
    from federation.bench.local import LocalBench, local_report
    from federation.bench.report import check_writable

    check_writable(json_file)
    report, signal = local_report(
        LocalBench(
            rounds=rounds,
            blocks=blocks,
            block_bytes=block_bytes,
            exists_keys=exists_keys,
            port_base=port_base,
        ),
        _aside(),
    )
    _show(report, json_file, signal)


@app.command()
def admission(
    trace: Annotated[
        Path | None,
        typer.Option(help="Mooncake trace, JSON lines.", show_default="the packaged cut"),
    ] = None,
    requests: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Play the first N.")
    ] = 1_000_000,
    groups: Annotated[int, typer.Option(min=2, max=64, help="That share the capacity.")] = 8,
    capacity_fraction: Annotated[
        float,
        typer.Option(min=0.001, max=100, help="Blocks that all groups hold, over all there are."),
    ] = 0.1,
    seed: Annotated[int, typer.Option(help="Of the random placement.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report.")] = None,
) -> None:
    """What each admission policy serves of a trace, and what it moves: policies alone, no processes.

    With more than two groups also what each does where they are in two regions, and lines between them dear.
    """
    from federation.bench.admission import admission_report
    from federation.bench.command import ReplayCommand
    from federation.bench.report import check_writable

    check_writable(json_file)
    command = ReplayCommand(trace=trace, requests=requests, groups=groups, seed=seed)
    report = admission_report(command.workload(), capacity_fraction)
    _show(report, json_file)


@app.command()
def pull(
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Of a pull and of each part.")] = 8,
    blocks: Annotated[int, typer.Option(min=1, max=4096, help="Of one pull.")] = 256,
    block_bytes: Annotated[
        int, typer.Option(min=4096, max=BLOCK_BYTES_MAX, help="Bytes a block.")
    ] = 1 << 20,
    singles: Annotated[
        int, typer.Option(min=0, max=100_000, help="Pulls of one block, for the time to the first.")
    ] = 3000,
    only: Annotated[
        PartOption | None,
        typer.Option(
            help="One part: on the loopback, against what it is made of; through several processes, against "
            "one; or over a shaped link."
        ),
    ] = None,
    mbit: Annotated[
        float, typer.Option(min=10, max=2000, help="Of the link that first tokens are waited on.")
    ] = 400.0,
    shaped_singles: Annotated[
        int, typer.Option(min=10, max=100_000, help="Pulls of one block over it.")
    ] = 500,
    port_base: Annotated[
        int, typer.Option(min=1024, max=65_000, help="Look for free ports from here.")
    ] = PORT_BASE,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report.")] = None,
) -> None:
    """What a pull between two real groups costs, against the parts that it is made of.

    Starts its own groups in a temporary folder and always takes them down again; about six minutes.
    """
    from federation.bench.pull import pull_report
    from federation.bench.pull_options import PullBench
    from federation.bench.pull_shaped import ShapedBench
    from federation.bench.report import check_writable

    check_writable(json_file)
    report, outcome = pull_report(
        PullBench(
            rounds=rounds,
            blocks=blocks,
            block_bytes=block_bytes,
            singles=singles,
            port_base=port_base,
            only=only.value if only is not None else None,
            shaped=ShapedBench(singles=shaped_singles, mbit=mbit, rounds=min(rounds, 4)),
        ),
        _aside(),
    )
    _show(report, json_file, outcome.signal)  # also what was measured until something failed
    if outcome.failed is not None:
        raise outcome.failed


@app.command()
def listing(
    keys: Annotated[
        int, typer.Option(min=10_000, max=20_000_000, help="In the master that is listed.")
    ] = 1_000_000,
    memory: Annotated[
        bool, typer.Option(help="Also what holdings take, of so many blocks and ten times as many.")
    ] = True,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="With listings, and without.")] = 6,
    seconds: Annotated[float, typer.Option(min=0.5, max=600, help="Of one round, each way.")] = 5.0,
    port_base: Annotated[
        int, typer.Option(min=1024, max=65_000, help="Look for free ports from here.")
    ] = PORT_BASE,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report.")] = None,
) -> None:
    """Memory of the holdings, and what key listings cost a real master's writers and the gateway.

    Starts a real group in a temporary folder and always takes it down again; about four minutes, and 4 GB of
    memory.
    """
    from federation.bench.listing import ListingBench, listing_report
    from federation.bench.report import check_writable

    check_writable(json_file)
    report, signal = listing_report(
        ListingBench(keys=keys, memory=memory, rounds=rounds, seconds=seconds, port_base=port_base),
        _aside(),
    )
    _show(report, json_file, signal)
