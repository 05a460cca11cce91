"""`moonmesh new-pool`: an operator says that a group has another pool than it had last."""

from __future__ import annotations

from pathlib import Path

import typer

from federation.cli.group import ConfigOption

ASK_SECONDS = 10.0
"""For the answer of the gateway, which asks its master and coordination."""


def new_pool(config: ConfigOption = Path("group.toml")) -> None:
    """Say that the pool of this place's master is its group's, though no store of the last one is in it.

    Only where `moonmesh status` asks for it: nobody leads, and the group has moved to another master. The
    gateway of this place stands for its group then, and whatever the last pool had is withdrawn. Exit code 0
    once the group is led.
    """
    from federation.cli.health import ask_new_pool, ask_status
    from federation.cli.leading import await_leader
    from federation.config import load_group
    from local_group.process_errors import GroupError

    group = load_group(config)
    socket = group.gateway_socket
    refused = ask_new_pool(socket, ASK_SECONDS)
    why = refused or await_leader(ask_status, socket)
    if why:
        raise GroupError(why, where=str(socket))
    typer.echo(f'group "{group.name}" has the pool of the master {group.master_address}')
