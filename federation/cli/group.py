"""`moonmesh up`, `down` and `status`: one group on this host."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from federation.config import GroupFile
    from local_group.lifecycle import Extra

ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", help="The group's group.toml.", show_default=True)
]


def up(
    config: ConfigOption = Path("group.toml"),
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when the group is ready; it runs on.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=1.0, max=3600.0, help="Seconds until all must be ready.")
    ] = 60.0,
    report_fd: Annotated[int, typer.Option(hidden=True)] = -1,
) -> None:
    """Start a group: Mooncake's master and stores, and the gateway. ^C stops it."""
    import asyncio

    from federation.cli import supervise
    from federation.config import load_group
    from federation.peering import load_membership

    group = load_group(config)
    if group.gateway.enabled:
        load_membership(group)  # its errors are told before anything starts
    if detach:
        supervise.detached(config, group, timeout)
        return
    view = supervise.view_for(group, report_fd)
    asyncio.run(supervise.foreground(group, gateway_of(group, config), timeout, view))


def down(config: ConfigOption = Path("group.toml")) -> None:
    """Stop a group, and whatever an `up` that was killed has left running."""
    from federation.config import load_group
    from local_group.lifecycle import stop_group

    group = load_group(config)
    stopped = stop_group(group)
    typer.echo(f'group "{group.name}" {"is stopped" if stopped.ran else "was not running"}')
    if stopped.killed:
        typer.echo(f"killed what an earlier run had left: {', '.join(stopped.killed)}")


def status(
    config: ConfigOption = Path("group.toml"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what runs of a group. Exit code 1 if it is not running or not ready."""
    import asyncio
    import dataclasses

    from federation.cli import render
    from federation.config import load_group
    from local_group.lifecycle import group_report

    group = load_group(config)
    report = asyncio.run(group_report(group))
    gateway = None
    if group.gateway.enabled and report.children:
        gateway = render.gateway_status(group)
        if isinstance(gateway, str):
            report = dataclasses.replace(report, problems=[*report.problems, gateway])
    if as_json:
        typer.echo(render.as_json(report, gateway))
    else:
        render.print_status(report, gateway)
    if not report.ready:
        raise typer.Exit(1)


def gateway_of(group: GroupFile, path: Path) -> Extra:
    """How the gateway of a group is started, and when it is ready."""
    import sys

    from local_group.lifecycle import Extra
    from local_group.ports import PortUse
    from local_group.processes import ChildSpec

    if not group.gateway.enabled:
        return Extra()
    argv = (sys.executable, "-m", "federation.gateway_process", "-c", str(path.absolute()))

    async def ready(_: int) -> str:
        from federation.cli.health import serving

        return "" if await serving(group.gateway_socket) else "the gateway to serve"

    listen = group.gateway.listen
    ports = [PortUse(listen, group.ports.peers, "the gateway's peers")]
    if group.gateway.engines_tcp:
        ports.append(PortUse(group.host, group.ports.engines_tcp, "the gateway's engines over TCP"))
    return Extra(stages=[[ChildSpec("gateway", argv, ready)]], ports=ports)
