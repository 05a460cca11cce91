"""A running topology: real groups, the network between their gateways, an engine process each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from chaos.errors import ChaosError
from chaos.faults.children import Helper
from chaos.layout import BASE_LIMITS, write
from chaos.load.handle import EngineHandle
from chaos.load.keys import GUEST
from chaos.load.spec import EngineSpec
from chaos.network.base import Network
from chaos.record import PROBE
from chaos.section import Topology
from chaos.site import Site
from chaos.steps import Hostile
from federation.bench.groups import GroupSet, moonmesh
from federation.bench.piped import last_lines
from federation.config import GroupFile
from local_group.state import GroupState, read_state

ALIVE_S = 20.0
CONTACT_S = 15.0
POLL_S = 0.05
CALM_S = 8.0
CALM_LOOK_S = 0.4
CALM_SHARE = 0.4
"""Cores; Python's modules load at one."""
EXISTS_MS = 400
"""Deadline of calls of an engine that are given none."""


class Stage:
    """A topology between `up` and `down`.

    Attributes:
        own_namespace: whether engines bring their namespace, where no group.toml has it.

    Args:
        folder: where everything is written; short, for the sockets' sake.
        network: between the gateways; the stage brings it up and down.
        say: told one line a step.
    """

    own_namespace = False

    def __init__(
        self,
        topology: Topology,
        folder: Path,
        network: Network,
        say: Callable[[str], None],
    ) -> None:
        self.topology = topology
        self.folder = folder
        self.network = network
        self.engines: dict[str, EngineHandle] = {}
        self.probe: EngineHandle | None = None
        """An engine of the last group, which does nothing but read: its latency is that of the store."""
        self.quiet: list[list[float]] = []
        """Latencies of its reads while nothing was broken, in ms: stretches of time, from all runs."""
        self.burners: list[int] = []
        """Processes that burn CPU now."""
        self.base_rss: dict[str, int] = {}
        """Resident bytes of each gateway when all was up and nothing had happened."""
        self._say = say
        self._set: GroupSet | None = None
        self._epochs = 0
        self.hostile: dict[str, Helper] = {}
        """The hostile peers that are in their places."""
        self.others: list[int] = []
        """Processes of faults that are neither burners nor hostile peers."""
        self.site = Site(topology, folder, network)
        self._resting: dict[str, Helper] = {}
        """Programs of hostile peers that are in nobody's way until their place is taken again: by a peer
        that need not be started then, which takes a second of CPU."""

    # Up and down

    async def up(self, stop: asyncio.Event) -> None:
        """Starts everything and waits until the groups hear each other.

        Raises:
            ChaosError: if that fails.
        """
        write(self.topology, self.network, self.folder)
        await self.site.up()
        log = self.folder / "peer-init.log"
        code, _ = await asyncio.gather(
            moonmesh("peer", "init", str(self.folder), log=log, timeout=60), self.network.up()
        )
        if code != 0:
            raise ChaosError(f"moonmesh peer init failed:\n{last_lines(log)}", where=str(log))
        configs = [self.config_path(name) for name in self.topology.groups]
        await self.site.listen()
        inside = {name: self.site.inside(name) for name in self.topology.groups}
        self._set = GroupSet(configs, self.folder, self._say, stop, inside)
        await self._set.up()
        if stop.is_set():
            return
        await self._open_all()
        problems = await self.problems_until_none(ALIVE_S)
        if problems:
            raise ChaosError(f"the groups are not well after the start: {'; '.join(problems)}")
        await self._calm()
        for name in self.topology.groups:
            self.base_rss[name] = sum(p.memory_info().rss for p in self.gateway_processes(name))

    async def _calm(self) -> None:
        """Waits until the gateways have nothing to do: what is loaded in reserve is no part of a load."""
        end = time.monotonic() + CALM_S
        before = self._gateway_seconds()
        while time.monotonic() < end:
            await asyncio.sleep(CALM_LOOK_S)
            now = self._gateway_seconds()
            if now - before < CALM_SHARE * CALM_LOOK_S:
                return
            before = now

    def _gateway_seconds(self) -> float:
        spent = 0.0
        for name in self.topology.groups:
            for process in self.gateway_processes(name):
                with contextlib.suppress(psutil.Error):
                    spent += sum(process.cpu_times()[:2])
        return spent

    async def down(self) -> list[str]:
        """Stops everything; what could not be stopped or removed."""
        helpers = [*self.hostile.values(), *self._resting.values()]
        await asyncio.gather(*(helper.stop() for helper in helpers))
        self.hostile.clear()
        self._resting.clear()
        self.thaw()
        await asyncio.gather(*(engine.end() for engine in self.everyone().values()))
        self.engines, self.probe = {}, None
        left = await self._set.down() if self._set else []
        await self.site.down()
        return [f"group {name}" for name in left] + await self.network.down()

    def everyone(self) -> dict[str, EngineHandle]:
        """The engines of the groups, and the probe."""
        return self.engines | ({PROBE: self.probe} if self.probe else {})

    async def _open_all(self) -> None:
        groups = self.topology.groups
        *opened, self.probe = await asyncio.gather(
            *(self._open(name) for name in groups), self._open(groups[-1], PROBE)
        )
        self.engines = dict(zip(groups, opened, strict=True))

    async def _open(self, name: str, role: str = "engine") -> EngineHandle:
        spec = EngineSpec(
            config=str(self.config_path(name)),
            group=name,
            block_bytes=self.topology.block_bytes,
            deadline_ms=EXISTS_MS,
            own_namespace=self.own_namespace,
            guest=role == "engine"
            and any(GUEST in shared for shared in self.topology.hostile.values()),
        )
        log = self.folder / f"{role}-{name}.log"
        return await EngineHandle.start(spec, log, self.site.beside(name))

    # What faults act on

    def config_path(self, name: str) -> Path:
        """The `group.toml` of a real group."""
        return self.folder / name / "group.toml"

    @property
    def limits(self) -> dict[str, Any]:
        """`[limits]` of the groups, as they run."""
        return {**BASE_LIMITS, **self.topology.limits}

    def config(self, name: str) -> GroupFile:
        """Of a real group.

        Raises:
            ChaosError: the topology broke off before there were groups.
        """
        if self._set is None:
            raise ChaosError(f"group {name} was not started")
        return next(group for group in self._set.groups if group.name == name)

    def state(self, name: str) -> GroupState:
        """Of a real group's processes.

        Raises:
            ChaosError: the group does not run.
        """
        state = read_state(self.config(name).state_file)
        if state is None:
            raise ChaosError(f"group {name} does not run")
        return state

    def pid(self, name: str, part: str) -> int:
        """Of a part: gateway, master, store-N.

        Raises:
            ChaosError: it does not run now.
        """
        child = self.state(name).children.get(part)
        if child is not None and child.process is not None:
            return child.process.pid
        raise ChaosError(f"{part} of group {name} does not run")

    async def serving_pid(self, name: str) -> int:
        """Of the gateway's child that faces peers. (Another is in reserve.)

        Raises:
            ChaosError: none serves now.
        """
        serving = (await self.statuses())[name].get("serving") or {}
        if serving.get("state") != "serving" or not serving.get("pid"):
            raise ChaosError(f"nothing faces the peers of group {name}")
        return int(serving["pid"])

    def gateway_processes(self, name: str) -> list[psutil.Process]:
        """The gateway and what it has started, itself first."""
        with contextlib.suppress(ChaosError, psutil.Error):
            gateway = psutil.Process(self.pid(name, "gateway"))
            return [gateway, *gateway.children(recursive=True)]
        return []

    def processes(self) -> list[psutil.Process]:
        """Everything of the topology but the engines."""
        found: list[psutil.Process] = []
        helpers = [*self.hostile.values(), *self._resting.values()]
        pids = [helper.pid for helper in helpers] + self.network.pids + self.burners
        pids += self.others + self.site.pids
        for name in self.topology.groups:
            with contextlib.suppress(ChaosError):
                for child in self.state(name).children.values():
                    if child.process is not None:
                        pids.append(child.process.pid)
            found += self.gateway_processes(name)[1:]
        for pid in pids:
            with contextlib.suppress(psutil.Error):
                found.append(psutil.Process(pid))
        return found

    def restarts(self) -> int:
        """How often parts of the groups were started anew so far."""
        count = 0
        for name in self.topology.groups:
            with contextlib.suppress(ChaosError):
                count += sum(child.restarts for child in self.state(name).children.values())
        return count

    def thaw(self) -> None:
        """Continues everything that may have been stopped."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                os.kill(process.pid, signal.SIGCONT)

    async def start_hostile(self, step: Hostile, load: dict[str, Any]) -> None:
        """Puts a hostile peer in its place, asleep.

        Args:
            load: `chaos.hostile.peer.LoadClaims`, without owners and namespaces.
        """
        self._epochs += 1
        claims = {
            **load,
            "owners": [step.name, *step.claims],
            "namespaces": list(step.namespaces),
        }
        file = self.folder / f"claims-{step.name}.json"
        file.write_text(json.dumps(claims))
        port = self.network.places.peers_port(step.name)
        arguments = [
            f"--config={self.folder / step.name / 'peering.toml'}",
            f"--listen={self.network.listen(step.name)}:{port}",
            f"--behaviour={step.answer}",
            f"--attack={step.attack}",
            f"--statements={step.statements}",
            f"--catalog={step.catalog}",
            f"--target={step.target}",
            f"--load={file}",
            f"--epoch={self._epochs}",
            f"--lease-ms={self.topology.lease_ttl_ms}",
            # The default is twice a lease of 10 s; here the pool is small and the time short.
            f"--pin-seconds={self.topology.lease_ttl_ms / 20_000}",
        ]
        first = {"arguments": arguments}
        if (helper := self._resting.pop(step.name, None)) is not None:
            self.hostile[step.name] = helper
            await helper.again(first)
            return
        self.hostile[step.name] = await Helper.start(
            "chaos.hostile.peer",
            ["--lives"],
            f"the hostile peer {step.name}",
            self.folder / f"hostile-{step.name}.log",
            first=first,
            inside=self.network.inside(step.name),
        )

    async def wait_for_contact(self, step: Hostile) -> None:
        """Waits until the target hears a hostile peer, and has what it claims.

        Raises:
            ChaosError: it does not.
        """
        shared = set(step.namespaces) & set(self.topology.hostile[step.name])
        end = time.monotonic() + CONTACT_S
        while time.monotonic() < end:
            status = (await self.statuses())[step.target]
            for peer in status.get("peers", []):
                views = {v["namespace"] for v in peer["views"] if v["blocks"]}
                if peer["name"] == step.name and peer["state"] == "alive" and shared <= views:
                    return
            await asyncio.sleep(POLL_S)
        raise ChaosError(f"{step.target} did not hear the hostile peer {step.name}")

    def wake_hostile(self, name: str) -> None:
        """It shows what it is."""
        self.hostile[name].send("go")

    async def stop_hostile(self, name: str) -> dict[str, Any]:
        """Takes a hostile peer away; its books."""
        helper = self.hostile.pop(name, None)
        if helper is None:
            return {}
        self._resting[name] = helper  # at once: `down` finds it there, should this be cancelled
        try:
            *_, books, _ok = await helper.rest()
            return dict(json.loads(books))
        except (ChaosError, ValueError, TypeError):
            del self._resting[name]
            await helper.stop()
            return {}

    # How it is

    async def statuses(self) -> dict[str, dict[str, Any]]:
        """What each gateway says; {} for one that does not answer."""
        assert self._set is not None
        return dict(zip(self.topology.groups, await self._set.status(), strict=True))

    async def problems(self) -> list[str]:
        """What is not as it should be when nothing is broken."""
        found = []
        for name in self.topology.groups:
            try:
                children = self.state(name).children
            except ChaosError as error:
                found.append(error.what)
                continue
            found += [
                f"{name}: {c} is {s.phase}" for c, s in children.items() if s.phase != "ready"
            ]
        for name, status in (await self.statuses()).items():
            if not status:
                found.append(f"{name}: the gateway does not answer")
                continue
            if not (status.get("serving") or {"reserve_pid": 1}).get("reserve_pid"):
                found.append(f"{name}: no serving process is in reserve")
            for peer in status.get("peers", []):
                if peer["name"] in self.topology.groups:
                    if peer["state"] != "alive":
                        found.append(f"{name}: {peer['name']} is {peer['state']}")
                    if peer.get("breaker") == "open":
                        found.append(f"{name}: the breaker for {peer['name']} is open")
        return found

    async def problems_until_none(self, seconds: float) -> list[str]:
        """Waits until there is no problem; those that are left after `seconds`."""
        end = time.monotonic() + seconds
        while True:
            problems = await self.problems()
            if not problems or time.monotonic() > end:
                return problems
            await asyncio.sleep(POLL_S)
