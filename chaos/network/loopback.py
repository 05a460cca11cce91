"""The network on loopback: gateways reach each other through `chaos.faults.proxy`. Needs no privileges."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import ClassVar

from chaos.errors import ChaosError
from chaos.faults.children import Helper
from chaos.network.base import CLEAR, COLLECTOR, STEP, Fault, Kind, Mode, Network, Places
from local_group.ports import PortUse, check_free
from local_group.process_errors import GroupError

HOST = "127.0.0.1"
LISTENERS = 60
"""Offset of the proxy's listeners in the ports of the group that dials them, one for each group."""
PORTS_END = 30_000
"""Below the ports that the kernel hands out by itself."""


class Loopback(Network):
    """Every group dials every other through a listener of its own in the proxy.

    Hostile peers are dialled, and dial, without it: no scenario breaks the way to them.
    """

    kind: ClassVar[Kind] = "loopback"
    modes: ClassVar[frozenset[Mode]] = frozenset(
        {"clear", "cut", "reset", "rate", "delay", "jitter"}
    )

    def __init__(self, places: Places, log: Path) -> None:
        super().__init__(places)
        self._log = log
        self._proxy: Helper | None = None
        self._changed: set[tuple[str, str]] = set()

    async def up(self) -> None:
        groups = self.places.groups
        links = [
            {
                "source": a,
                "to": b,
                "listen": self._listener(a, b),
                "target": self.places.peers_port(b),
            }
            for a in groups
            for b in groups
            if a != b
        ]
        self._proxy = await Helper.start(
            "chaos.faults.proxy", [], "the proxy", self._log, first={"links": links}
        )

    async def down(self) -> list[str]:
        if self._proxy is not None:
            await self._proxy.stop()
            self._proxy = None
        return []

    def listen(self, name: str) -> str:
        return HOST

    def address(self, source: str, to: str) -> str:
        proxied = {source, to} <= set(self.places.groups)
        port = self._listener(source, to) if proxied else self.places.peers_port(to)
        return f"{HOST}:{port}"

    def inside(self, name: str) -> Sequence[str]:
        return ()

    async def change(self, source: str, to: str, fault: Fault) -> None:
        if fault.mode not in self.modes:
            raise ChaosError(
                f"{fault.mode} cannot be made on loopback", hint="--network namespaces"
            )
        assert self._proxy is not None
        self._changed.add((source, to))
        await self._proxy.ask({"source": source, "to": to, **asdict(fault)})
        if fault == CLEAR:
            self._changed.discard((source, to))

    async def heal(self) -> None:
        for source, to in sorted(self._changed):
            await self.change(source, to, CLEAR)

    @property
    def pids(self) -> list[int]:
        return [self._proxy.pid] if self._proxy is not None else []

    def _listener(self, source: str, to: str) -> int:
        return self.places.base(source) + LISTENERS + self.places.groups.index(to)


def free_ports(groups: Sequence[str], hostile: Sequence[str], stores: int, start: int) -> Places:
    """Places with the first base from `start` where all their ports are free.

    Args:
        stores: of each group.

    Raises:
        ChaosError: there is none.
    """
    count = len(groups) + len(hostile)
    offsets = [*range(6), COLLECTOR, *range(10, 10 + stores)]
    offsets += [LISTENERS + i for i in range(len(groups))]
    for base in range(start, PORTS_END - count * STEP + 1, STEP):
        ports = (base + place * STEP + offset for place in range(count) for offset in offsets)
        with contextlib.suppress(GroupError):
            check_free(PortUse(HOST, port, "a chaos run") for port in ports)
            return Places(tuple(groups), tuple(hostile), base)
    raise ChaosError("no free ports", hint=f"looked from {start} to {PORTS_END}; see --port-base")
