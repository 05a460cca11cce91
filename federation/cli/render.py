"""How `moonmesh status` looks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from federation.cli.guards import guards_line
from federation.cli.leading import leading_line
from local_group.config import GroupPlace
from local_group.report import GroupReport

_COLOURS = {"ready": "green", "starting": "yellow", "restarting": "yellow", "waiting": "yellow"}


def gateway_status(group: GroupPlace) -> dict[str, Any] | str:
    """The gateway's own status, or why there is none."""
    from federation.cli.health import ask_status

    return ask_status(group.gateway_socket)


def orders_lines(group: GroupPlace, gateway: dict[str, Any] | str | None) -> list[str]:
    """What an operator has switched off, where there is no gateway that says so itself."""
    from federation.limits.orders import SAID_HERE
    from federation.order_file import OrderError, OrderFile

    if isinstance(gateway, dict):
        return []
    try:
        orders = OrderFile(group.data_dir).read()
    except OrderError as error:
        return [f"{error}: a gateway that starts exchanges nothing with peers"]
    if orders.off:
        return [SAID_HERE[orders.of("")]]
    return [f"peer {name} is {SAID_HERE[order]}" for name, order in orders.peers.items()]


def as_json(report: GroupReport, gateway: dict[str, Any] | str | None) -> str:
    """The status for programs; `gateway` is null where there is none or it does not answer."""
    content = {**asdict(report), "ready": report.ready}
    content["gateway"] = gateway if isinstance(gateway, dict) else None
    if isinstance(gateway, str):
        content["gateway_problem"] = gateway
    return json.dumps(content, indent=2)


def print_status(
    report: GroupReport, gateway: dict[str, Any] | str | None, console: Console | None = None
) -> None:
    """The status for people."""
    console = console or Console(highlight=False)
    colour = _COLOURS.get(report.phase, "red")
    head = f'group "{report.group}" is [{colour}]{report.phase}[/]'
    if report.supervisor_pid is not None:
        head += f" (supervisor pid {report.supervisor_pid})"
    console.print(head)
    for problem in report.problems:
        console.print(Text.assemble(("  ! ", "yellow"), problem))
    if report.children:
        console.print(_children(report))
    if isinstance(gateway, dict):
        problems = gateway.get("problems")
        told = problems if isinstance(problems, list) else []
        _print_gateway(gateway, [str(p) for p in told if p not in report.problems], console)


def _children(report: GroupReport) -> Table:
    table = Table("process", "state", "pid", "up", "restarts", "memory", "last exit", box=None)
    for child in report.children:
        colour = _COLOURS.get(child.phase, "red")
        table.add_row(
            child.name,
            f"[{colour}]{child.phase}[/]",
            str(child.pid or "-"),
            _duration(child.uptime_s),
            str(child.restarts),
            f"{child.rss_bytes / 2**20:.0f} MiB" if child.rss_bytes else "-",
            child.last_exit or "-",
        )
    return table


def _print_gateway(gateway: Mapping[str, Any], problems: Sequence[str], console: Console) -> None:
    if line := leading_line(gateway):
        console.print(Text.assemble((" gateway ", "bold"), line))
    peers = _rows(gateway.get("peers"))
    if peers:
        table = Table("peer", "address", "state", "breaker", "heard", "views", "reason", box=None)
        for peer in peers:
            heard = peer.get("heard_ago_s")
            table.add_row(
                *_cells(peer, "name"),
                Text(_addresses(peer)),
                Text(_state(peer) + _order(peer)),
                *_cells(peer, "breaker"),
                "-" if heard is None else f"{heard} s ago",
                Text("\n".join(map(_view, _rows(peer.get("views")))) or "-"),
                *_cells(peer, "reason"),
            )
        console.print(table)
        for peer in peers:
            if line := _quarantine_line(peer):
                console.print(Text.assemble(("  ! ", "yellow"), line))
            for line in _troubles(peer):
                console.print(Text.assemble(("  ! ", "yellow"), line))
            if line := guards_line(peer):
                head = (f"  guards of {_text(peer.get('name'))} ", "bold")
                console.print(Text.assemble(head, line))
    for title, what in (("refused", "refused"), ("not connected", "not_connected")):
        if entries := _rows(gateway.get(what)):
            table = Table(title, "times", "reason", box=None)
            for entry in entries:
                table.add_row(*_cells(entry, "who", "count", "reason"))
            console.print(table)
    if line := stalls_line(gateway):
        console.print(Text.assemble((" stalls ", "bold"), line))
    for key, value in gateway.items():
        text = _text(value if key != "serving" else _without_stalls(value))
        if key not in _SHOWN and text:
            console.print(Text.assemble((f" {key} ", "bold"), text))
    for problem in problems:
        console.print(Text.assemble(("  ! ", "yellow"), problem))


