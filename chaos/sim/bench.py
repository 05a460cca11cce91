"""`moonmesh bench gossip` without its command line: each figure, and what it should be."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from chaos.crowd.measure import real_cost
from chaos.sim.convergence import Convergence, Watcher, percentile
from chaos.sim.cost import measure
from chaos.sim.faults import draw_stalls
from chaos.sim.invariants import Invariants
from chaos.sim.network import Conditions
from chaos.sim.presets import preset
from chaos.sim.process import Process
from chaos.sim.processes import fresh_processes
from chaos.sim.run import Request, follow_change, run_seeds
from chaos.sim.world import Setup, World
from federation.bench.report import Report, Target
from gossip.membership import PeerState

LOSS: Final = 0.2
MESH: Final = 64
LARGE: Final = 1024
LINK_GROUPS: Final = 16
"""Groups of a world whose links are watched for DOWNs that are not true."""
LINK_ROUNDS: Final = 1800
"""Hello intervals that one such world runs; of one second each."""
LINK_LOSS: Final = 0.05
LINK_STALL: Final = 0.1
LINK_STALL_EVERY: Final = 10.0
"""Seconds from one stall of a gateway to the next, on average."""
LARGE_UPDATES: Final = 50
LARGE_ROUNDS: Final = 14
KILLS: Final = 6
REAL_SECONDS: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class GossipBench:
    """Options of `moonmesh bench gossip`; see its help."""

    link_hours: float = 500.0
    seeds: int = 50
    large: int = LARGE
    updates: int = 200
    processes: int = 2
    only: tuple[str, ...] = ()
    """Names in `STEPS`; none: all but `real`, which starts a real group."""
    say: Callable[[str], None] = lambda text: None
    """Told what goes on."""


def gossip_report(options: GossipBench) -> Report:
    """Measures all of it, or what is asked for."""
    report = Report("gossip")
    for name in options.only or [name for name in STEPS if name != "real"]:
        step = STEPS[name]
        options.say((step.__doc__ or "").strip())
        step(options, report)
    if not options.only:
        report.targets.append(Target(REAL_TARGET, None, "<=", 0.05))
        report.notes.append("The whole peer process is measured by `--only real`.")
    report.notes.append(
        "All figures but those of CPU are of virtual time: no machine changes them."
    )
    return report


# Convergence


def converge(groups: int, loss: float, updates: int, seed: int) -> list[float]:
    """Hello intervals that statements took until all groups had them, sorted.

    The updates are spread over the rounds of one world: two in a round.
    """
    convergence = Convergence()
    checks = Invariants(convergence)
    conditions = Conditions(delay=0.02, jitter=0.02, loss=loss)
    config = preset("wan")
    world = World(
        Setup(groups=groups, seed=seed, config=config, conditions=conditions, tick_late=0.005),
        checks,
    )
    checks.attach(world)
    random = Random(f"{seed}/updates")
    names = list(world.groups)
    world.run(10)
    for _ in range(updates):
        follow_change(world, random.choice(names), convergence)
        world.run(0.5)
    world.run(12)
    return convergence.rounds(config.hello_interval)


def _mesh(options: GossipBench, report: Report) -> None:
    """64 groups, no loss: how long an update takes."""
    taken = converge(MESH, 0.0, max(20, options.updates // 5), seed=1)
    report.figures["64 groups: rounds of an update, longest"] = taken[-1]
    report.targets.append(
        Target("64 groups, no loss: an update is everywhere", taken[-1], "<=", 1, "rounds")
    )


def _mesh_lossy(options: GossipBench, report: Report) -> None:
    """64 groups, 20 % of the messages lost: how long an update takes."""
    halves = _spread(
        options, converge, [(MESH, LOSS, options.updates // 2, seed) for seed in (1, 2)]
    )
    taken = sorted(rounds for half in halves for rounds in half)
    p99 = percentile(taken, 0.99)
    report.figures["64 groups, 20 % loss: rounds of an update, p50"] = percentile(taken, 0.5)
    report.targets.append(
        Target("64 groups, 20 % loss: an update is everywhere, p99", p99, "<=", 4, "rounds")
    )


def _large(options: GossipBench, report: Report) -> None:
    """Far more groups than a full mesh has, 20 % of the messages lost: how long an update takes."""
    taken, sent = converge_large(options.large, max(LARGE_UPDATES, options.updates // 4))
    p99 = percentile(taken, 0.99)
    name = f"{options.large:,} groups, 20 % loss"
    report.figures[f"{name}: rounds of an update, p50"] = percentile(taken, 0.5)
    report.figures[f"{name}: bytes a second and group"] = sent
    report.targets.append(Target(f"{name}: an update is everywhere, p99", p99, "<=", 10, "rounds"))


def converge_large(groups: int, updates: int) -> tuple[list[float], float]:
    """The same with 20 % loss where the mesh is not full; and bytes a second and group.

    Groups know each other already: how they come to is not what is measured.
    """
    convergence = Convergence()
    worlds: list[World] = []
    world = World(
        Setup(
            groups=groups,
            seed=5,
            config=preset("wan"),
            conditions=Conditions(delay=0.02, jitter=0.02, loss=LOSS),
            tick_late=0.005,
        ),
        Watcher(convergence, lambda: worlds[0]),
    )
    worlds.append(world)
    world.run(1)
    world.acquaint()
    world.run(4)
    before = world.network.traffic.bytes
    for name in Random("updates").sample(list(world.groups), updates):
        follow_change(world, name, convergence)
    world.run(LARGE_ROUNDS)
    sent = (world.network.traffic.bytes - before) / LARGE_ROUNDS / groups
    return convergence.rounds(world.config.hello_interval), sent


# Detection


def detect(seed: int) -> tuple[float, float]:
    """Seconds from the end of a gateway until the last of 15 others has it SUSPECT, and DOWN."""
    config = preset("wan")
    conditions = Conditions(delay=0.02, jitter=0.1, loss=LINK_LOSS)
    world = World(
        Setup(groups=LINK_GROUPS, seed=seed, config=config, conditions=conditions, tick_late=0.005)
    )
    world.run(60 + Random(f"{seed}/kill").random())
    name = Random(f"{seed}/who").choice(list(world.groups))
    process = world.groups[name].process
    assert process is not None
    world.stop(process)
    killed_at = world.now
    suspect = down = math.inf
    while world.now < killed_at + 60 and down == math.inf:
        world.run(0.1)
        states = {_state(group.process, name) for group in world.groups.values()}
        states.discard(None)
        if suspect == math.inf and PeerState.ALIVE not in states:
            suspect = world.now - killed_at
        if states == {PeerState.DOWN}:
            down = world.now - killed_at
    return suspect, down


def _state(process: Process | None, peer: str) -> PeerState | None:
    if process is None or process.group == peer:
        return None
    return process.engine.peer_state(peer)


def _killed(options: GossipBench, report: Report) -> None:
    """A group is killed: how long until all others know."""
    found = list(_spread(options, detect, [(seed,) for seed in range(KILLS)]))
    suspect, down = max(s for s, _ in found), max(d for _, d in found)
    report.figures["killed group: SUSPECT at all others, s"] = suspect
    report.targets.append(Target("a killed group is DOWN at all others (wan)", down, "<=", 15, "s"))


def watch_links(seed: int, rounds: int) -> tuple[int, int]:
    """SUSPECTs and DOWNs in a world in which nobody ends."""
    checks = Invariants()
    conditions = Conditions(delay=0.02, jitter=0.02, loss=LINK_LOSS)
    world = World(
        Setup(
            groups=LINK_GROUPS,
            seed=seed,
            config=preset("wan"),
            conditions=conditions,
            tick_late=0.005,
        ),
        checks,
    )
    checks.attach(world)
    draw_stalls(world, Random(f"{seed}/stalls"), LINK_STALL, LINK_STALL_EVERY)
    world.run(rounds)
    return len(checks.suspects), len(checks.downs)


def _false_downs(options: GossipBench, report: Report) -> None:
    """Nobody ends, 5 % of the messages are lost, gateways stall for 100 ms: who is called DOWN."""
    links = LINK_GROUPS * (LINK_GROUPS - 1)
    worlds = max(1, math.ceil(options.link_hours * 3600 / links / LINK_ROUNDS))
    found = list(_spread(options, watch_links, [(seed, LINK_ROUNDS) for seed in range(worlds)]))
    hours = worlds * LINK_ROUNDS * links / 3600
    report.figures["link-hours with 5 % loss and stalls of 100 ms"] = hours
    report.figures["false SUSPECTs in them"] = sum(s for s, _ in found)
    report.targets.append(Target("false DOWNs in them", sum(d for _, d in found), "==", 0))


# Cost


def _idle_bytes(options: GossipBench, report: Report) -> None:
    """64 groups, nothing happens: bytes a second and group."""
    world = World(
        Setup(
            groups=MESH,
            seed=3,
            config=preset("wan"),
            conditions=Conditions(delay=0.02, jitter=0.02),
            tick_late=0.005,
        )
    )
    world.run(10)
    before = world.network.traffic.bytes
    world.run(20)
    sent = (world.network.traffic.bytes - before) / 20 / MESH
    report.targets.append(
        Target("64 groups, idle: bytes a second and group", sent, "<=", 30_000, "B/s")
    )


def _engine_cpu(options: GossipBench, report: Report) -> None:
    """64 groups with real signatures: what one engine takes of a core."""
    cost = measure(MESH)
    report.figures["64 groups: signatures alone, share of a core"] = cost.signatures
    report.figures["64 groups: reading and writing messages, share of a core"] = cost.codec
    report.targets.append(
        Target("64 groups: engine with signatures, share of a core", cost.engine, "<=", 0.01)
    )


def _seeds(options: GossipBench, report: Report) -> None:
    """Everything that can break, in many worlds."""
    requests = [
        Request(groups=16, seed=seed, rounds=200, faults="all") for seed in range(options.seeds)
    ]
    began = time.monotonic()
    held = sum(result.failure is None for result in run_seeds(requests, options.processes))
    report.figures["worlds with all faults, wall seconds"] = time.monotonic() - began
    report.targets.append(
        Target(f"worlds with all faults that hold, of {options.seeds}", held, "==", options.seeds)
    )


def _real(options: GossipBench, report: Report) -> None:
    """A real gateway with Mooncake beside it, among 63 light peers over mTLS; nobody reads or writes."""
    cost = real_cost(MESH, REAL_SECONDS, options.say)
    report.figures["real gateway: the gateway, share of a core"] = cost.gateway
    report.figures["real gateway: its serving process, share of a core"] = cost.serving
    report.figures["real gateway: its process in reserve, share of a core"] = cost.others
    report.figures["real gateway: peers alive, of 63"] = cost.alive
    report.targets.append(Target(REAL_TARGET, cost.whole, "<=", 0.05))


REAL_TARGET: Final = "64 groups: whole peer process, real, share of a core"
STEPS: Final[dict[str, Callable[[GossipBench, Report], None]]] = {
    "mesh": _mesh,
    "loss": _mesh_lossy,
    "large": _large,
    "kill": _killed,
    "links": _false_downs,
    "bytes": _idle_bytes,
    "cpu": _engine_cpu,
    "seeds": _seeds,
    "real": _real,
}
"""What can be measured, by name."""


def _spread(
    options: GossipBench, measure: Callable[..., Any], arguments: list[tuple[Any, ...]]
) -> Iterator[Any]:
    """The same measurement with different arguments, on some processes; in order."""
    if options.processes == 1 or len(arguments) == 1:
        yield from (measure(*each) for each in arguments)
        return
    with fresh_processes(options.processes) as pool:
        yield from pool.map(measure, *zip(*arguments, strict=True))
