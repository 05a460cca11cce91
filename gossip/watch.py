"""Notices silence: of a link, of a peer, and our own; asks others before it calls a peer DOWN."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import Final, Protocol, TypeVar

from gossip.book import Book, EventLog
from gossip.config import GossipConfig
from gossip.detector import LocalHealth
from gossip.events import OwnStall
from gossip.mail import Mail
from gossip.membership import Entry, Input, PeerState

T = TypeVar("T")

BEATS: Final = 10
"""Silence is looked for at most so often in an interval of hellos."""
STALL: Final = 0.5
"""Hello intervals by which a tick is late when this process must have stood still."""


class Random(Protocol):
    """Where choices come from: `random.Random`."""

    def sample(self, population: Sequence[T], k: int) -> MutableSequence[T]:
        """`k` different ones."""


class Watch:
    """Looks at entries when their time has come, and at the clock.

    Args:
        rng: chooses who is asked.
    """

    def __init__(
        self,
        book: Book,
        mail: Mail,
        events: EventLog,
        config: GossipConfig,
        rng: Random,
        now: float,
    ) -> None:
        self._book = book
        self._entries = book.entries
        self._names = list(book.entries)
        self._mail = mail
        self._events = events
        self._config = config
        self._rng = rng
        self._down_after = config.down_after * book.pace
        self.health = LocalHealth(config, now)
        self.stalls = 0
        """Times that this process stood still."""

    def on_time(self, promised: float, now: float) -> None:
        """A tick that was due at `promised` has come: late, if this process stood still."""
        late = now - promised
        if late <= STALL * self._config.hello_interval:
            self.health.calm(now)
            return
        self.stalls += 1
        self.health.stalled(now)
        for entry in self._entries.values():
            entry.missed(late, now)
        self._events.add(OwnStall(late, self.health.score))

    def choose(self, count: int, but: str = "") -> list[str]:
        """Peers that are alive and trusted; any, if none is and it is for ourselves."""
        alive = [
            name
            for name, entry in self._entries.items()
            if entry.state is PeerState.ALIVE and entry.quarantine is None and name != but
        ]
        if not alive and not but:
            alive = self._names
        return list(self._rng.sample(alive, min(count, len(alive))))

    def scan(self, now: float) -> None:
        """Looks at the peers for which it is time."""
        soonest = float("inf")
        for entry in self._entries.values():
            if entry.due <= now:
                self._look(entry, now)
            if entry.due < soonest:
                soonest = entry.due
        self._book.look_at = max(soonest, now + self._config.hello_interval / BEATS)

    def _look(self, entry: Entry, now: float) -> None:
        """Does what the silence of a peer asks for, and says when to look again."""
        config, factor = self._config, self.health.factor
        interval = config.hello_interval
        due = float("inf")
        if self._book.full:
            ask_at = entry.direct_at + config.ask_after * interval
            if now < ask_at and entry.heard_at == entry.direct_at:
                entry.due = ask_at  # all is well, and nothing else can come before
                return
            if not entry.asked and entry.state in (PeerState.ALIVE, PeerState.SUSPECT):
                if now >= ask_at:
                    entry.asked = True
                    self._mail.to(entry.name)
                else:
                    due = ask_at
            if entry.hearing:
                cut_at = entry.direct_at + config.direct_after * interval * factor
                if now >= cut_at:
                    self._book.unheard(entry, now)
                else:
                    due = min(due, cut_at)
        if entry.heard_at is not None and entry.state is PeerState.ALIVE:
            suspect_at = entry.heard_at + entry.arrivals.suspect_after * factor
            if now >= suspect_at:
                self._events.add(entry.move(Input.SILENT, now))
                entry.probe_at = min(entry.probe_at, now)
            else:
                due = min(due, suspect_at)
        if entry.state is PeerState.SUSPECT:
            self.give_up(entry, now)
        if entry.state is PeerState.SUSPECT or (
            entry.state is PeerState.ALIVE and not entry.hearing
        ):
            if now >= entry.probe_at:
                entry.probe_at = now + interval
                self._mail.to(entry.name)
                for proxy in self.choose(config.probe_peers, but=entry.name):
                    self._mail.to(proxy).probes[entry.name] = None
            due = min(due, entry.probe_at)
        entry.due = due

    def give_up(self, entry: Entry, now: float) -> None:
        """A SUSPECT peer is DOWN when it is silent for long enough, and not for us alone."""
        after = self._down_after * self.health.factor
        if entry.heard_at is None or now - entry.heard_at < after:
            return
        if entry.witnesses or len(self._names) == 1:  # of two, there is nobody else to ask
            self._events.add(entry.move(Input.GONE, now))
