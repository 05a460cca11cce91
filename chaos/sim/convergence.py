"""How long it takes until what one group says is known everywhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from chaos.sim.process import Process
from chaos.sim.world import Message, World
from gossip.version import Version


@dataclass(slots=True)
class Update:
    """A statement that is followed on its way.

    Attributes:
        made_at: seconds; when there was something to say.
        missing: groups that do not have it, or a newer one.
        known_at: seconds; when the last of them got it.
    """

    group: str
    version: Version
    made_at: float
    missing: set[str]
    known_at: float | None = None


@dataclass
class Convergence:
    """Follows updates; an `Observer` of a world calls `advanced`."""

    updates: list[Update] = field(default_factory=list)
    _open: dict[str, list[Update]] = field(default_factory=dict)

    def follow(self, world: World, group: str, since: float) -> None:
        """From now on, the newest statement of the group.

        Args:
            since: seconds; when what it says has happened. Who has heard it by now counts as if now.
        """
        process = world.groups[group].process
        if process is None:
            return
        version = process.engine.version
        missing = {
            other.name
            for other in world.groups.values()
            if other.process is not None
            and other.name != group
            and other.process.engine.version_of(group) < version
        }
        update = Update(group, version, since, missing)
        self.updates.append(update)
        if missing:
            self._open.setdefault(group, []).append(update)
        else:
            update.known_at = world.now

    def advanced(self, process: Process, group: str, version: Version, now: float) -> None:
        """A process has learned a newer statement of a group."""
        waiting = self._open.get(group)
        if not waiting:
            return
        for update in list(waiting):
            if version >= update.version:
                update.missing.discard(process.group)
                if not update.missing:
                    update.known_at = now
                    waiting.remove(update)
        if not waiting:
            del self._open[group]

    @property
    def followed(self) -> Iterable[str]:
        """Groups of which a statement is under way."""
        return self._open

    def rounds(self, interval: float) -> list[float]:
        """Hello intervals that each update took, sorted; infinite for one that has not arrived."""
        return sorted(
            float("inf") if u.known_at is None else (u.known_at - u.made_at) / interval
            for u in self.updates
        )


class Watcher:
    """An `Observer` that follows updates alone, for worlds that are too large to check each step."""

    def __init__(self, convergence: Convergence, world: Callable[[], World]) -> None:
        self._convergence = convergence
        self._world = world

    def signed(self, group: str, data: bytes) -> None:
        pass

    def event(self, process: Process, event: object) -> None:
        pass

    def stepped(self, process: Process, sender: str, message: Message | None) -> None:
        if message is None:
            return
        now = self._world().now
        for group in list(self._convergence.followed):
            if group != process.group:
                version = process.engine.version_of(group)
                self._convergence.advanced(process, group, version, now)


def percentile(values: list[float], share: float) -> float:
    """Of sorted values: the smallest one that at least `share` of them do not exceed."""
    if not values:
        return float("nan")
    return values[max(0, math.ceil(share * len(values)) - 1)]
