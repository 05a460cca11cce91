"""Faults of a world of gateways, and plans of them drawn from its seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from chaos.sim.links import Fault, LinkFaults
from chaos.sim.mesh.hostile import HABITS, Mask
from chaos.sim.network import Conditions, Network
from federation.limits.orders import Order, Orders

if TYPE_CHECKING:
    from chaos.sim.mesh.world import MeshWorld

CALM_S: Final = 5.0
"""Seconds at the beginning in which nothing breaks."""
PER_S: Final = 2.5
"""One fault in so many seconds, on average, among eight groups; more among more."""
CLOGGED: Final = (2_000.0, 100_000.0)
"""Bytes a second of a link that is clogged, from and to."""
CLOGGED_CALM: Final = Conditions(delay=0.02, jitter=0.01)
ROUGH: Final = Conditions(delay=0.01, jitter=0.03, loss=0.02)
WORLD: Final = Conditions(delay=0.01, jitter=0.005)


@dataclass(frozen=True)
class Plan:
    """All faults of a world."""

    faults: tuple[Fault[MeshWorld], ...]
    hostile: tuple[str, ...]
    heals_at: float

    def schedule(self, world: MeshWorld) -> None:
        """Puts them into a world that has not run yet."""
        for fault in self.faults:
            world.loop.at(fault.at, None, _begin, world, fault)
            world.loop.at(fault.until, None, _end, world, fault)
        world.loop.at(self.heals_at, None, heal, world)


def _begin(world: MeshWorld, fault: Fault[MeshWorld]) -> None:
    if not world.healed:
        world.tell("fault", f"{fault.text} begins")
        fault.begin(world)


def _end(world: MeshWorld, fault: Fault[MeshWorld]) -> None:
    if not world.healed:
        world.tell("fault", f"{fault.text} ends")
        fault.end(world)


def heal(world: MeshWorld) -> None:
    """Hostile groups off, all others on, and every Mooncake well."""
    world.tell("fault", "all is healed")
    world.healed = True
    world.lines.network.conditions = WORLD
    world.lines.network.heal_all()
    world.lines.changed()
    for name, group in world.groups.items():
        if name in world.truth.hostile:
            group.kill()
            continue
        mooncake = group.mooncake
        mooncake.slow, mooncake.frozen = 1.0, False
        mooncake.pool.full = mooncake.pool.dead = False
        group.orders.change(lambda _: Orders(changed_at=world.loop.now))
        group.start()


def draw_plan(random: Random, groups: list[str], seconds: float, heal_s: float) -> Plan:
    """Everything that can go wrong, over `seconds`, of which the last `heal_s` are without faults."""
    heals_at = seconds - heal_s
    hostile = tuple(random.sample(groups, random.randint(0, len(groups) // 3)))
    drawing = _Drawing(random, groups, [name for name in groups if name not in hostile])
    faults = [
        Fault(CALM_S, heals_at, "the network is rough", _rough),
        *(drawing.hostile(name, CALM_S, heals_at) for name in hostile),
    ]
    for _ in range(max(3, int((heals_at - CALM_S) / PER_S * max(1.0, len(groups) / 8)))):
        at = random.uniform(CALM_S, heals_at - 1)
        until = min(heals_at, at + random.uniform(0.3, 12))
        faults.append(random.choice(drawing.kinds)(at, until))
    return Plan(tuple(sorted(faults, key=lambda f: (f.at, f.until, f.text))), hostile, heals_at)


def _rough(world: MeshWorld) -> None:
    world.lines.network.conditions = ROUGH


class _Drawing(LinkFaults["MeshWorld"]):
    """Draws single faults."""

    def __init__(self, random: Random, groups: list[str], honest: list[str]) -> None:
        super().__init__(random, groups, CLOGGED)
        self.honest = honest
        self.kinds: tuple[Callable[[float, float], Fault[MeshWorld]], ...] = (
            self.restart,
            self.off,
            self.lost_disk,
            self.stall,
            self.serving_killed,
            self.serving_frozen,
            self.switched,
            self.loss,
            self.one_way,
            self.partition,
            self.clog,
            self.slow,
            self.frozen,
            self.full,
            self.evicted,
            self.lost,
            self.master,
        )

    # Gateways

    def restart(self, at: float, until: float) -> Fault[MeshWorld]:
        name = self.random.choice(self.honest)

        def begin(world: MeshWorld) -> None:
            world.groups[name].kill()
            world.groups[name].start()

        return Fault(at, until, f"{name}'s gateway is killed and started", begin)

    def off(self, at: float, until: float) -> Fault[MeshWorld]:
        name = self.random.choice(self.honest)
        return Fault(
            at,
            until,
            f"{name}'s gateway is off",
            lambda world: world.groups[name].kill(),
            lambda world: world.groups[name].start(),
        )

    def lost_disk(self, at: float, until: float) -> Fault[MeshWorld]:
        name = self.random.choice(self.honest)

        def begin(world: MeshWorld) -> None:
            world.groups[name].kill(disk=True)
            world.groups[name].start()

        return Fault(at, until, f"{name}'s gateway starts without its disk", begin)

    def stall(self, at: float, until: float) -> Fault[MeshWorld]:
        name, seconds = self.random.choice(self.honest), self.random.uniform(0.1, 4.0)
        text = f"{name}'s gateway stands still"
        return Fault(at, at + seconds, text, lambda world: world.groups[name].freeze(seconds))

    def serving_killed(self, at: float, until: float) -> Fault[MeshWorld]:
        name = self.random.choice(self.honest)
        text = f"{name}'s serving process is killed"
        return Fault(at, until, text, lambda world: world.groups[name].kill_serving())

    def serving_frozen(self, at: float, until: float) -> Fault[MeshWorld]:
        name = self.random.choice(self.honest)

        def begin(world: MeshWorld) -> None:
            node = world.groups[name].serving_node
            if node is not None and node.running:
                node.stall()
                world.loop.at(until, None, node.thaw, world.loop)

        return Fault(at, until, f"{name}'s serving process stands still", begin)

    def switched(self, at: float, until: float) -> Fault[MeshWorld]:
        """By an operator: one peer, or the federation."""
        name, peer = self.random.sample(self.groups, 2)
        order = self.random.choice((Order.PAUSED, Order.DRAINED, Order.OFF))

        def begin(world: MeshWorld) -> None:
            orders, at = world.groups[name].orders, world.loop.now
            if order is Order.OFF:
                orders.change(lambda now: now.with_federation(off=True, at=at))
            else:
                orders.change(lambda now: now.with_peer(peer, order, at))

        def end(world: MeshWorld) -> None:
            world.groups[name].orders.change(lambda _: Orders(changed_at=world.loop.now))

        what = "the federation" if order is Order.OFF else peer
        return Fault(at, until, f"{name} has {what} {order.value}", begin, end)

    def hostile(self, name: str, at: float, until: float) -> Fault[MeshWorld]:
        habits = tuple(self.random.sample(sorted(HABITS), self.random.randint(1, 3)))
        seed = self.random.random()
        masks: list[Mask] = []

        def begin(world: MeshWorld) -> None:
            group = world.groups[name]
            mask = Mask(group, habits, Random(seed))
            masks.append(mask)
            group.wrap = mask.wrap
            if group.serving is not None and group.serving.server is not None:
                group.serving.server.wrap = mask.wrap
            mask.begin()

        def end(world: MeshWorld) -> None:
            for mask in masks:
                mask.end()

        return Fault(at, until, f"{name} is hostile: {', '.join(habits)}", begin, end)

    # Network

    def network(self, world: MeshWorld) -> Network:
        return world.lines.network

    def calm(self, world: MeshWorld) -> Conditions:
        return CLOGGED_CALM

    def mended(self, world: MeshWorld) -> None:
        world.lines.changed()

    def loss(self, at: float, until: float) -> Fault[MeshWorld]:
        share = self.random.uniform(0.05, 0.3)

        def begin(world: MeshWorld) -> None:
            world.lines.network.conditions = Conditions(delay=0.02, jitter=0.2, loss=share)

        return Fault(at, until, f"{share:.0%} of all packets are lost", begin, _rough)

    # Mooncake

    def slow(self, at: float, until: float) -> Fault[MeshWorld]:
        name, times = self.random.choice(self.groups), 10 ** self.random.uniform(0.5, 3.5)

        def begin(world: MeshWorld) -> None:
            world.groups[name].mooncake.slow = times

        def end(world: MeshWorld) -> None:
            world.groups[name].mooncake.slow = 1.0

        return Fault(at, until, f"{name}'s Mooncake is {times:.0f} times slower", begin, end)

    def frozen(self, at: float, until: float) -> Fault[MeshWorld]:
        name = self.random.choice(self.groups)

        def begin(world: MeshWorld) -> None:
            world.groups[name].mooncake.frozen = True

        def end(world: MeshWorld) -> None:
            world.groups[name].mooncake.frozen = False

        return Fault(at, until, f"{name}'s Mooncake does not answer", begin, end)

    def full(self, at: float, until: float) -> Fault[MeshWorld]:
        name = self.random.choice(self.groups)

        def begin(world: MeshWorld) -> None:
            world.groups[name].mooncake.pool.full = True

        def end(world: MeshWorld) -> None:
            world.groups[name].mooncake.pool.full = False

        return Fault(at, until, f"{name}'s Mooncake takes nothing more", begin, end)

    def evicted(self, at: float, until: float) -> Fault[MeshWorld]:
        name = self.random.choice(self.groups)
        text = f"{name}'s Mooncake evicts all"
        return Fault(at, until, text, lambda world: world.groups[name].mooncake.pool.evict_all())

    def lost(self, at: float, until: float) -> Fault[MeshWorld]:
        name = self.random.choice(self.groups)
        text = f"{name}'s stores are killed and started"
        return Fault(at, until, text, lambda world: world.groups[name].mooncake.pool.lose_all())

    def master(self, at: float, until: float) -> Fault[MeshWorld]:
        name = self.random.choice(self.groups)

        def begin(world: MeshWorld) -> None:
            pool = world.groups[name].mooncake.pool
            pool.lose_all()
            pool.dead = True

        def end(world: MeshWorld) -> None:
            world.groups[name].mooncake.pool.dead = False

        return Fault(at, until, f"{name}'s master is off, and begins empty", begin, end)
