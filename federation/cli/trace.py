"""`moonmesh trace show`: one trace as a tree, across groups."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.tree import Tree

    from federation.bench.spans import Node, SpanSet, Trace

app = typer.Typer(help="Follow a request through the groups.", no_args_is_help=True)

DEPTH_MAX = 40
ATTRIBUTES_MAX = 8
VALUE_CHARS = 60
PLAIN_WIDTH = 200
"""Columns where the output is no terminal: a span a line."""
GROUP_STYLES = ("cyan", "magenta", "yellow", "green", "blue")


@app.callback()
def _keep_subcommands() -> None:
    """Follow a request through the groups."""


@app.command()
def show(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="[TRACE_ID] DIR...",
            help="A trace's id (or its first digits), and groups' folders or data directories.",
        ),
    ],
    longest: Annotated[bool, typer.Option("--longest", help="The longest trace.")] = False,
    latest: Annotated[bool, typer.Option("--latest", help="The newest trace (default).")] = False,
) -> None:
    """Print one trace as a tree: each span's name, group, service, duration and attributes.

    Without an id: of the traces that went through several groups, the newest or the longest.
    """
    from rich.console import Console

    from federation.bench.spans import load_spans
    from federation.errors import UsageError

    wanted, folders = "", [Path(w) for w in what]
    if re.fullmatch(r"[0-9a-fA-F]{1,32}", what[0]) and not folders[0].is_dir():
        wanted, folders = what[0], folders[1:]
    if not folders:
        raise UsageError("name the folders of the groups", hint="moonmesh trace show east west")
    if longest and latest:
        raise UsageError("--longest or --latest, not both")
    if wanted and (longest or latest):
        raise UsageError("give an id, or --longest or --latest, not both")
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    found = load_spans(folders)
    tell_problems(found, Console(stderr=True))
    if wanted:
        trace = found.find(wanted)
    elif found.traces:
        trace = found.ranked(longest)[0]
    else:
        raise UsageError(
            "there are no spans in these folders",
            where=", ".join(map(str, folders)),
            hint="spans are written to data_dir/traces, within a second after a request",
        )
    console.print(trace_tree(trace))


def tell_problems(found: SpanSet, console: object) -> None:
    """Say which files hold lines that are no spans, and what was not read."""
    from rich.console import Console

    assert isinstance(console, Console)
    for file, count in sorted(found.malformed.items()):
        console.print(f"{file}: {count} line(s) that are no spans", style="yellow", markup=False)
    if found.skipped:
        console.print(f"{found.skipped} older file(s) were not read", style="yellow")


def trace_tree(trace: Trace) -> Tree:
    """A trace as a rich tree; every group has a colour of its own."""
    from rich.text import Text
    from rich.tree import Tree

    groups = trace.groups
    head = Text(f"trace {trace.trace}", style="bold")
    head.append(
        f"  {trace.duration_ms:.1f} ms, {len(trace.spans)} spans, "
        f"{'through ' if len(groups) > 1 else ''}{', '.join(groups)}",
        style="not bold",
    )
    tree = Tree(head)
    styles = {g: GROUP_STYLES[i % len(GROUP_STYLES)] for i, g in enumerate(groups)}
    known = {s.span for s in trace.spans}
    for root in trace.roots():
        lost = bool(root.span.parent) and root.span.parent not in known
        _add(tree, root, trace.start_ns, styles, 0, lost)
    return tree


def _add(
    tree: Tree, node: Node, zero_ns: int, styles: dict[str, str], depth: int, lost: bool
) -> None:
    from rich.text import Text

    span = node.span
    label = Text(span.name, style="bold")
    label.append(f"  {span.group}", style=f"not bold {styles[span.group]}")
    label.append(f" {span.service}", style="not bold dim")
    label.append(f"  {span.duration_ms:.2f} ms", style="not bold")
    label.append(f"  +{(span.start_ns - zero_ns) / 1e6:.2f}", style="not bold dim")
    shown = list(span.attributes.items())
    for name, value in shown[:ATTRIBUTES_MAX]:
        text = str(value)
        text = text if len(text) <= VALUE_CHARS else text[: VALUE_CHARS - 1] + "…"
        label.append(f"  {name.removeprefix('moonmesh.')}={text}", style="not bold dim")
    if len(shown) > ATTRIBUTES_MAX:
        label.append(f"  and {len(shown) - ATTRIBUTES_MAX} more", style="not bold dim")
    if span.error:
        label.append(f"  {span.error}", style="not bold red")
    if lost:
        label.append("  (what called it is not in these files)", style="not bold dim italic")
    branch = tree.add(label)
    if depth >= DEPTH_MAX:
        if node.children:
            branch.add(Text("deeper spans are not shown", style="dim italic"))
        return
    for child in node.children:
        _add(branch, child, zero_ns, styles, depth + 1, False)
