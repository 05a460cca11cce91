"""Is a port free, and if not, who has it?"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import psutil

from local_group.config import GroupConfig
from local_group.process_errors import GroupError, PortInUse


@dataclass(frozen=True)
class PortUse:
    """A TCP port that the group is about to use."""

    host: str
    port: int
    purpose: str
    """E.g. `the master's RPC`."""


def mooncake_ports(config: GroupConfig) -> list[PortUse]:
    """The ports of the master, if it is started here, and of the stores."""
    uses = []
    if config.master.address is None:
        uses = [
            PortUse(config.host, config.ports.master_rpc, "the master's RPC"),
            PortUse(config.host, config.ports.master_admin, "the master's admin HTTP"),
        ]
    uses += [
        PortUse(config.host, config.ports.store(index), f"store-{index}")
        for index in range(config.stores.count)
    ]
    return uses


def check_free(uses: Iterable[PortUse]) -> None:
    """Raise for the first port that cannot be listened on.

    Raises:
        PortInUse: names the port, what it is for and who has it, where that is visible.
        GroupError: the address is not one of this machine, or the port is not allowed.
    """
    for use in uses:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                use.host, use.port, type=socket.SOCK_STREAM
            )[0]
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                # Two sockets may be bound with SO_REUSEADDR; only one may listen.
                probe.listen(1)
        except OSError as error:
            raise _explain(use, error) from error


def listeners(pid: int) -> set[int]:
    """TCP ports on which a process listens; empty if it is gone or not visible."""
    with contextlib.suppress(psutil.Error, OSError):
        return {
            _port(connection)
            for connection in psutil.Process(pid).net_connections(kind="tcp")
            if connection.status == psutil.CONN_LISTEN
        }
    return set()


def _explain(use: PortUse, error: OSError) -> GroupError:
    where = f"{use.host}:{use.port}"
    if error.errno == errno.EADDRINUSE:
        return PortInUse(
            f"port {use.port}, needed for {use.purpose}, is in use{_holder(use.port)}",
            hint="stop that process, or choose another port_base in group.toml",
        )
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return GroupError(
            f"{use.host}, needed for {use.purpose}, is not an address of this machine",
            hint="set host (or gateway.listen) in group.toml to one of `ip address`",
        )
    return GroupError(f"cannot listen for {use.purpose}: {error.strerror}", where=where)


def _port(connection: Any) -> int:
    """Port of a listening connection of psutil (typed as if it could have no address)."""
    return int(connection.laddr.port)


def _holder(port: int) -> str:
    try:
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status != psutil.CONN_LISTEN or _port(connection) != port:
                continue
            if connection.pid is None:
                return " by a process of another user"
            return f" by {psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except (psutil.Error, OSError):
        pass
    return ""
