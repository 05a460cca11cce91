"""`moonmesh peer pause|resume|drain` and `moonmesh federation off|on`: what is exchanged with whom."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from federation.cli.group import ConfigOption, find_group

if TYPE_CHECKING:
    from federation.limits.orders import Order, Orders
    from local_group.config import GroupPlace

app = typer.Typer(no_args_is_help=True, help="Switch the federation off, and on again.")

PeerArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The peer, as peering.toml names it.")
]


def pause(peer: PeerArgument, config: ConfigOption = Path("group.toml")) -> None:
    """Exchange nothing with a peer: nothing is pulled from it or served to it, from now on.

    What is under way is ended. The peer is told so, gossip goes on, and nobody takes anybody for dead. It
    holds until `moonmesh peer resume`, whatever is restarted meanwhile; also if the gateway does not run.
    """
    from federation.limits.orders import Order

    _order(config, peer, Order.PAUSED)


def drain(peer: PeerArgument, config: ConfigOption = Path("group.toml")) -> None:
    """As `pause`, but what is under way with the peer, in both directions, is finished first.

    `moonmesh status` says `draining` until it is, then `drained`.
    """
    from federation.limits.orders import Order

    _order(config, peer, Order.DRAINED)


def resume(peer: PeerArgument, config: ConfigOption = Path("group.toml")) -> None:
    """Take `pause` or `drain` back; of a peer that is neither it says so, and changes nothing."""
    from federation.limits.orders import Order

    _order(config, peer, Order.ON)


@app.command("off")
def off(config: ConfigOption = Path("group.toml")) -> None:
    """Exchange no blocks and no catalogs with any peer; engines go on with their own group alone.

    It holds until `moonmesh federation on`, whatever is restarted meanwhile.
    """
    import time

    group, _ = find_group(config)
    _change(group, lambda held: held.with_federation(off=True, at=time.time()), anew=True)
    _tell(group, "the federation is off here")


@app.command("on")
def on(
    config: ConfigOption = Path("group.toml"),
    forget: Annotated[
        bool,
        typer.Option(
            "--forget", help="Resume every peer too; also where the record cannot be read."
        ),
    ] = False,
) -> None:
    """Take `off` back; peers that are paused or drained stay so."""
    import time

    from federation.limits.orders import Orders

    group, _ = find_group(config)
    now = time.time()
    orders = _change(
        group,
        lambda held: Orders(changed_at=now) if forget else held.with_federation(off=False, at=now),
        anew=forget,
    )
    left = [f"{name} is {order.value}" for name, order in orders.peers.items()]
    _tell(group, "the federation is on here" + (f"; still, {', '.join(left)}" if left else ""))


def _order(config: Path, peer: str, order: Order) -> None:
    import time

    from federation.errors import UsageError
    from federation.limits.orders import Order

    group, _ = find_group(config)
    known = _peers(config)
    was: list[Order] = []

    def change(orders: Orders) -> Orders:
        was.append(orders.peers.get(peer, Order.ON))
        if known is not None and peer not in known and was[0] is Order.ON:
            names = ", ".join(known) or "none"
            raise UsageError(f'"{peer}" is not a peer of this group', hint=f"its peers: {names}")
        if order is was[0] is Order.ON:
            return orders
        return orders.with_peer(peer, order, time.time())

    orders = _change(group, change)
    word = {Order.ON: "on", Order.PAUSED: "paused", Order.DRAINED: "being drained"}[order]
    before = ", as before: it was neither paused nor drained" if order is was[0] is Order.ON else ""
    also = "; but the whole federation is off here" if orders.off and order is Order.ON else ""
    _tell(group, f"{peer} is {word} here{before}{also}")


def _change(group: GroupPlace, change: Callable[[Orders], Orders], *, anew: bool = False) -> Orders:
    from federation.order_file import OrderFile

    return OrderFile(group.data_dir).change(change, anew=anew)


def _tell(group: GroupPlace, done: str) -> None:
    """Has the gateway go by what has been written. Exit code 1 if it runs and does not."""
    from federation.cli.health import ask_orders
    from federation.errors import MoonmeshError

    if not group.gateway_socket.exists():
        typer.echo(f"{done}: written down, and in force once its gateway runs")
        return
    if problem := ask_orders(group.gateway_socket):
        raise MoonmeshError(
            f"{done}: written down, and not in force yet: {problem}",
            where=str(group.gateway_socket),
            hint="a gateway goes by it half a second after it answers again; see `moonmesh status`",
        )
    typer.echo(done)


def _peers(config: Path) -> list[str] | None:
    """The peers of a group; None where its files cannot be read now: it can be switched off all the same."""
    from federation.config import load_group
    from federation.errors import ConfigError
    from federation.peering import load_peering

    try:
        group = load_group(config)
        if group.gateway.peering is None:
            return []
        return [peer.name for peer in load_peering(group.gateway.peering, read_keys=False).peers]
    except ConfigError:
        return None
