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
from chaos.faults.children import Helper, ProxyHandle
from chaos.load.handle import EngineHandle
from chaos.load.keys import ENVELOPES, GUEST
from chaos.load.spec import EngineSpec
from chaos.record import PROBE
from chaos.scenario import Hostile, Topology
from federation.bench.groups import GroupSet, last_lines, moonmesh, toml_lines
from federation.config import GroupFile
from local_group.ports import PortUse, check_free
from local_group.process_errors import GroupError
from local_group.state import GroupState, read_state

STEP = 100
"""Ports of one group: its own from 0, the proxy's listeners from 60."""
LISTENERS = 60
PORTS_END = 30_000
"""Below the ports that the kernel hands out by itself."""
ALIVE_S = 20.0
CONTACT_S = 15.0
POLL_S = 0.05
EXISTS_MS = 400
"""Deadline of calls of an engine that are given none."""
BASE_LIMITS: dict[str, Any] = {
    "hello_interval_ms": 200,
    "staging_bytes": "64 MiB",
    "bounce_bytes": "32 MiB",
    "block_bytes_max": "4 MiB",
    "view_blocks_per_peer": 200_000,
    "peer_breaker_open_ms": 300,
    "listing_interval_ms": 2000,
    "peer_leased_bytes_min": "24 MiB",
}
"""Quick to notice, quick to return, and small enough that a flood meets them."""