_SHOWN = frozenset({"peers", "refused", "not_connected", "problems", "leading", "stalls"})


def stalls_line(gateway: Mapping[str, Any]) -> str:
    """What held up the event loops, in one line: how often, and the last time; "" for nothing."""
    serving = gateway.get("serving")
    books = {
        "gateway": gateway.get("stalls"),
        "serving": serving.get("stalls") if isinstance(serving, Mapping) else None,
    }
    parts = []
    for process, book in books.items():
        if isinstance(book, Mapping) and book.get("count"):
            last = _rows(book.get("latest"))[-1:]
            where = f", the last for {_text(last[0].get('ms'))} ms" if last else ""
            parts.append(f"{process} {_text(book.get('count'))}{where}")
    return f"{'; '.join(parts)} (--json says where)" if parts else ""


def _without_stalls(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {name: item for name, item in value.items() if name != "stalls"}


_ONE_WAY = {
    "we_do_not_hear": "heard by others alone",
    "not_heard": "does not hear us",
    "neither": "no direct link",
}


def _addresses(peer: Mapping[str, Any]) -> str:
    """Of a peer with several gateways a line each, with what is known of it."""
    gateways = _rows(peer.get("gateways"))
    if len(gateways) < 2:
        return _text(peer.get("address")) or "-"
    return "\n".join(
        f"{_text(each.get('address'))} {_text(each.get('state'))}" for each in gateways
    )


def _state(peer: Mapping[str, Any]) -> str:
    """Whether it is heard, and what keeps it from being pulled from all the same."""
    said = [_text(peer.get("state"))]
    if isinstance(peer.get("quarantine"), Mapping):
        said.append("in quarantine")
    if said[0] == "alive" and (one_way := _ONE_WAY.get(str(peer.get("link")))):
        said.append(one_way)
    return ", ".join(said)


def _order(peer: Mapping[str, Any]) -> str:
    """What an operator has ordered for it."""
    order = _text(peer.get("order"))
    return f", {order}" if order not in ("", "on") else ""


def _quarantine_line(peer: Mapping[str, Any]) -> str:
    held = peer.get("quarantine")
    if not isinstance(held, Mapping):
        return ""
    return (
        f"{_text(peer.get('name'))} is in quarantine for {_text(held.get('for_s'))} s "
        f"({_text(held.get('reason'))}): {_text(held.get('detail'))}. "
        f"Ended by {_text(held.get('healed_by'))}, or: moonmesh peer release {_text(peer.get('name'))}"
    )


def _view(view: Mapping[str, Any]) -> str:
    age = view.get("age_s")
    known = "" if age is None else f", {age} s old"
    cut = ", cut for want of room" if view.get("cut") else ""
    promises = view.get("promises")
    standing = promises.get("standing") if isinstance(promises, Mapping) else None
    lies = f", {standing} not there and promised still" if standing else ""
    return f"{view.get('namespace')}: {view.get('blocks')} blocks{known}{cut}{lies}"


def _troubles(peer: Mapping[str, Any]) -> Iterator[str]:
    """Catalogs of a peer that cannot be had, and why."""
    for view in _rows(peer.get("views")):
        if why := _text(view.get("trouble")):
            yield f"the catalog of {_text(peer.get('name'))} for {_text(view.get('namespace'))}: {why}"


def _cells(row: Mapping[str, Any], *keys: str) -> list[Text]:
    """Cells of what a gateway (so, in part, a peer) says: never read as markup."""
    return [Text(_text(row.get(key)) or "-") for key in keys]


def _rows(value: Any) -> list[Mapping[str, Any]]:
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    """A JSON value in one line; "" for nothing."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        inner = ((key, item, _text(item)) for key, item in value.items())
        return ", ".join(
            f"{key} ({text})" if isinstance(item, Mapping) else f"{key} {text}"
            for key, item, text in inner
            if text
        )
    if isinstance(value, list):
        return "; ".join(map(_text, value))
    return str(value)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
