"""`moonmesh up`, `down` and `status`: one group on this host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from federation.config import GroupFile
    from local_group.child import ChildSpec
    from local_group.config import GroupPlace
    from local_group.errors import ConfigError

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
    lock_fd: Annotated[int, typer.Option(hidden=True)] = -1,
) -> None:
    """Start a group: Mooncake's master and stores, and the gateway. ^C stops it.

    Mooncake runs without the gateway too: one that cannot start is told, and tried again for ever.
    Exit code 0 only if all is ready, and a gateway of the group leads it.
    """
    import asyncio

    from federation.cli import supervise
    from federation.config import load_group
    from federation.peering import load_peering
    from local_group.state import GroupLock

    group = load_group(config)
    if group.gateway.enabled and group.gateway.peering is not None:
        load_peering(group.gateway.peering).check_against(group)  # told before anything starts
    if detach:
        if not supervise.detached(config, group, timeout):
            raise typer.Exit(1)
        if group.gateway.enabled:
            _must_be_led(group)
        return
    lock = None
    if lock_fd >= 0:
        lock = GroupLock(group.lock_file)
        lock.adopt(lock_fd)
    view = supervise.view_for(group, report_fd)
    beside = beside_mooncake(group, config)
    asyncio.run(supervise.foreground(group, beside, timeout, view, lock))


def down(config: ConfigOption = Path("group.toml")) -> None:
    """Stop a group, and whatever an `up` that was killed has left running."""
    from local_group.lifecycle import stop_group

    group, _ = find_group(config)
    stopped = stop_group(group, say=typer.echo)
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
    from federation.cli.leading import not_led
    from local_group.report import group_report

    group, error = find_group(config)
    report = asyncio.run(group_report(group))
    problems = [*report.problems]
    gateway = None
    if any(child.name == "gateway" for child in report.children):
        gateway = render.gateway_status(group)
        if isinstance(gateway, str):
            problems.append(gateway)
        elif why := not_led(gateway):
            problems.append(why)
    if error is not None:
        problems.append(f"{config} cannot be used now: see the warning, or `moonmesh config check`")
    off = render.orders_lines(group, gateway)
    phase = "degraded" if problems and report.phase == "ready" else report.phase
    report = dataclasses.replace(report, phase=phase, problems=problems + off)
    if as_json:
        typer.echo(render.as_json(report, gateway))
    else:
        render.print_status(report, gateway)
    if not report.ready:
        raise typer.Exit(1)


def find_group(path: Path) -> tuple[GroupPlace, ConfigError | None]:
    """A group that may run; and the error, told as a warning, if its group.toml is wrong now.

    Raises:
        ConfigError: its name and folder cannot be read either.
    """
    from federation.cli.errors import print_warning
    from federation.config import load_group
    from local_group.config import load_place
    from local_group.errors import ConfigError

    try:
        return load_group(path), None
    except ConfigError as error:
        try:
            place = load_place(path)
        except ConfigError:
            raise error from None
        print_warning(f"{error}\n  going by its name and data_dir alone: {place.data_dir}")
        return place, error


def _must_be_led(group: GroupFile) -> None:
    """Raises GroupError if nobody leads, after a while: all else is ready, so the group runs on."""
    from federation.cli.health import ask_status
    from federation.cli.leading import await_leader
    from local_group.process_errors import GroupError

    if why := await_leader(ask_status, group.gateway_socket):
        raise GroupError(
            f'group "{group.name}" runs here, and peers hear nothing of it: {why}',
            where=str(group.data_dir),
            hint="`moonmesh status` shows when that is over; with Raft the first start needs all members",
        )


def beside_mooncake(group: GroupFile, path: Path) -> Sequence[ChildSpec]:
    """How the gateway of a group is started, and its etcd before it, if it has them; when they are ready.

    Raises:
        MissingPackage: it needs an etcd, and none is installed.
    """
    import sys

    from local_group.child import ChildSpec
    from local_group.coordination.managed import etcd_child
    from local_group.ports import PortUse

    if not group.gateway.enabled:
        return ()
    etcd = [etcd_child(group)] if group.coordination.managed_etcd else []
    argv = (sys.executable, "-m", "federation.gateway_process", "-c", str(path.absolute()))

    async def ready(_: int) -> str:
        from federation.cli.health import serving

        return "" if await serving(group.gateway_socket) else "the gateway to serve"

    ports = []
    if group.gateway.peering is not None:
        ports.append(PortUse(group.gateway.listen, group.ports.peers, "the gateway's peers"))
    if group.gateway.engines_tcp:
        ports.append(PortUse(group.host, group.ports.engines_tcp, "the gateway's engines over TCP"))
    return [*etcd, ChildSpec("gateway", argv, ready, ports=ports)]
