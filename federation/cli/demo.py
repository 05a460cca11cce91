"""`moonmesh demo`: the worked example of `deploy/`, started, measured, shown and taken down."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from federation.bench.session import Outcome
    from federation.bench.spans import Trace
    from federation.bench.workload import Workload
    from federation.cli.progress import ReplayProgress

EXAMPLE = Path("deploy") / "two-datacenters"
GROUPS = ("east", "west")
NAMESPACE = "demo"
BLOCK_BYTES = 8192
CONCURRENCY = 8
GAIN_SHARE = 0.5
"""Of what one pool gains over isolated groups, the federation is to have at least this share."""
PLAIN_WIDTH = 140


def demo(
    requests: Annotated[
        int, typer.Option(min=10, max=700, help="Requests of the trace to play, three times.")
    ] = 450,
    rate: Annotated[float, typer.Option(min=1, max=1000, help="Requests a second.")] = 75,
) -> None:
    """Federate two real Mooncake groups on this machine and show that prefixes are reused."""
    from federation.cli.progress import ReplayProgress

    console = output()
    progress = ReplayProgress()
    try:
        code = _Demo(console, progress, requests, rate).run()
    finally:
        progress.close()
    if code:
        raise typer.Exit(code)


class _Demo:
    def __init__(
        self, console: Console, progress: ReplayProgress, requests: int, rate: float
    ) -> None:
        self._console = console
        self._progress = progress
        self._requests = requests
        self._rate = rate
        self._steps = 0

    def _step(self, text: str) -> None:
        self._steps += 1
        self._console.print(f"[bold]{self._steps}.[/bold] {text}")

    def run(self) -> int:
        """All of it; returns the exit code."""
        import asyncio
        import shutil

        from federation.bench.groups import init_given_peers
        from federation.bench.replay import Options, Plan
        from federation.bench.session import session
        from federation.bench.workspace import Workspace, reap_abandoned

        example = find_example()
        workload = demo_workload(self._requests, self._rate)
        reap_abandoned(self._progress.say)  # a demo that was killed would hold the ports
        check_ports(example)
        with Workspace("demo", self._progress.say) as space:
            self._step(f"Copying {EXAMPLE} (two data centres, east and west) to {space.path}")
            place = space.path / "federation"
            shutil.copytree(example, place)
            self._step("moonmesh peer init: a CA, certificates and keys for both")
            asyncio.run(init_given_peers(place, space.path / "peer-init.log"))
            self._step(
                f"Playing {len(workload.requests)} requests of Mooncake's conversation trace "
                f"({workload.blocks} prefix blocks, {workload.unique_blocks} of them different) "
                "three times: federated, the same groups isolated, and one pool of their size"
            )
            files = tuple(place / name / "group.toml" for name in GROUPS)
            outcome = asyncio.run(
                session(
                    ("federated", "isolated", "one-pool"),
                    Plan(space.path, files=files, namespace=NAMESPACE),
                    workload,
                    Options(concurrency=CONCURRENCY),
                    self._progress,
                )
            )
            self._progress.close()
            space.keep = outcome.error is not None
            if any(tally.requests for tally in outcome.tallies.values()):
                self._show(outcome)
            if outcome.error is not None:
                raise outcome.error
            if outcome.signal:
                return 128 + outcome.signal
            problem = find_problem(outcome, len(workload.requests))
            if problem:
                space.keep = True
                self._console.print(f"[red]This is not what it was to show: {problem}.[/red]")
                return 1
            self._step("Everything is stopped again, and the folder is removed")
        return 0

    def _show(self, outcome: Outcome) -> None:
        from federation.bench.gateway_figures import gateway_figures
        from federation.bench.report import show
        from federation.bench.spans import load_spans
        from federation.cli.trace import trace_tree

        self._step("What every request found, block by block; every byte was checked at its reader")
        self._console.print(modes_table(outcome))
        figures = gateway_figures(outcome)
        moved, talk = figures["peer_bytes"], figures["metadata_bytes"]
        self._console.print(
            f"Moved between the groups: {mib(moved)} of blocks, {mib(talk)} of catalogs and "
            f"hellos. A pull took {show(figures['pull_ms_p50'])} ms (p50), "
            f"{show(figures['pull_ms_p99'])} ms (p99)."
        )
        folders = [f for f in outcome.trace_dirs.get("federated", ()) if f.is_dir()]
        chosen = typical_crossing(list(load_spans(folders).traces.values())) if folders else None
        if chosen is not None:
            self._step("One request that crossed both groups, in time (ms)")
            self._console.print(trace_tree(chosen))


def output() -> Console:
    """stdout; what is not a terminal gets lines long enough for a trace."""
    from rich.console import Console

    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)


def find_example() -> Path:
    """The worked example of the clone that this package is in, or of the working directory.

    Raises:
        UsageError: if there is none.
    """
    import federation
    from federation.errors import UsageError

    for base in (Path(federation.__file__).resolve().parent.parent, Path.cwd()):
        if all((base / EXAMPLE / g / "group.toml").is_file() for g in GROUPS):
            return base / EXAMPLE
    raise UsageError(
        "the worked example is not here",
        where=str(EXAMPLE),
        hint="the demo uses the files of a clone: run it there, as ./dev demo",
    )


def check_ports(example: Path) -> None:
    """Refuse to begin where a port of the example's groups, or of the one pool, is taken.

    Raises:
        PortInUse: with the port, who has it where that is visible, and what to do.
    """
    from federation.cli.group import beside_mooncake
    from federation.config import load_group
    from local_group.ports import PortUse, check_free, mooncake_ports
    from local_group.process_errors import PortInUse

    files = [example / name / "group.toml" for name in GROUPS]
    groups = [load_group(file) for file in files]
    uses = []
    for group, file in zip(groups, files, strict=True):
        uses += mooncake_ports(group)
        uses += [use for spec in beside_mooncake(group, file) for use in spec.ports]
    first, count = groups[0], sum(group.stores.count for group in groups)
    uses += [
        PortUse(first.host, first.ports.store(i), f"store-{i} of the one pool")
        for i in range(first.stores.count, count)
    ]
    try:
        check_free(uses)
    except PortInUse as error:
        bases = " and ".join(str(group.port_base) for group in groups)
        raise PortInUse(
            error.what,
            hint=f"the demo runs {EXAMPLE} on its own ports (from {bases} on): stop that process "
            "and start the demo again; a group is stopped by moonmesh down -c its group.toml",
        ) from error


def find_problem(outcome: Outcome, requests: int) -> str:
    """Why the demo did not show what it is to show; empty if it did."""
    tallies = outcome.tallies
    wrong = sum(t.wrong_bytes for t in tallies.values())
    if wrong:
        return f"{wrong} bytes were wrong"
    for mode, tally in tallies.items():
        if tally.errors:
            return f"{tally.errors} errors reached the engines ({mode}: {tally.first_errors[0]})"
        if tally.requests != requests:
            return f"{mode}: {tally.requests} of {requests} requests were answered"
        if tally.deadline_overruns:
            return (
                f"{mode}: {tally.deadline_overruns} calls were over their deadline, the worst by "
                f"{tally.worst_overrun_ms:.0f} ms"
            )
    if tallies["federated"].peer_hits == 0:
        return "no block came from the other group"
    isolated, federated, pool = (
        tallies[mode].hit_rate or 0.0 for mode in ("isolated", "federated", "one-pool")
    )
    if federated < isolated + GAIN_SHARE * (pool - isolated):
        return (
            f"the hit rate rose from {isolated:.1%} to {federated:.1%} only, where one pool "
            f"has {pool:.1%}"
        )
    return ""


def mib(value: int | None) -> str:
    """Bytes for people."""
    return "n/a" if value is None else f"{value / 2**20:.1f} MiB"


def demo_workload(requests: int, rate: float) -> Workload:
    """The first requests of the packaged trace, over both groups at random."""
    from federation.bench.trace import packaged_trace, read_trace
    from federation.bench.workload import make_workload

    return make_workload(
        read_trace(packaged_trace(), requests),
        groups=len(GROUPS),
        block_bytes=BLOCK_BYTES,
        rate=rate,
        seed=0,
        placement="random",
    )


def modes_table(outcome: Outcome) -> Table:
    """Isolated against federated against one pool."""
    from rich.table import Table

    from federation.bench.report import show

    names = {"isolated": "isolated", "federated": "federated", "one-pool": "one pool"}
    shown = {names[m]: outcome.tallies[m] for m in names if m in outcome.tallies}
    table = Table("", *shown)
    for column in table.columns[1:]:
        column.justify = "right"
    rows = {
        "requests": [show(t.requests) for t in shown.values()],
        "blocks from the own group": [show(t.local_hits) for t in shown.values()],
        "blocks from the other group": [show(t.peer_hits) for t in shown.values()],
        "blocks to be computed": [show(t.misses) for t in shown.values()],
        "hit rate": ["n/a" if t.hit_rate is None else f"{t.hit_rate:.1%}" for t in shown.values()],
        "wrong bytes": [show(t.wrong_bytes) for t in shown.values()],
        "calls over their deadline": [show(t.deadline_overruns) for t in shown.values()],
    }
    for name, cells in rows.items():
        table.add_row(name, *cells, style="bold" if name == "hit rate" else None)
    return table


def typical_crossing(traces: list[Trace]) -> Trace | None:
    """Of the engine's reads that went through several groups, the one of median duration."""
    from federation.telemetry import SPAN_ENGINE_GET

    crossing = [
        t
        for t in traces
        if len(t.groups) > 1 and any(r.span.name == SPAN_ENGINE_GET for r in t.roots())
    ]
    crossing.sort(key=lambda t: t.duration_ms)
    return crossing[len(crossing) // 2] if crossing else None
