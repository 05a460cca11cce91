"""Runs worlds, one or many, and says what became of them."""

from __future__ import annotations

import gc
import math
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any, Final, Literal

from chaos.sim.convergence import Convergence
from chaos.sim.faults import Plan, draw_plan, loss_plan
from chaos.sim.invariants import RAISES, Broken, Invariants
from chaos.sim.network import Conditions
from chaos.sim.presets import preset
from chaos.sim.processes import fresh_processes
from chaos.sim.world import TICK_GRAIN, Setup, World
from gossip.engine import GossipEngine
from gossip.statement import Health

Faults = Literal["none", "loss", "all"]
HEAL_ROUNDS: Final = 20
"""Rounds at the end of `all` in which nothing breaks: after `CONVERGE_ROUNDS` of them all is well."""
ROUNDS_MIN: Final = 40
"""Of a world with all faults: there has to be time for some."""
CONVERGE_ROUNDS: Final = 10
REAL_EVERY: Final = 100
"""One seed in so many is run with real signatures."""
TICK_LATE: Final = 0.005
"""Seconds that an event loop is late at most, when all is well."""
BUSY_TICK_LATE: Final = 0.15
"""The same where everything breaks: below the half interval that an engine takes for a stall."""
LOSS: Final = 0.2
WARM_ROUNDS: Final = 8
"""Rounds at the beginning and at the end in which no statement is followed."""
FAULTS_SHOWN: Final = 12
FOLLOW_EVERY: Final = 4
"""Rounds from one statement that is followed to the next."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A world to be run."""

    groups: int
    seed: int
    rounds: int
    faults: Faults = "none"
    preset: str = "wan"

    @property
    def command(self) -> str:
        """Runs it again."""
        return (
            f"moonmesh sim gossip --groups {self.groups} --seed {self.seed} "
            f"--rounds {self.rounds} --faults {self.faults} --preset {self.preset}"
        )


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What did not hold, and the short story of how it came to that."""

    invariant: str
    detail: str
    at: float
    faults: list[str]
    story: list[str]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of a world.

    Attributes:
        digest: of all that happened.
        rounds_to_converge: of each statement that was followed, sorted.
        bytes_per_group_second: payload of hellos and replies, sent.
    """

    request: Request
    digest: str
    seconds: float
    messages: int
    lost: int
    bytes_per_group_second: float
    rounds_to_converge: list[float] = field(default_factory=list)
    failure: Failure | None = None

    def as_dict(self) -> dict[str, Any]:
        found = asdict(self)
        found["rounds_to_converge"] = [
            None if math.isinf(rounds) else rounds for rounds in self.rounds_to_converge
        ]
        found["held"] = self.failure is None
        found["command"] = self.request.command
        return found


def run_world(request: Request, engine: Callable[..., GossipEngine] = GossipEngine) -> Result:
    """Runs one world to its end, or to the first invariant that breaks.

    Args:
        engine: makes the engines; tests have one that is broken.
    """
    config = preset(request.preset)
    convergence = Convergence()
    checks = Invariants(convergence)
    world = World(
        Setup(
            groups=request.groups,
            seed=request.seed,
            config=config,
            conditions=Conditions(delay=0.02, jitter=0.02),
            real_signatures=request.seed % REAL_EVERY == REAL_EVERY - 1,
            tick_late=BUSY_TICK_LATE if request.faults == "all" else TICK_LATE,
            engine=engine,
        ),
        checks,
    )
    checks.attach(world)
    plan = make_plan(request, world, config.hello_interval)
    plan.schedule(world)
    failure = None
    gc.disable()  # there are no cycles to speak of, and many objects to look at
    try:
        _play(world, request, plan, checks, convergence)
    except Broken as broken:
        failure = _failure(world, plan, broken.invariant, str(broken), broken.about)
    except Exception as error:  # an engine may raise nothing at all, whatever it is told
        text = "".join(traceback.format_exception_only(error)).strip()
        where = traceback.extract_tb(error.__traceback__)[-1]
        detail = f"{text} ({where.filename.rsplit('/', 1)[-1]}:{where.lineno})"
        failure = _failure(world, plan, RAISES, detail, ())
    finally:
        gc.enable()
    traffic = world.network.traffic
    return Result(
        request=request,
        digest=world.story.digest,
        seconds=world.now,
        messages=traffic.messages,
        lost=traffic.lost,
        bytes_per_group_second=traffic.bytes / max(world.now, 1e-9) / request.groups,
        rounds_to_converge=convergence.rounds(config.hello_interval),
        failure=failure,
    )


def make_plan(request: Request, world: World, interval: float) -> Plan:
    """The faults of a world: drawn from its seed, from nothing else."""
    if request.faults == "all":
        random = Random(f"{request.seed}/faults")
        return draw_plan(random, list(world.groups), request.rounds, HEAL_ROUNDS, interval)
    if request.faults == "loss":
        return loss_plan(LOSS)
    return Plan((), (), float("inf"))


def run_seeds(requests: Iterable[Request], processes: int) -> Iterator[Result]:
    """Runs many worlds on some processes, in order."""
    if processes == 1:
        yield from map(run_world, requests)
        return
    with fresh_processes(processes) as pool:
        yield from pool.map(run_world, requests)


def _play(
    world: World, request: Request, plan: Plan, checks: Invariants, convergence: Convergence
) -> None:
    if request.faults == "all":
        world.run(request.rounds - HEAL_ROUNDS + CONVERGE_ROUNDS)
        checks.check_settled(over=False)
        world.run(HEAL_ROUNDS - CONVERGE_ROUNDS)
        checks.check_settled(over=True)
        return
    random = Random(f"{request.seed}/updates")
    names = list(world.groups)
    for number in range(request.rounds):
        world.run(1)
        if WARM_ROUNDS <= number < request.rounds - WARM_ROUNDS and number % FOLLOW_EVERY == 0:
            follow_change(world, random.choice(names), convergence)
    if request.faults == "none":
        checks.check_settled(over=True)


def follow_change(world: World, name: str, convergence: Convergence) -> None:
    """Something has changed at a group: follows the statement that says so."""
    process = world.groups[name].process
    if process is None:
        return
    process.well = not process.well  # each time a change, and so a statement
    process.engine.set_health(Health.OK if process.well else Health.DEGRADED)
    world.nudge(process)
    said_by = world.now + world.config.hello_min_gap + TICK_GRAIN  # at the latest
    world.clock.at(said_by, convergence.follow, world, name, world.now)


def _failure(
    world: World, plan: Plan, invariant: str, detail: str, about: tuple[str, ...]
) -> Failure:
    began = [str(fault) for fault in plan.faults if fault.at <= world.now]
    concerned = [line for line in began if not about or any(name in line for name in about)]
    return Failure(
        invariant=invariant,
        detail=detail,
        at=world.now,
        faults=concerned[-FAULTS_SHOWN:],
        story=world.story.lines(*about),
    )
