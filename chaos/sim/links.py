"""What goes wrong with the links between groups, drawn for a world of either simulator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Generic, TypeVar

from chaos.sim.network import Conditions, Network

W = TypeVar("W")


@dataclass(frozen=True)
class Fault(Generic[W]):
    """One thing that goes wrong, from `at` to `until` (seconds).

    `begin` and `end` are called with the world; both must do for a world in any state.
    """

    at: float
    until: float
    text: str
    begin: Callable[[W], None]
    end: Callable[[W], None] = field(default=lambda world: None)

    def __str__(self) -> str:
        return f"{self.at:9.3f}  {self.text}, until {self.until:.3f}"


class LinkFaults(ABC, Generic[W]):
    """Draws faults of links.

    Args:
        groups: names.
        rates: bytes a second, from and to, that a link passes which is clogged.
    """

    def __init__(self, random: Random, groups: list[str], rates: tuple[float, float]) -> None:
        self.random = random
        self.groups = groups
        self._rates = rates

    @abstractmethod
    def network(self, world: W) -> Network:
        """The links of a world."""

    def calm(self, world: W) -> Conditions:
        """How a link is that is clogged, beside that."""
        return self.network(world).conditions

    def mended(self, world: W) -> None:
        """Links pass messages again."""

    def one_way(self, at: float, until: float) -> Fault[W]:
        sender, to = self.random.sample(self.groups, 2)
        return self._cut(at, until, f"{to} hears nothing of {sender}", [(sender, to)])

    def partition(self, at: float, until: float) -> Fault[W]:
        size = self.random.randint(1, len(self.groups) // 2)
        side = sorted(self.random.sample(self.groups, size))
        rest = [name for name in self.groups if name not in side]
        links = [(x, y) for x in side for y in rest]
        both = links + [(y, x) for x, y in links]
        return self._cut(at, until, f"{', '.join(side)} are cut off", both)

    def isolate(self, at: float, until: float) -> Fault[W]:
        name = self.random.choice(self.groups)
        links = [(name, other) for other in self.groups if other != name]
        if self.random.random() < 0.5:
            return self._cut(at, until, f"nobody hears {name}", links)
        return self._cut(at, until, f"{name} hears nobody", [(y, x) for x, y in links])

    def clog(self, at: float, until: float) -> Fault[W]:
        sender, to = self.random.sample(self.groups, 2)
        rate = self.random.uniform(*self._rates)

        def begin(world: W) -> None:
            calm = self.calm(world)
            self.network(world).link(sender, to).conditions = Conditions(
                calm.delay, calm.jitter, bytes_per_second=rate, clogged_until=until
            )

        def end(world: W) -> None:
            link = self.network(world).link(sender, to)
            link.conditions, link.busy_until = None, 0.0

        return Fault(at, until, f"{sender} to {to} passes {rate:.0f} bytes a second", begin, end)

    def _cut(self, at: float, until: float, text: str, links: list[tuple[str, str]]) -> Fault[W]:
        def end(world: W) -> None:
            self.network(world).heal(links)
            self.mended(world)

        return Fault(at, until, text, lambda world: self.network(world).cut(links), end)
