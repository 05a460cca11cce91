"""Makes the faults of one host: of its limits, disk, clock, certificate, collector, and number of engines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from chaos.errors import ChaosError
from chaos.faults import clocks, disks, squeezing
from chaos.faults.children import Helper
from chaos.faults.trials import WrongKey, shown
from chaos.load.spec import LoadSpec
from chaos.steps import (
    Apply,
    Certificate,
    Clock,
    Collector,
    Disk,
    Herd,
    Squeeze,
    Step,
    Switch,
    told,
)
from chaos.topology import Stage
from federation.cli.health import ask_orders
from federation.limits.orders import Order, Orders
from federation.order_file import OrderFile
from federation.trust.authority import Authority
from federation.trust.credentials import utc_now

REFILL_S = 0.05
"""How often a full disk is filled again: what runs on it makes room, as when a log begins anew."""
SPANS_BYTES = 64 * 1024
"""Of the end of a file of spans: more than one line."""
FEDERATION = "chaos"
STARTS_S = 15.0
"""In which a gateway that starts anew answers."""
LOOK_S = 0.2


class Making:
    """Faults of one pass.

    Args:
        load: of the engines; a herd asks for the same chains.
        books: filled with what each fault has counted, under the step's word.
    """

    def __init__(
        self,
        stage: Stage,
        load: LoadSpec,
        books: dict[str, dict[str, Any]],
        say: Callable[[str], None],
    ) -> None:
        self._stage = stage
        self._load = load
        self._books = books
        self._say = say
        self._herds: dict[int, Helper] = {}

    async def prepare(self, steps: Sequence[Step]) -> None:
        """Starts what takes a second of CPU to start, before the load: that is no part of the fault.

        Raises:
            ChaosError: it does not start.
        """
        for step in steps:
            if isinstance(step, Herd):
                self._herds[id(step)] = await self._gather(step)

    async def close(self) -> None:
        """Ends what was prepared."""
        for helper in self._herds.values():
            await helper.stop()
            self._stage.others.remove(helper.pid)
        self._herds.clear()

    @contextlib.asynccontextmanager
    async def made(self, step: Step) -> AsyncIterator[None]:
        """The fault between its beginning and its being undone.

        Raises:
            ChaosError: it cannot be made.
        """
        make: Any
        if isinstance(step, Squeeze):
            make = self._squeezed(step)
        elif isinstance(step, Disk):
            make = self._disk(step)
        elif isinstance(step, Clock):
            make = self._clock(step)
        elif isinstance(step, Certificate):
            make = self._certificate(step)
        elif isinstance(step, Collector):
            make = self._collector(step)
        elif isinstance(step, Switch):
            make = self._switch(step)
        elif isinstance(step, Apply):
            make = self._apply(step)
        else:
            assert isinstance(step, Herd)
            make = self._herd(step)
        async with make:
            yield

    def _count(self, step: Step, **counts: float) -> None:
        books = self._books.setdefault(step.do, {})
        for name, count in counts.items():
            books[name] = books.get(name, 0) + count

    # Limits

    @contextlib.asynccontextmanager
    async def _squeezed(self, step: Squeeze) -> AsyncIterator[None]:
        processes = self._stage.gateway_processes(step.group)
        if not processes:
            raise ChaosError(f"gateway of group {step.group} does not run")
        self._say(f"{step.what} of the gateway of {step.group}: {step.to:g}")
        if step.what in ("descriptors", "file-bytes"):
            with squeezing.limited(step.what, processes, int(step.to)):
                yield
            self._count(step, processes=len(processes))
            return
        what: squeezing.Shared = "cpu" if step.what == "cpu" else "memory"
        with squeezing.confined(what, processes, step.to) as group:
            try:
                yield
            finally:
                if step.what == "cpu":
                    self._count(step, throttled=squeezing.throttled(group))
                else:
                    self._count(step, refused=squeezing.refused_memory(group))

    # Disk and clock

    @contextlib.asynccontextmanager
    async def _disk(self, step: Disk) -> AsyncIterator[None]:
        self._say(f"the disk of {step.group}: {step.mode}")
        if step.mode == "errors":
            helper = self._stage.site.faulty[step.group]
            await helper.ask({"failing": True})
            try:
                yield
            finally:
                await helper.ask({"failing": False})
                self._count(step, failed=json.loads(helper.lines[-2])["failed"])
            return
        place = self._stage.site.data(step.group)
        filling = asyncio.create_task(self._fill(place, step))
        try:
            yield
        finally:
            filling.cancel()
            await asyncio.gather(filling, return_exceptions=True)
            disks.empty(place)

    async def _fill(self, place: Path, step: Disk) -> None:
        while True:
            self._count(step, filled=disks.fill(place))
            await asyncio.sleep(REFILL_S)

    @contextlib.asynccontextmanager
    async def _clock(self, step: Clock) -> AsyncIterator[None]:
        self._say(f"the clock of {step.group} jumps by {step.hours:g} h")
        file = self._stage.site.clock_file(step.group)
        clocks.put(file, 3600 * step.hours)
        try:
            yield
            self._count(step, ahead_s=abs(self._ahead(step.group)))
        finally:
            clocks.put(file, 0)

    def _ahead(self, group: str) -> float:
        """How far ahead a group's gateway believes it is, in seconds, by the last span that it wrote."""
        folder = self._stage.site.data(group) / "traces"
        files = sorted(folder.glob("gateway*.jsonl"), key=lambda file: file.stat().st_mtime)
        if not files:
            return 0.0
        lines = files[-1].read_bytes()[-SPANS_BYTES:].splitlines()
        with contextlib.suppress(ValueError, IndexError, KeyError, TypeError):
            return round(int(json.loads(lines[-1])["end_ns"]) / 1e9 - time.time(), 1)
        return 0.0

    # Certificate

    @contextlib.asynccontextmanager
    async def _certificate(self, step: Certificate) -> AsyncIterator[None]:
        self._say(f"{step.group} has a certificate for {step.valid_s:g} s")
        await asyncio.to_thread(self._certify, step.group, step.valid_s)
        self._restart(step.group)
        try:
            yield
            self._count(step, expired=1)
        finally:
            self._say(f"{step.group} gets a new certificate")
            await asyncio.to_thread(self._certify, step.group, None)
            self._restart(step.group)

    def _certify(self, group: str, valid_s: float | None) -> None:
        now, days = utc_now(), 1
        if valid_s is not None:
            now += timedelta(seconds=valid_s) - timedelta(days=days)
        folder = self._stage.folder
        authority = Authority(folder / "ca", FEDERATION, days=days, renew=True, now=now)
        authority.group(group, folder / group / "credentials")

    def _restart(self, group: str) -> None:
        with contextlib.suppress(ChaosError, ProcessLookupError):
            os.kill(self._stage.pid(group, "gateway"), signal.SIGTERM)

    # Orders

    @contextlib.asynccontextmanager
    async def _switch(self, step: Switch) -> AsyncIterator[None]:
        self._say(told(step))
        began, before = time.monotonic(), Orders()

        def give(held: Orders) -> Orders:
            nonlocal before
            before = held
            if step.peer is None:
                return held.with_federation(off=True, at=time.time())
            order = Order.PAUSED if step.order == "pause" else Order.DRAINED
            return held.with_peer(step.peer, order, time.time())

        def take_back(held: Orders) -> Orders:
            # To what it was: of a group that its operator runs, he may have given an order himself.
            if step.peer is None:
                return held.with_federation(off=before.off, at=time.time())
            return held.with_peer(step.peer, before.peers.get(step.peer, Order.ON), time.time())

        try:
            if problem := await asyncio.to_thread(self._order, step, give):
                raise ChaosError(f"{told(step)}: {problem}")
            took = time.monotonic() - began
            self._count(step, orders=1, took_ms=round(1000 * took))
            yield
        finally:
            # A gateway that does not answer now goes by it when it does again.
            await asyncio.to_thread(self._order, step, take_back)

    def _order(self, step: Switch, change: Callable[[Orders], Orders]) -> str:
        """Changes what is ordered at a group; why its gateway does not go by it, "" if it does."""
        group = self._stage.config(step.group)
        OrderFile(group.data_dir).change(change)
        return ask_orders(group.gateway_socket)

    @contextlib.asynccontextmanager
    async def _apply(self, step: Apply) -> AsyncIterator[None]:
        self._say(f"on trial: {told(step)}")
        stage, group = self._stage, step.group
        trial = WrongKey(stage.config(group), stage.config_path(group), stage.folder)
        try:
            await trial.begin(step.peer)
            yield
        finally:
            counts = await asyncio.to_thread(trial.end)
            if not counts["taken_back"]:
                self._restart(group)
            self._count(step, **counts, said=await self._says_rolled_back(group))

    async def _says_rolled_back(self, group: str) -> bool:
        """Whether `status` tells of it: the gateway may be starting anew, for just that."""
        until = time.monotonic() + STARTS_S
        while shown((await self._stage.statuses())[group]) != "rolled back":
            if time.monotonic() > until:
                return False
            await asyncio.sleep(LOOK_S)
        return True

    # Collector and herd

    @contextlib.asynccontextmanager
    async def _collector(self, step: Collector) -> AsyncIterator[None]:
        self._say(f"the collector is {step.mode}")
        helpers = self._stage.site.collectors
        await asyncio.gather(*(helper.ask({"mode": step.mode}) for helper in helpers))
        try:
            yield
        finally:
            await asyncio.gather(*(helper.ask({"mode": "clear"}) for helper in helpers))
            for helper in helpers:
                self._count(step, **json.loads(helper.lines[-2]))

    @contextlib.asynccontextmanager
    async def _herd(self, step: Herd) -> AsyncIterator[None]:
        self._say(f"{step.clients} engine clients at {step.group}")
        helper = self._herds[id(step)]
        helper.send("go")
        yield
        *_, books, _ok = await helper.rest()
        self._count(step, **json.loads(books))

    async def _gather(self, step: Herd) -> Helper:
        flock = {
            "socket": str(self._stage.config(step.group).gateway_socket),
            "clients": step.clients,
            "chains": step.chains,
            "owner": step.owner,
            "tag": self._load.tag,
            "blocks": self._load.blocks,
            "block_bytes": self._stage.topology.block_bytes,
            "deadline_ms": step.deadline_ms,
        }
        log = self._stage.folder / "herd.log"
        helper = await Helper.start("chaos.faults.herd", [], "the herd", log, first=flock)
        self._stage.others.append(helper.pid)
        return helper
