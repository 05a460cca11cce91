"""Faults on a group that its operator runs: only such as an operator may make himself, and takes back.

Nothing is started or stopped here but engines of our own, in a namespace of their own. Links, disks, and the
processes of Mooncake are not ours to break.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, ClassVar

from chaos.cleanup import Run
from chaos.errors import ChaosError
from chaos.invariants.parameters import (
    Booked,
    Bounded,
    Bytes,
    Felt,
    Invariants,
    LocalP99,
)
from chaos.network.base import Fault, Kind, Network, Places
from chaos.runner import Planned, Runner
from chaos.scenario import Scenario, Workload
from chaos.section import Topology
from chaos.steps import Signal, Step, Switch
from chaos.topology import Stage
from federation.bench.groups import GroupSet
from federation.config import GroupFile, load_group
from federation.errors import ConfigError, MoonmeshError, UsageError
from federation.peering import load_peering

FAULTS = ("pause", "drain", "off", "restart")
"""What may be done to a running group, by the words of the command line."""
BLOCK_BYTES = 64 * 1024
LINE_S = 8.0
LASTS_S = 2.0
LOAD = Workload(seconds=LINE_S, local_chains=16, peer_rate=0, probe_rate=20)
THEIRS = "others use this group as well"


def group_of(peering: Path) -> tuple[Path, GroupFile]:
    """The `group.toml` beside a `peering.toml` that names it.

    Raises:
        UsageError: there is none.
    """
    peering = peering.absolute()
    if not peering.is_file():
        raise UsageError("there is no such peering.toml", where=str(peering))
    for path in sorted(peering.parent.glob("*.toml")):
        with contextlib.suppress(ConfigError):
            group = load_group(path)
            if group.gateway.peering is not None and group.gateway.peering.samefile(peering):
                return path, group
    raise UsageError(
        "no group.toml beside it names it as `[gateway] peering`",
        where=str(peering),
        hint="give the peering.toml of a group that runs on this host",
    )


def plan(path: Path, group: GroupFile, faults: Collection[str], command: str) -> list[Planned]:
    """What is to be done, in order: a scenario each.

    Args:
        path: of its `group.toml`.
        faults: of `FAULTS`; all if empty.
        command: how the run is repeated, without the fault's word.

    Raises:
        UsageError: a word that is none, or a group without peers.
        ConfigError: `peering.toml` cannot be used.
    """
    for word in faults:
        if word not in FAULTS:
            raise UsageError(
                f"{word!r} is nothing that may be done to a running group",
                hint=f"with --against there are: {', '.join(FAULTS)}; all without any",
            )
    if group.gateway.peering is None:
        raise UsageError("this group has no peers", where=str(path))
    peers = [peer.name for peer in load_peering(group.gateway.peering, read_keys=False).peers]
    topology = Topology(groups=(group.name,), elsewhere=tuple(peers), block_bytes=BLOCK_BYTES)
    planned = []
    for word in [fault for fault in FAULTS if fault in faults or not faults]:
        steps: list[tuple[str, str, Step]] = []
        if word == "restart":
            step = Signal(do="restart", at=1, group=group.name, part="gateway")
            steps.append(("gateway-restarted", "its gateway is restarted (SIGTERM)", step))
        elif word == "off":
            off = Switch(do="switch", at=1, lasts=LASTS_S, group=group.name, order="off")
            steps.append(("federation-off", f"the federation is off for {LASTS_S:g} s", off))
        else:
            order: Any = word
            for peer in peers:
                one = Switch(
                    do="switch", at=1, lasts=LASTS_S, group=group.name, order=order, peer=peer
                )
                steps.append((f"{word}-{peer}", f"{word} {peer} for {LASTS_S:g} s", one))
        planned += [
            Planned(_scenario(name, says, topology, step), f"{word} {command}")
            for name, says, step in steps
        ]
    if not planned:
        raise UsageError("this group has no peers", where=str(group.gateway.peering))
    return planned


def _scenario(name: str, says: str, topology: Topology, step: Step) -> Scenario:
    switched = isinstance(step, Switch)
    return Scenario(
        name=name[:48],
        summary=says,
        topology=topology,
        workload=LOAD,
        steps=(step,),
        invariants=Invariants(
            wrong_bytes=Bytes(verified_mib=5),
            bounded=Bounded(off=THEIRS),
            local_p99=LocalP99(off=THEIRS),
            books=(Booked(name="switch", what="orders"),) if switched else (),
            felt=None if switched else Felt(restarts_at_least=1),
        ),
    )


class Theirs(Network):
    """The network of a running group: nothing of it can be changed."""

    kind: ClassVar[Kind] = "loopback"
    modes = frozenset({"clear"})

    async def up(self) -> None:
        """Nothing."""

    async def down(self) -> list[str]:
        return []

    def listen(self, name: str) -> str:
        raise ChaosError("a running group listens where its operator has it listen")

    def address(self, source: str, to: str) -> str:
        raise ChaosError("a running group reaches its peers where its operator says")

    def inside(self, name: str) -> Sequence[str]:
        return ()

    async def change(self, source: str, to: str, fault: Fault) -> None:
        raise ChaosError("the links of a running group are not ours to break")

    async def heal(self) -> None:
        """Nothing was changed."""

    @property
    def pids(self) -> list[int]:
        return []


class Standing(Stage):
    """A group that runs already, and goes on.

    Args:
        path: of its `group.toml`.
        folder: for what is written of the run.
    """

    own_namespace = True

    def __init__(
        self, path: Path, topology: Topology, folder: Path, say: Callable[[str], None]
    ) -> None:
        super().__init__(topology, folder, Theirs(Places(topology.groups, (), 0)), say)
        self._path = path
        self._alive: set[str] = set()

    async def up(self, stop: asyncio.Event) -> None:
        """Looks at it, and opens engines.

        Raises:
            ChaosError: it does not run, or is not well: then nothing is done to it.
        """
        self._set = GroupSet([self._path], self.folder, self._say, stop)
        (name,) = self.topology.groups
        problems = await self.problems()
        if problems:
            raise ChaosError(f"nothing was done, since it is not well: {'; '.join(problems)}")
        status = (await self.statuses())[name]
        self._alive = {p["name"] for p in status.get("peers", []) if p["state"] == "alive"}
        await self._open_all()
        self.base_rss[name] = sum(p.memory_info().rss for p in self.gateway_processes(name))

    async def down(self) -> list[str]:
        """Ends our engines, and nothing else."""
        await asyncio.gather(*(engine.end() for engine in self.everyone().values()))
        self.engines, self.probe = {}, None
        return []

    def config_path(self, name: str) -> Path:
        return self._path

    def thaw(self) -> None:
        """Nothing of it was stopped."""

    async def problems(self) -> list[str]:
        """Also peers that were heard before, and are not any more."""
        found = await super().problems()
        for status in (await self.statuses()).values():
            found += [
                f"{peer['name']} is {peer['state']}"
                for peer in status.get("peers", [])
                if peer["name"] in self._alive and peer["state"] != "alive"
            ]
        return found

    @property
    def limits(self) -> dict[str, Any]:
        return self.config(self.topology.groups[0]).limits.model_dump()


class Against(Runner):
    """A run on a group that runs already.

    Args:
        path: of its `group.toml`.
        options: of `Runner`.
    """

    def __init__(self, path: Path, planned: Sequence[Planned], **options: Any) -> None:
        super().__init__(planned, **options)
        self._path = path

    async def _up(self, topology: Topology, folder: Path, run: Run) -> tuple[Stage | None, str]:
        place = folder / str(self._stages)
        self._stages += 1
        place.mkdir()
        stage = Standing(self._path, topology, place, self._progress.say)
        try:
            run.notes_orders(load_group(self._path).data_dir)
            await stage.up(self._stop)
        except BaseException as error:
            await asyncio.shield(asyncio.ensure_future(self._down(stage)))
            if isinstance(error, MoonmeshError):
                return None, str(error)
            raise
        return stage, ""
