"""One run of a gateway: an engine, with a clock of its own, that can stall and die."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gossip.engine import GossipEngine

if TYPE_CHECKING:
    from chaos.sim.hostile import Guise

BACKLOG_MAX: Final = 4096
"""Messages that wait for a process that stalls: beyond, its peers' calls have ended."""


@dataclass(slots=True, eq=False)
class Process:
    """A gateway that runs, from its start to its end.

    Attributes:
        group: whose it is.
        number: of all processes of the world.
        rate: how fast its monotonic clock runs.
        due: local time at which its engine wants to tick; `tick_at`: when it will, of the world.
        guise: what changes all that it says; None: it is honest.
        well: what it was made to say of its health last, where changes are followed.
    """

    group: str
    number: int
    engine: GossipEngine
    started_at: float
    local_base: float
    rate: float = 1.0
    wall_skew_ms: int = 0
    running: bool = True
    stalled: bool = False
    due: float = float("inf")
    tick_at: float = float("inf")
    guise: Guise | None = None
    well: bool = True
    backlog: deque[tuple[Callable[..., None], tuple[Any, ...]]] = field(
        default_factory=lambda: deque(maxlen=BACKLOG_MAX)
    )

    def __repr__(self) -> str:
        return f"{self.group}#{self.number}"

    def local(self, now: float) -> float:
        """What its own monotonic clock shows."""
        return self.local_base + (now - self.started_at) * self.rate

    def world(self, local: float) -> float:
        """When its own clock shows `local`."""
        return self.started_at + (local - self.local_base) / self.rate

    def wall_ms(self, now: float) -> int:
        """What its wall clock shows: people read it, nobody decides by it."""
        return max(0, WALL_MS + int(now * 1000) + self.wall_skew_ms)

    def set_rate(self, rate: float, now: float) -> None:
        """Its clock goes on from what it shows, faster or slower."""
        self.local_base, self.started_at, self.rate = self.local(now), now, rate


WALL_MS: Final = 1_700_000_000_000
"""When worlds begin."""
