"""`moonmesh namespaces`: what is shared with whom, and where two groups mean different things."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from federation.cli.group import ConfigOption

if TYPE_CHECKING:
    from rich.console import Console

TIMEOUT_S = 5.0
"""For the gateway's answer; it asks its peers meanwhile."""


def namespaces(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    config: ConfigOption = Path("group.toml"),
) -> None:
    """Show this group's namespaces beside those of its peers, and the fields in which they differ.

    Blocks cross only where both groups have the same envelope, in every field. The gateway asks its peers
    now; what they tell is checked against the fingerprints. Exit code 1 if the gateway does not answer.
    """
    from rich.console import Console

    from federation.cli.health import ask_namespaces
    from federation.config import load_group
    from federation.errors import MoonmeshError

    group = load_group(config)
    told = ask_namespaces(group.gateway_socket, TIMEOUT_S)
    if isinstance(told, str):
        raise MoonmeshError(told, where=str(group.gateway_socket), hint="is the group up?")
    if as_json:
        typer.echo(json.dumps(told, indent=2))
    else:
        show(told, Console(highlight=False))


def show(told: dict[str, Any], console: Console) -> None:
    """For people."""
    from rich.table import Table
    from rich.text import Text

    console.print(Text(f'namespaces of group "{told["group"]}"', "bold"))
    for name, namespace in told["namespaces"].items():
        fields = ", ".join(f"{k}={v}" for k, v in namespace["envelope"].items() if v not in ("", 1))
        console.print(
            Text.assemble((f"  {name} ", "bold"), f"{namespace['fingerprint']}  {fields}")
        )
        for pattern in namespace["keys"]:
            console.print(Text(f"    keys: {pattern}"))
        if namespace["unattested"]:
            console.print(Text("    unattested blocks may cross"))
    if not told["namespaces"]:
        console.print("  none")
    if told["unmatched_keys"]:
        console.print(f"  {told['unmatched_keys']} keys in Mooncake are of none of them")
    table = Table("peer", "namespace", "out", "in", "theirs", "why not", box=None)
    for peer in told["peers"]:
        if peer["problem"]:
            table.add_row(Text(peer["peer"]), "", "?", "?", "", Text(peer["problem"], "red"))
        for row in peer["namespaces"]:
            theirs = row["theirs"]
            table.add_row(
                Text(peer["peer"]),
                Text(row["namespace"]),
                "yes" if row["out"] else "no",
                "yes" if row["in"] else "no",
                Text("-" if theirs is None else theirs["name"]),
                Text(row["why"], "red" if not row["same"] else "yellow"),
            )
        for other in peer["others"]:
            table.add_row(
                Text(peer["peer"]), "-", "no", "no", Text(other), "not shared with it from here"
            )
    if told["peers"]:
        console.print(table)
