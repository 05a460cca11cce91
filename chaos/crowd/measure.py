"""What a large federation costs one real gateway, in CPU seconds a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from chaos.errors import ChaosError
from chaos.faults.children import Helper
from federation.bench.groups import GroupSet, moonmesh, toml_lines
from federation.bench.piped import last_lines
from federation.bench.resources import free_port_base
from federation.bench.workspace import Workspace
from local_group.state import read_state

PORTS_FROM: Final = 20_000
PEER_PORTS: Final = 100
"""Offset of the light peers' ports, one each."""
PROCESSES: Final = 2
"""That share the light peers."""
ALIVE_S: Final = 60.0
POLL_S: Final = 1.0
SETTLE_S: Final = 10.0
"""After all are alive, until it is measured: connections are made, modules loaded, a child is in reserve."""


@dataclass(frozen=True)
class RealCost:
    """Shares of one core, user and system, by /proc.

    Attributes:
        gateway: the gateway itself.
        serving: its child that faces peers.
        others: its other children: the one in reserve.
        alive: peers that it had alive, with the link in both directions, at the end.
    """

    gateway: float
    serving: float
    others: float
    alive: int

    @property
    def whole(self) -> float:
        """All of it."""
        return self.gateway + self.serving + self.others


def real_cost(groups: int, seconds: float, say: Callable[[str], None]) -> RealCost:
    """Starts one group with Mooncake, and light peers in the place of all others; nobody reads or writes.

    Raises:
        MoonmeshError: it does not come up, or does not hear them.
    """
    with Workspace("crowd", say) as workspace:
        return asyncio.run(_measure(workspace.path, groups, seconds, say))


async def _measure(
    folder: Path, groups: int, seconds: float, say: Callable[[str], None]
) -> RealCost:
    target, names = "g00", [f"g{number:02}" for number in range(1, groups)]
    base = free_port_base(2, PORTS_FROM)
    config = _write(folder, target, base)
    log = folder / "peer-init.log"
    options = [f"--group={target}=127.0.0.1:{base + 2}"]
    options += [f"--group={n}=127.0.0.1:{base + PEER_PORTS + i}" for i, n in enumerate(names)]
    code = await moonmesh(
        "peer", "init", str(folder / "run"), "--federation=crowd", *options, log=log, timeout=120
    )
    if code != 0:
        raise ChaosError(f"moonmesh peer init failed:\n{last_lines(log)}", where=str(log))
    group = GroupSet([config], folder, say, asyncio.Event())
    helpers: list[Helper] = []
    try:
        await group.up()
        say(f"{len(names)} light peers")
        for number in range(PROCESSES):
            arguments = [str(folder / "run"), target, *names[number::PROCESSES]]
            helpers.append(
                await Helper.start(
                    "chaos.crowd.peers",
                    arguments,
                    "the light peers",
                    folder / f"peers-{number}.log",
                )
            )
        await _wait_until_alive(group, len(names))
        await asyncio.sleep(SETTLE_S)
        return await _read(group, seconds)
    finally:
        for helper in helpers:
            await helper.stop()
        await group.down()


def _write(folder: Path, name: str, base: int) -> Path:
    table: dict[str, Any] = {
        "name": name,
        "data_dir": "data",
        "port_base": base,
        "stores": {"count": 1, "dram": "16 MiB"},
        "gateway": {"peering": "peering.toml"},
    }
    path = (
        folder / "run" / name / "group.toml"
    )  # two below the folder: a killed run's groups are found there
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(toml_lines(table)) + "\n")
    return path


async def _alive(group: GroupSet) -> tuple[int, dict[str, Any]]:
    (status,) = await group.status()
    peers = status.get("peers", [])
    return sum(peer["state"] == "alive" and peer["link"] == "both" for peer in peers), status


async def _wait_until_alive(group: GroupSet, peers: int) -> None:
    end = time.monotonic() + ALIVE_S
    while (found := (await _alive(group))[0]) < peers:
        if time.monotonic() > end:
            raise ChaosError(f"only {found} of {peers} peers were alive after {ALIVE_S:.0f} s")
        await asyncio.sleep(POLL_S)


async def _read(group: GroupSet, seconds: float) -> RealCost:
    _, status = await _alive(group)
    serving = (status.get("serving") or {}).get("pid")
    state = read_state(group.groups[0].state_file)
    child = state.children["gateway"].process if state is not None else None
    if child is None or serving is None:
        raise ChaosError("the gateway does not run, or nothing of it faces its peers")
    try:
        gateway = psutil.Process(child.pid)
        everyone = [gateway, *gateway.children(recursive=True)]
        began, first = time.monotonic(), [_spent(process) for process in everyone]
        await asyncio.sleep(seconds)
        took = time.monotonic() - began
        shares = {
            process.pid: (_spent(process) - spent) / took
            for process, spent in zip(everyone, first, strict=True)
        }
    except psutil.Error as error:
        raise ChaosError(f"a process of the gateway ended while it was measured: {error}") from None
    alive, _ = await _alive(group)
    others = sum(share for pid, share in shares.items() if pid not in (gateway.pid, serving))
    return RealCost(shares[gateway.pid], shares[int(serving)], others, alive)


def _spent(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