class Stage:
    """A topology between `up` and `down`.

    Args:
        folder: where everything is written; short, for the sockets' sake.
        say: told one line a step.
    """

    def __init__(
        self,
        topology: Topology,
        folder: Path,
        port_base: int,
        say: Callable[[str], None],
    ) -> None:
        self.topology = topology
        self.folder = folder
        self.engines: dict[str, EngineHandle] = {}
        self.probe: EngineHandle | None = None
        """An engine of the last group, which does nothing but read: its latency is that of the store."""
        self.quiet: list[list[float]] = []
        """Latencies of its reads while nothing was broken, in ms: stretches of time, from all runs."""
        self.base_rss: dict[str, int] = {}
        """Resident bytes of each gateway when all was up and nothing had happened."""
        self._say = say
        names = [*topology.groups, *topology.hostile]
        self._base = {name: port_base + i * STEP for i, name in enumerate(names)}
        self._set: GroupSet | None = None
        self._proxy: ProxyHandle | None = None
        self._epochs = 0
        self.hostile: dict[str, Helper] = {}

    # Up and down

    async def up(self, stop: asyncio.Event) -> None:
        """Starts everything and waits until the groups hear each other.

        Raises:
            ChaosError: if that fails.
        """
        self._write()
        log = self.folder / "peer-init.log"
        if await moonmesh("peer", "init", str(self.folder), log=log, timeout=60) != 0:
            raise ChaosError(f"moonmesh peer init failed:\n{last_lines(log)}", where=str(log))
        configs = [self.folder / name / "group.toml" for name in self.topology.groups]
        self._set = GroupSet(configs, self.folder, self._say, stop)
        self._proxy = await ProxyHandle.start(self._links(), self.folder / "proxy.log")
        await self._set.up()
        if stop.is_set():
            return
        groups = self.topology.groups
        *opened, self.probe = await asyncio.gather(
            *(self._open(name) for name in groups), self._open(groups[-1], PROBE)
        )
        self.engines = dict(zip(groups, opened, strict=True))
        problems = await self.problems_until_none(ALIVE_S)
        if problems:
            raise ChaosError(f"the groups are not well after the start: {'; '.join(problems)}")
        for name in self.topology.groups:
            self.base_rss[name] = sum(p.memory_info().rss for p in self.gateway_processes(name))

    async def down(self) -> list[str]:
        """Stops everything; the names of groups that could not be stopped."""
        for helper in list(self.hostile.values()):
            await helper.stop()
        self.hostile.clear()
        self.thaw()
        await asyncio.gather(*(engine.end() for engine in self.everyone().values()))
        self.engines, self.probe = {}, None
        left = await self._set.down() if self._set else []
        if self._proxy is not None:
            await self._proxy.stop()
            self._proxy = None
        return left

    def everyone(self) -> dict[str, EngineHandle]:
        """The engines of the groups, and the probe."""
        return self.engines | ({PROBE: self.probe} if self.probe else {})

    async def _open(self, name: str, role: str = "engine") -> EngineHandle:
        spec = EngineSpec(
            config=str(self.folder / name / "group.toml"),
            group=name,
            block_bytes=self.topology.block_bytes,
            deadline_ms=EXISTS_MS,
            guest=role == "engine"
            and any(GUEST in shared for shared in self.topology.hostile.values()),
        )
        return await EngineHandle.start(spec, self.folder / f"{role}-{name}.log")

    def _write(self) -> None:
        topology = self.topology
        for name, base in self._base.items():
            group: dict[str, Any] = {
                "name": name,
                "data_dir": "d",
                "port_base": base,
                "master": {"lease_ttl_ms": topology.lease_ttl_ms},
                "stores": {"count": topology.stores, "dram": topology.dram},
                "gateway": {"peering": "peering.toml"},
                "namespaces": ENVELOPES,
                "limits": {**BASE_LIMITS, **topology.limits},
            }
            folder = self.folder / name
            folder.mkdir()
            (folder / "group.toml").write_text("\n".join(toml_lines(group)) + "\n")
            (folder / "peering.toml").write_text(self._peering(name))

    def _peering(self, name: str) -> str:
        lines = [
            'federation = "chaos"',
            "[self]",
            f'group = "{name}"',
            'credentials = "credentials"',
        ]
        for other in self._base:
            if other == name:
                continue
            shared = self._shared(name, other)
            names = json.dumps(sorted(shared))
            lines += [
                "[[peers]]",
                f'name = "{other}"',
                f'address = "127.0.0.1:{self._address(name, other)}"',
                f'key_file = "../{other}/credentials/identity.pub"',
                f"export = {names}",
                f"import = {names}",
            ]
        return "\n".join(lines) + "\n"

    def _shared(self, one: str, other: str) -> set[str]:
        every = set(ENVELOPES)
        hostile = self.topology.hostile
        return set(hostile.get(one, every)) & set(hostile.get(other, every))

    def _address(self, name: str, other: str) -> int:
        """The port where `name` reaches `other`: between real groups, a listener of the proxy."""
        groups = self.topology.groups
        if name in groups and other in groups:
            return self._base[name] + LISTENERS + groups.index(other)
        return self._base[other] + 2

    def _links(self) -> list[dict[str, Any]]:
        groups = self.topology.groups
        return [
            {
                "source": a,
                "to": b,
                "listen": self._address(a, b),
                "target": self._base[b] + 2,
            }
            for a in groups
            for b in groups
            if a != b
        ]

    # What faults act on

    @property
    def proxy(self) -> ProxyHandle:
        """The network between the groups."""
        assert self._proxy is not None
        return self._proxy

    def config(self, name: str) -> GroupFile:
        """Of a real group."""
        assert self._set is not None
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
        pids = [helper.pid for helper in self.hostile.values()]
        if self._proxy is not None:
            pids.append(self._proxy.pid)
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

    def thaw(self) -> None:
        """Continues everything that may have been stopped."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                os.kill(process.pid, signal.SIGCONT)

    async def start_hostile(self, step: Hostile, load: dict[str, Any]) -> Helper:
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
        helper = await Helper.start(
            "chaos.hostile.peer",
            [
                "-c", str(self.folder / step.name / "peering.toml"),
                f"--listen=127.0.0.1:{self._base[step.name] + 2}",
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
                "--asleep",
            ],
            f"the hostile peer {step.name}",
            self.folder / f"hostile-{step.name}.log",
        )  # fmt: skip
        self.hostile[step.name] = helper
        return helper

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
        said = await helper.stop()
        with contextlib.suppress(ValueError, IndexError):
            books = json.loads(said[-1])
            return books if isinstance(books, dict) else {}
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


def free_ports(topology: Topology, start: int) -> int:
    """The first base from `start` where all ports of the topology are free.

    Raises:
        ChaosError: there is none.
    """
    places = len(topology.groups) + len(topology.hostile)
    offsets = [*range(4), *range(10, 10 + topology.stores)]
    offsets += [LISTENERS + i for i in range(len(topology.groups))]
    for base in range(start, PORTS_END - places * STEP + 1, STEP):
        ports = (base + place * STEP + offset for place in range(places) for offset in offsets)
        with contextlib.suppress(GroupError):
            check_free(PortUse("127.0.0.1", port, "a chaos run") for port in ports)
            return base
    raise ChaosError("no free ports", hint=f"looked from {start} to {PORTS_END}; see --port-base")
