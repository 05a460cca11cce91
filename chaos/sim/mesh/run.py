"""Runs worlds of gateways, one or many, and says what became of them."""

from __future__ import annotations

import asyncio
import gc
import logging
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

from chaos.sim.invariants import Broken
from chaos.sim.mesh.faults import Plan, draw_plan
from chaos.sim.mesh.loop import LivelockError, VirtualLoop, bury, virtual
from chaos.sim.mesh.settled import check_hits, check_views
from chaos.sim.mesh.world import RAISES, MeshWorld, Setup, group_names
from chaos.sim.processes import fresh_processes
from chaos.sim.run import Failure
from federation.counters import counters

Faults = Literal["none", "all"]
HEAL_ROUNDS: Final = 24
"""Rounds (seconds) at the end in which nothing breaks."""
HITS_ROUNDS: Final = 14
"""Of those, after which peers' blocks come again."""
ROUNDS_MIN: Final = 36
FAULTS_SHOWN: Final = 12


@dataclass(frozen=True, kw_only=True)
class Request:
    """A world to be run; `rounds` are seconds."""

    groups: int
    seed: int
    rounds: int
    faults: Faults = "none"

    @property
    def command(self) -> str:
        """Runs it again."""
        return (
            f"moonmesh sim mesh --groups {self.groups} --seed {self.seed} --rounds {self.rounds} "
            f"--faults {self.faults}"
        )


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of a world.

    Attributes:
        digest: of all that was told, and of what became of it.
        tally: blocks by where they came from, and more.
        refused: counters of what was not done, and why.
    """

    request: Request
    digest: str
    seconds: float
    line_bytes: int
    tally: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    failure: Failure | None = None

    def as_dict(self) -> dict[str, Any]:
        found = asdict(self)
        found["held"] = self.failure is None
        found["command"] = self.request.command
        return found


def run_world(request: Request) -> Result:
    """Runs one world to its end, or to the first invariant that breaks."""
    before = counters.snapshot()
    plan = _plan(request)
    with made(request.groups, request.seed, frozenset(plan.hostile)) as world:
        plan.schedule(world)
        failure = _play(world, request, plan)
        return _result(world, request, failure, before)


@contextmanager
def made(groups: int, seed: int, hostile: frozenset[str] = frozenset()) -> Iterator[MeshWorld]:
    """A world that has not run yet; nothing of it is left behind.

    Args:
        hostile: names of groups of which nothing is asked.
    """
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="moonmesh-sim-", dir=shared if shared.is_dir() else None))
    worlds: list[MeshWorld] = []
    loop = VirtualLoop(lambda context: worlds[0].uncaught(context))
    unraisable, sys.unraisablehook = sys.unraisablehook, lambda _: None
    silent = logging.root.manager.disable
    logging.disable(
        logging.CRITICAL
    )  # gateways say what is wrong with their peers: it is meant to be
    gc.disable()  # what is let go of is so at a moment that depends on the seed alone
    try:
        with virtual(loop, f"{seed}/chance"):
            world = MeshWorld(Setup(groups=groups, seed=seed, folder=folder), loop, hostile)
            worlds.append(world)
            yield world
            del world
    finally:
        bury(iter(asyncio.all_tasks(loop)))
        for world in worlds:
            bury(task for node in world.nodes for task in node.graves)
            for group in world.groups.values():
                if group.gateway is not None:
                    group.gateway.close()
        worlds.clear()
        loop.close()
        gc.enable()
        logging.disable(silent)
        gc.collect()
        sys.unraisablehook = unraisable
        shutil.rmtree(folder, ignore_errors=True)


def run_seeds(requests: Iterable[Request], processes: int) -> Iterator[Result]:
    """Runs many worlds on some processes, in order."""
    if processes == 1:
        yield from map(run_world, requests)
        return
    with fresh_processes(processes) as pool:
        yield from pool.map(run_world, requests)


def _plan(request: Request) -> Plan:
    names = group_names(request.groups)
    if request.faults == "all":
        return draw_plan(Random(f"{request.seed}/faults"), names, request.rounds, HEAL_ROUNDS)
    return Plan((), (), max(0.0, request.rounds - HEAL_ROUNDS))


def _play(world: MeshWorld, request: Request, plan: Plan) -> Failure | None:
    try:
        world.run(request.rounds - HEAL_ROUNDS + HITS_ROUNDS)
        world.do(check_hits(world))
        world.run(max(world.loop.now + 1, request.rounds))
        world.do(check_views(world))
    except Broken as broken:
        return _failure(world, plan, broken)
    except LivelockError as error:
        return _failure(world, plan, Broken(RAISES, str(error)))
    return None


def _failure(world: MeshWorld, plan: Plan, broken: Broken) -> Failure:
    about = broken.about
    began = [str(fault) for fault in plan.faults if fault.at <= world.loop.now]
    concerned = [line for line in began if not about or any(name in line for name in about)]
    return Failure(
        invariant=broken.invariant,
        detail=str(broken).removeprefix(f"{broken.invariant}: "),
        at=world.loop.now,
        faults=concerned[-FAULTS_SHOWN:],
        story=world.story.lines(*about),
    )


REFUSED: Final = (
    "moonmesh_guard_refusals_total",
    "moonmesh_pulls_shed_total",
    "moonmesh_serves_shed_total",
    "moonmesh_staging_full_total",
    "moonmesh_refused_requests_total",
    "moonmesh_pull_errors_total",
    "moonmesh_admission_shed_total",
    "moonmesh_admission_over_quota_total",
    "moonmesh_catalog_errors_total",
    "moonmesh_catalog_standing_total",
    "moonmesh_pulls_hedged_total",
    "moonmesh_admitted_total",
    "moonmesh_copies_given_back_total",
    "moonmesh_serving_restarts_total",
)
DEFECTS: Final = "moonmesh_pull_defects_total"


def _result(
    world: MeshWorld, request: Request, failure: Failure | None, before: dict[str, int]
) -> Result:
    grown = {name: n - before.get(name, 0) for name, n in counters.snapshot().items()}
    if failure is None and grown.get(DEFECTS):
        failure = Failure(
            invariant=RAISES,
            detail="a pull ended by a defect",
            at=world.loop.now,
            faults=[],
            story=[],
        )
    refused: dict[str, int] = {}
    for name, n in grown.items():
        word, _, labels = name.partition("{")
        if word in REFUSED and n:
            guard = labels.partition('guard="')[2].partition('"')[0]
            shown = f"{word} ({guard})" if guard else word
            refused[shown] = refused.get(shown, 0) + n
    tally = asdict(world.truth.tally)
    world.tell("world", f"{sorted(tally.items())} {sorted(refused.items())} {world.lines.bytes}")
    return Result(
        request=request,
        digest=world.story.digest,
        seconds=world.loop.now,
        line_bytes=world.lines.bytes,
        tally=tally,
        refused=refused,
        failure=failure,
    )
