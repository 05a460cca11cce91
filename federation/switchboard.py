"""What an operator has switched off, put in force: here on the way out, on the way in by those who serve."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from federation.counters import counters
from federation.limits.guards import Guards
from federation.limits.names import Kind
from federation.limits.orders import Order, Orders
from federation.order_file import OrderError, OrderFile
from federation.peers.processes import ServingProcesses
from federation.peers.subscriptions import Subscriptions
from federation.transfer.puller import Puller

log = logging.getLogger("moonmesh.gateway")

LOOK_SECONDS = 0.5
"""Between two looks at the file, for a command that was killed before it told us."""
TOLD_SECONDS = 0.9
"""For which the serving process is waited for until it says that it goes by an order."""
_ASK_SECONDS = 0.3


class Switchboard:
    """The orders of this place.

    A file that cannot be read: at the start all is off, since it may have said so; later what is in force
    stays in force.
    """

    def __init__(self, file: OrderFile) -> None:
        self._file = file
        self.orders = Orders()
        self.problem = ""
        """Why the file cannot be read, and what holds meanwhile."""
        self._guards: Guards | None = None
        self._puller: Puller | None = None
        self._subscriptions: Subscriptions | None = None
        self._serving: ServingProcesses | None = None

    def load(self, guards: Guards) -> None:
        """What holds from the start, before anything is exchanged."""
        self._guards = guards
        try:
            self.orders = self._file.read()
        except OrderError as error:
            self.orders = Orders(off=True, changed_at=time.time())
            self.problem = f"{error}: nothing is exchanged with peers until it can be read"
            log.error("%s", self.problem)
        self._apply()

    def serve_by(self, serving: ServingProcesses) -> None:
        """Has the serving process go by them too."""
        self._serving = serving
        serving.order(self.orders)

    def pull_by(self, puller: Puller, subscriptions: Subscriptions | None) -> None:
        """Has an order end pulls and catalog questions that are under way."""
        self._puller, self._subscriptions = puller, subscriptions

    async def watch(self) -> None:
        """Looks at the file now and then; never returns."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self._look()

    async def take(self) -> str:
        """Looks at the file; returns once what it says is in force, or why it is not."""
        await self._look()
        if self.problem:
            return self.problem
        orders, until = self.orders, time.monotonic() + TOLD_SECONDS
        while self._serving is not None and not self._serving.obeys(orders):
            if time.monotonic() >= until:
                return "the serving process has not said that it goes by it: see `moonmesh status`"
            await self._serving.refresh(_ASK_SECONDS)
        return ""

    def status(self) -> dict[str, Any]:
        """For `moonmesh status`."""
        at = self.orders.changed_at
        return {
            "federation": "off" if self.orders.off else "on",
            "peers": {name: self.word(name) for name in self.orders.peers},
            "changed_at": (
                datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="seconds")
                if at
                else None
            ),
            "problem": self.problem,
        }

    def word(self, peer: str) -> str:
        """on, off, paused, drained; or draining, while something is under way with it."""
        order = self.orders.of(peer)
        if order is Order.DRAINED and self._guards is not None and peer in self._guards:
            incoming = (self._serving.guards(peer) if self._serving else None) or {}
            told = incoming.get("open")
            under_way = told.get(Kind.PULL.value, 0) if isinstance(told, Mapping) else 0
            if self._guards[peer].outgoing.open(Kind.PULL) or under_way:
                return "draining"
        return order.value

    def said(self) -> list[str]:
        """What is off, in words, for whoever looks for the reason of something."""
        found = [self.problem] if self.problem else []
        if self.orders.off and not self.problem:
            found.append("the federation is switched off here: `moonmesh federation on`")
        for name in self.orders.peers:
            known = self._guards is not None and name in self._guards
            found.append(
                f"peer {name} is {self.word(name)}: `moonmesh peer resume {name}`"
                if known
                else f"{name} is {self.orders.peers[name].value}, and no peer of this group"
            )
        return found

    async def _look(self) -> None:
        try:
            found = await asyncio.to_thread(self._file.read)
        except OrderError as error:
            said = f"{error}: what was in force before stays in force"
            if not self.problem:
                self.problem = said
                log.error("%s", said)
            return
        self.problem = ""
        if found != self.orders:
            self.orders = found
            counters.add("moonmesh_orders_total")
            log.warning("orders of the operator: %s", found.encode().decode())
            self._apply()

    def _apply(self) -> None:
        if self._serving is not None:
            self._serving.order(self.orders)
        for name, guards in (self._guards or {}).items():
            order, before = self.orders.of(name), guards.outgoing.order
            if order is before:
                continue
            guards.outgoing.order = order
            if self._puller is not None and order in (Order.PAUSED, Order.OFF):
                self._puller.drop(name)
            if self._subscriptions is not None:
                self._subscriptions.back(name)  # a question that is open ends, or is asked at once
