"""The network as network namespaces of the kernel: each place a host of its own, broken by the kernel.

One namespace a place, with a wire (a veth pair) to the hub: one more namespace, which forwards between
them. What breaks a direction is set in the hub alone: packet rules, limits, the detour through a process
that delays. The host's own network has no part in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from chaos.faults.children import Helper
from chaos.network import rules
from chaos.network.base import CLEAR, Congestion, Fault, Kind, Mode, Network, Places
from chaos.network.rules import Way
from chaos.network.tools import PREFIX, call, inside, remove

DETOURS = frozenset({"delay", "jitter", "reorder"})
"""What is made by the process on the way."""
FORWARD = "echo 1 > /proc/sys/net/ipv4/ip_forward"
CONGESTION = "echo {} > /proc/sys/net/ipv4/tcp_congestion_control"


class Namespaces(Network):
    """See the module.

    Args:
        stage: id of the run and number of the topology in it: `RUN-N`. It is in all names.
        owns: told the names of the namespaces before there are any.
        log: of the process that delays.
        congestion: TCP's congestion control in each place; `host`: as the host has it.
    """

    kind: ClassVar[Kind] = "namespaces"
    modes: ClassVar[frozenset[Mode]] = frozenset(
        {"clear", "cut", "reset", "rate", "delay", "loss", "jitter", "reorder"}
    )

    def __init__(
        self,
        places: Places,
        stage: str,
        owns: Callable[[Sequence[str]], None],
        log: Path,
        congestion: Congestion = "host",
    ) -> None:
        super().__init__(places)
        self._congestion = congestion
        self._hub = f"{PREFIX}{stage}"
        self._names = {name: f"{self._hub}-{name}" for name in places.names}
        self._numbers = {name: number for number, name in enumerate(places.names, 1)}
        self._owns = owns
        self._log = log
        self._faults: dict[Way, Fault] = {}
        self._changing = asyncio.Lock()
        self._changes: set[asyncio.Task[None]] = set()
        self._delay: Helper | None = None

    async def up(self) -> None:
        self._owns([self._hub, *self._names.values()])
        namespaces = [self._hub, *self._names.values()]
        await call("ip", "-batch", "-", text="".join(f"netns add {n}\n" for n in namespaces))
        await self._ip(self._hub, rules.wires(self._hub, list(self._names.values())))
        for name, namespace in self._names.items():
            await self._ip(namespace, rules.end(self._numbers[name]))
            if self._congestion != "host":
                await call(*inside(namespace), "sh", "-c", CONGESTION.format(self._congestion))
        await self._tc(rules.shapers(len(self._names)))
        await call(*inside(self._hub), "sh", "-c", FORWARD)
        self._delay = await Helper.start(
            "chaos.network.delay",
            [rules.DELAY_DEVICE],
            "the process that delays",
            self._log,
            inside=inside(self._hub),
        )

    async def down(self) -> list[str]:
        await asyncio.gather(*self._changes, return_exceptions=True)
        if self._delay is not None:
            await self._delay.stop()
            self._delay = None
        left = remove([*self._names.values(), self._hub])
        return [f"network namespace {name}" for name in left]

    def listen(self, name: str) -> str:
        return rules.address(self._numbers[name])

    def address(self, source: str, to: str) -> str:
        return f"{self.listen(to)}:{self.places.peers_port(to)}"

    def inside(self, name: str) -> Sequence[str]:
        return inside(self._names[name])

    async def change(self, source: str, to: str, fault: Fault) -> None:
        # To its end whatever becomes of the caller: a tool that is left running would do its part after
        # that of the next change.
        way = Way(self._numbers[source], self._numbers[to])
        change = asyncio.create_task(self._change(way, fault))
        self._changes.add(change)
        change.add_done_callback(self._changes.discard)
        await asyncio.shield(change)

    async def _change(self, way: Way, fault: Fault) -> None:
        async with self._changing:
            before = self._faults.pop(way, CLEAR)
            await self._undo(way, before)
            if fault.mode == "rate":
                await self._tc(rules.limit(way, fault.mbit))
            elif fault.mode in DETOURS:
                assert self._delay is not None
                begin, end = way.addresses
                how = {"mode": fault.mode, "ms": fault.ms, "share": fault.share}
                await self._delay.ask({"source": begin, "to": end, **how})
                await call("ip", "-n", self._hub, "rule", "add", *rules.detour(way))
            if fault != CLEAR:
                self._faults[way] = fault
            await call(*inside(self._hub), "iptables-restore", text=rules.filters(self._faults))

    async def heal(self) -> None:
        names = {number: name for name, number in self._numbers.items()}
        for way in list(self._faults):
            await self.change(names[way.source], names[way.to], CLEAR)

    @property
    def pids(self) -> list[int]:
        return [self._delay.pid] if self._delay is not None else []

    async def _undo(self, way: Way, fault: Fault) -> None:
        """Takes back what is not a packet rule."""
        if fault.mode == "rate":
            await self._tc(rules.unlimit(way))
        elif fault.mode in DETOURS:
            await call("ip", "-n", self._hub, "rule", "del", *rules.detour(way))

    async def _ip(self, namespace: str, batch: str) -> None:
        await call("ip", "-n", namespace, "-batch", "-", text=batch)

    async def _tc(self, batch: str) -> None:
        await call("tc", "-n", self._hub, "-batch", "-", text=batch)
