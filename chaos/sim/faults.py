"""Faults of a world, and plans of them drawn from its seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from chaos.sim.hostile import HABITS, Guise
from chaos.sim.links import Fault, LinkFaults
from chaos.sim.network import Conditions, Network
from chaos.sim.process import Process
from chaos.sim.world import World
from gossip.statement import Health

CALM_ROUNDS: Final = 6
"""Rounds at the beginning in which nothing breaks."""
PER_ROUNDS: Final = 6
"""One fault in so many rounds, on average."""
CLOGGED: Final = (100.0, 2000.0)
"""Bytes a second of a link that is clogged, from and to."""
ROUGH: Final = Conditions(delay=0.02, jitter=0.1, loss=0.05, duplicated=0.02, overtaken=0.02)
"""The network while there are faults, when nothing is wrong with a link."""


@dataclass(frozen=True)
class Plan:
    """All faults of a world.

    Attributes:
        hostile: groups that are hostile, and switched off at the end.
        heals_at: seconds; from then on everything is well.
    """

    faults: tuple[Fault[World], ...]
    hostile: tuple[str, ...]
    heals_at: float

    def schedule(self, world: World) -> None:
        """Puts the faults into a world that has not run yet."""
        for name in self.hostile:
            world.groups[name].hostile = True
        for fault in self.faults:
            world.clock.at(fault.at, _begin, world, fault)
            world.clock.at(fault.until, _end, world, fault)
        world.clock.at(self.heals_at, heal, world, self.hostile)


def _begin(world: World, fault: Fault[World]) -> None:
    world.tell("fault", f"{fault.text} begins")
    fault.begin(world)


def _end(world: World, fault: Fault[World]) -> None:
    world.tell("fault", f"{fault.text} ends")
    fault.end(world)


def heal(world: World, hostile: tuple[str, ...]) -> None:
    """What an operator does who finds everything broken: hostile groups off, the others on."""
    world.tell("fault", "all is healed")
    world.network.conditions = world.setup.conditions
    world.network.heal_all()
    for name in hostile:
        running = world.groups[name].process
        if running is not None:
            world.stop(running)
    for group in world.groups.values():
        if group.process is None and not group.hostile:
            world.start(group.name)


def loss_plan(share: float) -> Plan:
    """No fault but lost messages, to the end."""

    def begin(world: World) -> None:
        world.network.conditions = Conditions(delay=0.02, jitter=0.02, loss=share)

    fault = Fault(0.0, float("inf"), f"{share:.0%} of all messages are lost", begin)
    return Plan((fault,), (), float("inf"))


def draw_plan(
    random: Random, groups: list[str], rounds: int, heal_rounds: int, interval: float
) -> Plan:
    """Everything that can go wrong.

    Args:
        random: of this plan alone.
        groups: names.
        rounds: hello intervals that the world will run.
        heal_rounds: of those, at the end, without faults.
        interval: seconds of a round.
    """
    heals_at = (rounds - heal_rounds) * interval
    begin = CALM_ROUNDS * interval
    hostile = tuple(random.sample(groups, random.randint(0, len(groups) // 5)))
    honest = [name for name in groups if name not in hostile]
    drawing = _Drawing(random, groups, honest, interval)
    faults = [Fault(begin, heals_at, "the network is rough", _rough)]
    faults += [drawing.hostile(name, begin, heals_at) for name in hostile]
    kinds = drawing.kinds
    for _ in range(max(1, rounds // PER_ROUNDS)):
        at = random.uniform(begin, max(begin, heals_at - interval))
        until = min(heals_at, at + random.uniform(0.3, 30) * interval)
        faults.append(random.choice(kinds)(at, until))
    return Plan(tuple(sorted(faults, key=lambda f: (f.at, f.until, f.text))), hostile, heals_at)


def draw_stalls(world: World, random: Random, seconds: float, every: float) -> None:
    """Lets every gateway stall again and again, for so long each time, to the end.

    Args:
        every: seconds between two stalls of one gateway, on average.
    """

    def stall(name: str) -> None:
        process = world.groups[name].process
        if process is not None:
            world.stall(process, seconds)
        world.clock.at(world.now + random.expovariate(1 / every), stall, name)

    for name in world.groups:
        world.clock.at(random.expovariate(1 / every), stall, name)


def _rough(world: World) -> None:
    world.network.conditions = ROUGH


class _Drawing(LinkFaults[World]):
    """Draws single faults."""

    def __init__(
        self, random: Random, groups: list[str], honest: list[str], interval: float
    ) -> None:
        super().__init__(random, groups, CLOGGED)
        self.honest = honest
        self.interval = interval
        self.kinds: tuple[Callable[[float, float], Fault[World]], ...] = (
            self.restart,
            self.thawed,
            self.same_epoch,
            self.lost_disk,
            self.skew,
            self.stall,
            self.stall,
            self.loss,
            self.one_way,
            self.one_way,
            self.partition,
            self.isolate,
            self.clog,
            self.health,
        )

    # Gateways

    def restart(self, at: float, until: float) -> Fault[World]:
        name = self.random.choice(self.honest)
        return Fault(at, until, f"{name} is off", _off(name), _on(name))

    def thawed(self, at: float, until: float) -> Fault[World]:
        """A gateway is frozen, replaced, and goes on to speak in its old epoch."""
        name = self.random.choice(self.honest)
        frozen = (until - at) / 2
        old: list[Process] = []

        def begin(world: World) -> None:
            process = world.groups[name].process
            if process is not None:
                world.stall(process, frozen)
                old.append(process)
                world.start(name)

        def end(world: World) -> None:
            for process in old:
                world.stop(process)

        return Fault(at, until, f"{name} has a zombie", begin, end)

    def same_epoch(self, at: float, until: float) -> Fault[World]:
        return self._again(at, until, "restarts in the epoch that it had", lambda epoch: epoch)

    def lost_disk(self, at: float, until: float) -> Fault[World]:
        return self._again(at, until, "restarts without its disk", lambda epoch: 1)

    def _again(
        self, at: float, until: float, what: str, epoch: Callable[[int], int]
    ) -> Fault[World]:
        name = self.random.choice(self.honest)

        def begin(world: World) -> None:
            group = world.groups[name]
            if group.process is not None:
                world.stop(group.process)
            chosen = max(1, epoch(group.epoch))
            group.epoch = chosen  # that is what its disk says now
            world.start(name, chosen)

        return Fault(at, until, f"{name} {what}", begin)

    def stall(self, at: float, until: float) -> Fault[World]:
        name = self.random.choice(self.honest)
        draws = Random(self.random.random())

        def begin(world: World) -> None:
            process = world.groups[name].process
            if process is not None:
                world.stall(process, draws.uniform(0.1, 3.0))
            again = world.now + draws.uniform(0.5, 10.0)
            if again < until:
                world.clock.at(again, begin, world)

        return Fault(at, until, f"{name} stalls again and again", begin)

    def skew(self, at: float, until: float) -> Fault[World]:
        name = self.random.choice(self.honest)
        rate = self.random.uniform(0.95, 1.05)
        wall = self.random.randint(-86_400_000, 86_400_000)

        def begin(world: World) -> None:
            process = world.groups[name].process
            if process is not None:
                process.set_rate(rate, world.now)
                process.wall_skew_ms = wall

        return Fault(at, until, f"{name}'s clocks are off ({rate:.3f}, {wall} ms)", begin)

    def health(self, at: float, until: float) -> Fault[World]:
        name = self.random.choice(self.honest)
        return Fault(at, until, f"{name} is degraded", _health(name, False), _health(name, True))

    def hostile(self, name: str, at: float, until: float) -> Fault[World]:
        habits = tuple(self.random.sample(sorted(HABITS), self.random.randint(1, 3)))
        seed = self.random.random()

        def begin(world: World) -> None:
            process = world.groups[name].process
            if process is not None:
                keys = [group.name for group in world.groups.values()]
                process.guise = Guise(
                    habits, Random(seed), process, world.groups[name].signer, keys
                )

        return Fault(at, until, f"{name} is hostile: {', '.join(habits)}", begin)

    # Network

    def network(self, world: World) -> Network:
        return world.network

    def loss(self, at: float, until: float) -> Fault[World]:
        share = self.random.uniform(0.1, 0.4)

        def begin(world: World) -> None:
            world.network.conditions = Conditions(
                delay=0.02, jitter=0.3, loss=share, duplicated=0.1, overtaken=0.1
            )

        return Fault(at, until, f"{share:.0%} of all messages are lost", begin, _rough)


def _off(name: str) -> Callable[[World], None]:
    def begin(world: World) -> None:
        process = world.groups[name].process
        if process is not None:
            world.stop(process)

    return begin


def _on(name: str) -> Callable[[World], None]:
    def end(world: World) -> None:
        if world.groups[name].process is None:
            world.start(name)

    return end


def _health(name: str, well: bool) -> Callable[[World], None]:
    def change(world: World) -> None:
        process = world.groups[name].process
        if process is not None:
            process.engine.set_health(Health.OK if well else Health.DEGRADED)
            world.nudge(process)

    return change
