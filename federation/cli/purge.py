"""`moonmesh purge`: takes out of a group's Mooncake what came from another group."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from federation.cli.group import ConfigOption

GRACE_S = 10.0
"""Beyond what the gateway was given: for the answer."""


def purge(
    origin: Annotated[str, typer.Option(help="The group whose blocks go.")],
    epoch: Annotated[
        int | None, typer.Option(min=0, help="Only what came while it was in this epoch.")
    ] = None,
    seconds: Annotated[
        int, typer.Option(min=1, max=3600, help="How long to wait for blocks that are being read.")
    ] = 60,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Remove what is being read too: its readers may get another block's bytes.",
        ),
    ] = False,
    config: ConfigOption = Path("group.toml"),
) -> None:
    """Remove the blocks that came from one group, e.g. when it has written wrong ones.

    The gateway knows the origin of each block it has pulled. Take the peer out of `import` first, or what
    it goes on sending comes back. Exit code 1 if some are still there in the end, or if no block of that
    group is known here: its name may be mistyped.
    """
    from rich.console import Console

    from federation.cli.health import ask_purge
    from federation.config import load_group
    from federation.errors import MoonmeshError

    group = load_group(config)
    console = Console(highlight=False)
    with console.status(f"removing what came from {origin}"):
        reply = ask_purge(
            group.gateway_socket, origin, epoch, force, seconds, timeout=seconds + GRACE_S
        )
    if isinstance(reply, str):
        raise MoonmeshError(reply, where=str(group.gateway_socket), hint="is the group up?")
    known = ", ".join(reply.origins) or "none"
    if not reply.removed and not reply.left and origin not in reply.origins:
        console.print(
            f"no block is known here that came from {origin}; origins known here: {known}",
            markup=False,
        )
        raise typer.Exit(1)
    blocks = f"{reply.removed} {'block' if reply.removed == 1 else 'blocks'}"
    console.print(f"removed {blocks} that came from {origin}")
    if reply.left:
        console.print(
            f"{reply.left} are still there: they are being read, or Mooncake does not answer. "
            "Try again, or with --force"
        )
        raise typer.Exit(1)
    if not reply.removed:
        console.print(f"origins known here: {known}")
