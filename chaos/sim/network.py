"""What becomes of a message on its way: nothing here sends, it says when something arrives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Final

QUEUE_BYTES: Final = 256 * 1024
"""Bytes that wait on a clogged link; what does not fit is lost."""
LATE_SECONDS: Final = 3.0
"""How much later at most a message comes that is overtaken by others."""


@dataclass(slots=True)
class Conditions:
    """How a link behaves. Shares are of messages, each drawn for itself."""

    delay: float = 0.02
    """Seconds that a message takes at least."""
    jitter: float = 0.0
    """Seconds that it takes longer at most."""
    loss: float = 0.0
    duplicated: float = 0.0
    overtaken: float = 0.0
    """Share of messages that come up to `LATE_SECONDS` late."""
    bytes_per_second: float = 0.0
    """A clogged link passes so much on, and the rest waits in front of it; 0: no limit."""
    clogged_until: float = inf
    """When it is clogged no more: all that waits then passes at once."""


@dataclass(slots=True)
class Link:
    """One direction between two groups."""

    cut: int = 0
    """How many faults cut it just now: each heals what it has cut, and no more."""
    conditions: Conditions | None = None
    """Its own; None: those of the network."""
    busy_until: float = 0.0
    """When the last byte that waits in front of it has passed."""


@dataclass(slots=True)
class Traffic:
    """What was handed to the network so far."""

    messages: int = 0
    bytes: int = 0
    lost: int = 0
    queued_bytes_max: int = 0


@dataclass
class Network:
    """Links between all groups.

    Args:
        random: of this world; nothing else is drawn from.
        conditions: of each link that has none of its own.
    """

    random: Random
    conditions: Conditions = field(default_factory=Conditions)
    traffic: Traffic = field(default_factory=Traffic)
    _links: dict[tuple[str, str], Link] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._draw = self.random.random

    def link(self, sender: str, to: str) -> Link:
        """The link, to be changed."""
        return self._links.setdefault((sender, to), Link())

    def cut(self, links: Iterable[tuple[str, str]]) -> None:
        """Nothing passes until `heal` of the same links, as often as they were cut."""
        for sender, to in links:
            self.link(sender, to).cut += 1

    def heal(self, links: Iterable[tuple[str, str]]) -> None:
        """Ends one `cut`; what waited in front of a clogged link is gone with its connection."""
        for sender, to in links:
            link = self.link(sender, to)
            link.cut = max(0, link.cut - 1)
            link.busy_until = 0.0

    def heal_all(self) -> None:
        """Ends all cuts and clogs."""
        self._links.clear()

    def send(self, sender: str, to: str, size: int, now: float) -> tuple[float, ...]:
        """When a message arrives: never, once, or twice.

        Args:
            size: bytes.
            now: seconds, of the world.
        """
        traffic = self.traffic
        traffic.messages += 1
        traffic.bytes += size
        link = self._links.get((sender, to))
        conditions = self.conditions
        if link is not None:
            if link.cut:
                traffic.lost += 1
                return ()
            conditions = link.conditions or conditions
        random = self._draw
        if conditions.loss and random() < conditions.loss:
            traffic.lost += 1
            return ()
        at = now + conditions.delay
        if conditions.jitter:
            at += conditions.jitter * random()
        if conditions.bytes_per_second:
            waits = self._clogged(sender, to, size, now, conditions)
            if waits is None:
                traffic.lost += 1
                return ()
            at += waits
        if conditions.overtaken and random() < conditions.overtaken:
            at += LATE_SECONDS * random()
        if conditions.duplicated and random() < conditions.duplicated:
            return at, at + LATE_SECONDS * random()
        return (at,)

    def _clogged(
        self, sender: str, to: str, size: int, now: float, clog: Conditions
    ) -> float | None:
        """Seconds until the message has passed; None if it does not fit into the queue."""
        link, rate = self.link(sender, to), clog.bytes_per_second
        waits = max(0.0, link.busy_until - now)
        queued = int(waits * rate) + size
        if queued > QUEUE_BYTES:
            return None
        self.traffic.queued_bytes_max = max(self.traffic.queued_bytes_max, queued)
        link.busy_until = now + waits + size / rate
        return min(link.busy_until, clog.clogged_until) - now
