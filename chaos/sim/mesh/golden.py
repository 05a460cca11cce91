"""Worlds of whole gateways as text: the commands of a script whose first is `mesh`.

What is said of them is coarse (who is heard, whose breaker is open, where blocks came from): so it is the
same for as long as gateways do what they should, whatever they take for it.

    > mesh groups=2
    > run 20
    > freeze g0 4
    > run 3
    > states
    > reads
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from typing import Final

from chaos.sim.invariants import Broken
from chaos.sim.mesh.faults import WORLD
from chaos.sim.mesh.group import SimGateway, SimGroup
from chaos.sim.mesh.run import made
from chaos.sim.mesh.world import MeshWorld
from federation.limits.orders import Order, Orders

SECONDS_MAX: Final = 600.0
GROUPS_MAX: Final = 8
TIERS: Final = {"local": "of their own Mooncake", "peer": "of peers", "computed": "computed"}
UNANSWERED: Final = "calls without an answer"


class MeshPlayer:
    """Plays one script; `close` afterwards."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._world: MeshWorld | None = None
        self._read: dict[str, int] = {}
        self.commands: dict[str, Callable[..., list[str] | None]] = {
            "mesh": self._make,
            "run": self._run,
            "kill": lambda name: self._group(name).kill(),
            "start": lambda name: self._group(name).start(),
            "freeze": lambda name, seconds: self._group(name).freeze(float(seconds)),
            "kill-serving": lambda name: self._group(name).kill_serving(),
            "cut": self._cut,
            "heal": self._heal,
            "mooncake": self._mooncake,
            "order": self._order,
            "states": self._states,
            "reads": self._reads,
        }

    def do(self, words: list[str]) -> list[str]:
        """Carries out a command; what came of it.

        Raises:
            ValueError: it cannot be.
        """
        command, *arguments = words
        return self.commands[command](*arguments) or []

    def close(self) -> None:
        """Ends the world."""
        self._stack.close()

    @property
    def world(self) -> MeshWorld:
        if self._world is None:
            raise ValueError("a script of gateways begins with `mesh`")
        return self._world

    def _group(self, name: str) -> SimGroup:
        return self.world.groups[name]

    def _make(self, *options: str) -> None:
        if self._world is not None:
            raise ValueError("there is a world already")
        chosen = {"groups": "2", "seed": "1"}
        for option in options:
            key, _, value = option.partition("=")
            if key not in chosen:
                raise ValueError(f"no option {key!r}")
            chosen[key] = value
        groups = int(chosen["groups"])
        if not 2 <= groups <= GROUPS_MAX:
            raise ValueError(f"groups must be in 2..{GROUPS_MAX}")
        self._world = self._stack.enter_context(made(groups, int(chosen["seed"])))
        self._read = asdict(self._world.truth.tally)

    def _run(self, seconds: str) -> list[str]:
        number = float(seconds)
        if not 0 < number <= SECONDS_MAX:
            raise ValueError(f"seconds must be above 0 and at most {SECONDS_MAX:g}")
        try:
            self.world.run(self.world.loop.now + number)
        except Broken as broken:
            return [f"  BROKEN: {broken}"]
        return []

    def _cut(self, sender: str, to: str) -> None:
        self.world.lines.network.cut([(self._group(sender).name, self._group(to).name)])

    def _heal(self, sender: str, to: str) -> None:
        self.world.lines.network.heal([(self._group(sender).name, self._group(to).name)])
        self.world.lines.network.conditions = WORLD
        self.world.lines.changed()

    def _mooncake(self, name: str, how: str) -> None:
        """`frozen`, `full`, `evicted`, `lost` (its stores begin anew), or `well`."""
        mooncake = self._group(name).mooncake
        if how == "evicted":
            mooncake.pool.evict_all()
        elif how == "lost":
            mooncake.pool.lose_all()
        elif how in ("frozen", "full", "well"):
            mooncake.frozen = how == "frozen"
            mooncake.pool.full = how == "full"
        else:
            raise ValueError(f"no such Mooncake: {how}")

    def _order(self, name: str, order: str, peer: str = "") -> None:
        """`paused` or `drained`, of a peer; `off` of all; or `on`, of all there is."""
        orders, at = self._group(name).orders, self.world.loop.now
        if order == "on":
            orders.change(lambda _: Orders(changed_at=at))
        elif order == "off":
            orders.change(lambda held: held.with_federation(off=True, at=at))
        else:
            other = self._group(peer).name
            orders.change(lambda held: held.with_peer(other, Order(order), at))

    def _states(self) -> list[str]:
        """What each gateway knows of each other."""
        lines = []
        for group in self.world.groups.values():
            gateway = group.gateway
            if gateway is None:
                lines.append(f"  {group.name} is off")
            elif gateway.node.stalled:
                lines.append(f"  {group.name} stands still")
            else:
                lines.append(f"  {group.name}")
                lines += gateway.node.run(_known, gateway)
        return lines

    def _reads(self) -> list[str]:
        """Where blocks that were read since the last time came from."""
        now = asdict(self.world.truth.tally)
        grown = {name for name in now if now[name] > self._read.get(name, 0)}
        self._read = now
        said = [words for tier, words in TIERS.items() if tier in grown]
        said += [UNANSWERED] * ("unanswered" in grown)
        return [f"  {', '.join(said) or 'nothing was read'}"]


def _known(gateway: SimGateway) -> list[str]:
    now, lines = time.monotonic(), []
    held: dict[str, int] = {}
    for holder, _, view in gateway.peers.sessions.subscriptions.views():
        held[holder] = held.get(holder, 0) + len(view)
    for peer in gateway.peers.gossip.view(now).peers:
        breaker = gateway.peers.sessions.links[peer.name].breaker_state(now)
        blocks = "blocks" if held.get(peer.name) else "no blocks"
        words = [peer.name, peer.state.value, f"breaker {breaker}", f"{blocks} in view"]
        order = gateway.switchboard.word(peer.name)
        if order != Order.ON.value:
            words.append(order)
        lines.append(f"    {', '.join(words)}")
    return lines
