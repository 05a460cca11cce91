"""`moonmesh chaos`: breaks real groups on purpose, and says what held. Loaded by `moonmesh` by name."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from chaos.progress import ConsoleProgress
    from chaos.runner import Outcome, Planned, Runner
    from federation.errors import UsageError

app = typer.Typer(help="Break real groups on purpose, and see what holds.", no_args_is_help=True)

PLAIN_WIDTH = 140


class NetworkWish(str, Enum):
    """What may lie between the gateways; `auto`: namespaces where they can be made."""

    LOOPBACK = "loopback"
    NAMESPACES = "namespaces"
    AUTO = "auto"


@app.command("list")
def list_(
    names: Annotated[
        list[str] | None, typer.Argument(help="Suites, SUITE/NAME, files or folders.")
    ] = None,
) -> None:
    """Shows the scenarios of suites (all packaged ones without names)."""
    from rich.console import Console
    from rich.table import Table

    from chaos.suites import find, load_scenario, suites

    table = Table("suite", "scenario", "load, s", "what happens")
    for path in find(names or suites()):
        scenario = load_scenario(path)
        seconds = f"{scenario.workload.seconds:g}"
        table.add_row(path.parent.name, scenario.name, seconds, scenario.summary)
    Console().print(table)


@app.command()
def run(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Suites, SUITE/NAME, files or folders; with --against: pause, drain, off, restart."
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            help="A group of your own that runs here, by its peering.toml: only what is safe there.",
            metavar="PEERING.TOML",
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="With --against: do it without asking.")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML.")] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write one HTML page: faults above what came of them.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Repeats a run.", show_default="drawn")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, max=1000, help="Run each so often.")] = 1,
    duration: Annotated[
        float | None,
        typer.Option(
            min=1, max=86_400, help="Go on with the next seeds for so many seconds.", metavar="S"
        ),
    ] = None,
    retries: Annotated[
        int,
        typer.Option(
            min=0, max=10, help="Run a scenario again in which a busy machine may be what broke it."
        ),
    ] = 0,
    forgive_time: Annotated[
        bool,
        typer.Option(
            "--forgive-time", help="Exit 0 where all that broke depends on time: it is shown."
        ),
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder with all logs.")] = False,
    port_base: Annotated[
        int, typer.Option(min=1024, max=29_000, help="Look for free ports from here.")
    ] = 28_000,
    network: Annotated[
        NetworkWish,
        typer.Option(help="Between the gateways. Namespaces need root, iproute2 and iptables."),
    ] = NetworkWish.LOOPBACK,
) -> None:
    """Runs scenarios on real processes; exit 1 if an invariant is broken.

    Starts its own groups in a temporary folder and always takes them down again; what a killed run
    left behind, the next one removes.
    """
    import shlex
    from functools import partial

    from chaos.against import Against, group_of, plan
    from chaos.network.choose import choose
    from chaos.possible import why_not
    from chaos.progress import ConsoleProgress
    from chaos.report import as_dict, show, write_all
    from chaos.runner import Planned, Runner
    from chaos.suites import find, load_scenario
    from federation.bench.report import check_writable
    from federation.errors import UsageError

    check_writable(json_file)
    check_writable(junit)
    check_writable(html)
    theirs = None if against is None else group_of(against)
    if theirs is not None:
        planned = plan(*theirs, names or (), f"--against {shlex.quote(str(against))} --yes")
    elif names:
        planned = [Planned(load_scenario(path), _word(path)) for path in find(names)]
    else:
        raise UsageError("say what to run", hint="see `moonmesh chaos list`; e.g. chaos run smoke")
    chosen = _drawn(seed)
    console = _console()
    kind = choose(network.value, console.print)
    if theirs is not None:
        _agree(console, theirs[1].name, planned, yes)
    reasons = [why_not(item.scenario, kind) for item in planned]
    if all(reasons):
        raise UsageError(f"nothing of this can be run here: {planned[0].word}: {reasons[0]}")
    with ConsoleProgress(console, repeat * len(planned)) as progress:
        make = Runner if theirs is None else partial(Against, theirs[0])
        runner = make(
            planned,
            seed=chosen,
            repeat=repeat,
            retries=retries,
            keep=keep,
            port_base=port_base,
            progress=progress,
            network=kind,
            duration=duration,
        )
        outcome = _carry_out(runner, progress)
    report = as_dict(outcome, chosen)
    show(report, console)
    if outcome.kept is not None:
        console.print(f"the logs are kept in {outcome.kept}", highlight=False)
    unwritten = write_all(report, json_file=json_file, junit=junit, html=html)
    late = all(r.held or r.by_time_alone for r in outcome.results) and not outcome.left
    _end(outcome.interrupted, outcome.held or (forgive_time and late), unwritten)


@app.command()
def soak(
    duration: Annotated[
        float, typer.Option(min=20, max=86_400, help="Seconds of load and faults.", metavar="S")
    ] = 3600,
    rate: Annotated[
        float, typer.Option(min=0.1, max=1000, help="Requests of the trace a second.")
    ] = 30,
    trace: Annotated[
        Path | None, typer.Option(help="A Mooncake trace.", show_default="a packaged cut")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Repeats a run.", show_default="drawn")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report.")] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write one HTML page: what grew, and what broke.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder with all logs.")] = False,
    port_base: Annotated[
        int, typer.Option(min=1024, max=29_000, help="Look for free ports from here.")
    ] = 28_000,
    network: Annotated[
        NetworkWish,
        typer.Option(help="Between the gateways. Namespaces need root, iproute2 and iptables."),
    ] = NetworkWish.LOOPBACK,
) -> None:
    """Breaks two things at a time, for an hour, under a trace; exit 1 if anything grows or breaks.

    The scenario process/soak, seed after seed, on groups that go on running. Memory, descriptors and
    threads of every process of Moonmesh that lives for half of the time must have no trend.
    """
    from collections import deque

    from chaos.load.replayed import REQUESTS_MAX
    from chaos.network.choose import choose
    from chaos.progress import ConsoleProgress
    from chaos.report import show, write_all
    from chaos.runner import Planned, Runner
    from chaos.soak.report import show_trends, soak_dict
    from chaos.soak.watching import Watch
    from chaos.suites import find, load_scenario
    from federation.bench.report import check_writable
    from federation.bench.trace import read_trace

    check_writable(json_file)
    check_writable(html)
    asked: dict[str, float | str] = {"trace_rate": rate}
    if trace is not None:
        deque(read_trace(trace, REQUESTS_MAX), 0)  # what cannot be used is told before a start
        asked["trace"] = str(trace.absolute())
    (path,) = find(["process/soak"])
    scenario = load_scenario(path)
    scenario = scenario.model_copy(update={"workload": scenario.workload.model_copy(update=asked)})
    console = _console()
    kind = choose(network.value, console.print)
    chosen = _drawn(seed)
    watch = Watch(duration)
    with ConsoleProgress(console, round(duration / scenario.workload.seconds)) as progress:
        runner = Runner(
            [Planned(scenario, "process/soak")],
            seed=chosen,
            repeat=1,
            keep=keep,
            port_base=port_base,
            progress=progress,
            network=kind,
            duration=duration,
            watch=watch.watch,
        )
        outcome = _carry_out(runner, progress)
    report = soak_dict(outcome, chosen, rate, watch.trends(), watch.short)
    show(report, console)
    show_trends(report, console)
    if outcome.kept is not None:
        console.print(f"the logs are kept in {outcome.kept}", highlight=False)
    unwritten = write_all(report, json_file=json_file, html=html)
    _end(outcome.interrupted, report["held"], unwritten)


@app.command()
def report(
    file: Annotated[Path, typer.Argument(help="What `run --json` wrote.")],
    html: Annotated[Path | None, typer.Option(help="Write it as one HTML page.")] = None,
) -> None:
    """Shows a report again; exit 1 if an invariant was broken."""
    from chaos.report import read_json, show, write_all

    found = read_json(file)
    show(found, _console())
    _end(0, found["held"], write_all(found, html=html))


@app.command()
def ablate(
    names: Annotated[list[str], typer.Argument(help="Suites, SUITE/NAME, files or folders.")],
    guard: Annotated[
        list[str] | None, typer.Option(help="A guard to switch off; all without.")
    ] = None,
    related: Annotated[
        bool, typer.Option("--related", help="Per guard, only the scenarios that are to show it.")
    ] = False,
    markdown: Annotated[Path | None, typer.Option(help="Write the table.")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    port_base: Annotated[int, typer.Option(min=1024, max=29_000)] = 28_000,
) -> None:
    """Runs scenarios with one guard off at a time, and shows what breaks then.

    It takes as long as the scenarios, for each guard and once more with all of them on; with --related
    some six minutes for the suite `guards`.
    """
    from chaos.ablate import NONE, Row, as_markdown, machine_line
    from chaos.ablate import ablate as each
    from chaos.progress import ConsoleProgress
    from chaos.runner import Planned, Runner
    from chaos.suites import find, load_scenario
    from federation.bench.report import check_writable, command_line, write_whole
    from federation.errors import UsageError
    from federation.limits.names import GuardName

    check_writable(markdown)
    known = {g.value: g for g in GuardName}
    for name in guard or ():
        if name not in known:
            raise UsageError(f"there is no guard {name!r}", hint=f"there are {', '.join(known)}")
    planned = [Planned(load_scenario(path), _word(path)) for path in find(names)]
    console = _console()

    def run_all(off: GuardName | None) -> Outcome:
        console.print(f"[bold]off: {off.value if off else NONE}[/bold]")
        chosen = [p for p in planned if not (related and off) or off in p.scenario.shows]
        with ConsoleProgress(console, len(chosen)) as progress:
            runner = Runner(
                chosen, seed=seed, repeat=1, keep=False, port_base=port_base, progress=progress
            )
            return _carry_out(runner, progress)

    rows: list[Row] = []
    machine = machine_line()

    def table() -> str:
        return as_markdown(rows, command_line(), seed, machine)

    for row in each([known[name] for name in guard or known], run_all):
        rows.append(row)
        if markdown is not None:  # after each: a long run that ends early has not been in vain
            write_whole(table(), markdown)
    console.print(table(), markup=False)


def _carry_out(runner: Runner, progress: ConsoleProgress) -> Outcome:
    """Runs it, with an equal share of the cores for all that it starts."""
    import asyncio

    from local_group.scheduling import NOT_SHARED, one_share

    with one_share() as shared:
        if not shared:
            progress.say(NOT_SHARED)
        return asyncio.run(runner.run())


def _end(signal: int, held: bool, unwritten: Sequence[UsageError]) -> None:
    """Ends the command: what a run found decides its exit code, before reports that were not written."""
    from federation.cli.errors import print_error

    for error in unwritten:
        print_error(error)
    if signal:
        raise typer.Exit(128 + signal)
    if not held:
        raise typer.Exit(1)
    if unwritten:
        raise typer.Exit(unwritten[0].exit_code)


def _drawn(seed: int | None) -> int:
    """The seed that was given, or one."""
    import random

    return random.SystemRandom().randrange(1 << 31) if seed is None else seed


def _word(path: Path) -> str:
    """How a scenario is named on the command line, quoted for a shell."""
    import shlex

    from chaos.suites import SCENARIOS

    if path.is_relative_to(SCENARIOS):
        return str(path.relative_to(SCENARIOS).with_suffix(""))
    return shlex.quote(str(path))


def _agree(console: Console, group: str, planned: Sequence[Planned], yes: bool) -> None:
    """Says what is to be done to a running group, and asks.

    Raises:
        UsageError: nobody said yes.
    """
    import sys

    from federation.errors import UsageError

    console.print(f"To the group {group}, which runs, this is done, one after the other:")
    for item in planned:
        console.print(f"  {item.scenario.name}: {item.scenario.summary}", markup=False)
    console.print(
        "Beside it an engine writes and reads blocks of its own, and a second one reads them too (some "
        "10 MiB each time, in a namespace that no peer shares). Nothing else is touched; whatever is "
        "switched off is switched on again, unless this is killed."
    )
    if not yes and not (sys.stdin.isatty() and typer.confirm("Do it?")):
        raise UsageError("nothing was done", hint="say --yes")


def _console() -> Console:
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(width=PLAIN_WIDTH, highlight=False)
