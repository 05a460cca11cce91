"""Questions of other groups about a peer that they do not hear: has it said anything newer?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gossip.config import GossipConfig
from gossip.version import Version


class Question(NamedTuple):
    """One open question."""

    version: Version
    """That the asker has."""
    until: float
    """Monotonic seconds; without news by then, the answer is that there are none."""


class Probes:
    """What is open here for others. At most one question an asker and group, and `max_probed` in all.

    Of these, each asker has its share: where there is no room, one that has fewer questions open takes
    the place of the newest question of the one that has most. So one that asks about everybody cannot
    keep another from the witness that it needs.

    Args:
        timeout: seconds that a question stays open.

    Attributes:
        open: by group, then by asker.
    """

    def __init__(self, timeout: float, config: GossipConfig) -> None:
        self._timeout = timeout
        self._max = config.max_probed
        self.open: dict[str, dict[str, Question]] = {}
        self._asked: dict[str, dict[str, None]] = {}  # by asker, oldest first
        self._count = 0
        self.refused = 0
        """Questions for which there was no room, or not for long."""
        self.next_at = float("inf")
        """When the next one may be over."""

    def __len__(self) -> int:
        return self._count

    def ask(self, asker: str, group: str, version: Version, now: float) -> bool:
        """Opens a question; False if it is open already, or there is no room.

        One that is asked again keeps its time, or an answer would never come.
        """
        asked: Mapping[str, None] = self._asked.get(asker, {})
        if group in asked:
            return False
        if self._count >= self._max:
            self.refused += 1  # this one, or one that makes room for it
            if not self._make_room(len(asked)):
                return False
        until = now + self._timeout
        self.open.setdefault(group, {})[asker] = Question(version, until)
        self._asked.setdefault(asker, {})[group] = None
        self._count += 1
        self.next_at = min(self.next_at, until)
        return True

    def heard(self, group: str, version: Version) -> list[str]:
        """A newer statement of a group came: who asked for it, and is answered by it."""
        askers = self.open.get(group)
        if askers is None:
            return []
        answered = [asker for asker, question in askers.items() if version > question.version]
        for asker in answered:
            self._close(group, asker)
        return answered

    def over(self, now: float) -> Iterator[tuple[str, str, Version]]:
        """Questions without news whose time is over: asker, group, and the version that was asked for."""
        if now < self.next_at:
            return
        late = [
            (asker, group, question.version)
            for group, askers in self.open.items()
            for asker, question in askers.items()
            if question.until <= now
        ]
        for asker, group, _ in late:
            self._close(group, asker)
        self.next_at = min(
            (question.until for askers in self.open.values() for question in askers.values()),
            default=float("inf"),
        )
        yield from late

    def _make_room(self, asked: int) -> bool:
        """Takes a question from who has most, for one who has `asked` and no more."""
        if asked * len(self._asked) >= self._max:
            return False  # it has its share, so a flood of its questions costs nothing
        greediest = max(self._asked, key=lambda asker: len(self._asked[asker]))
        if len(self._asked[greediest]) <= asked + 1:
            return False
        self._close(next(reversed(self._asked[greediest])), greediest)
        return True

    def _close(self, group: str, asker: str) -> None:
        askers, asked = self.open[group], self._asked[asker]
        del askers[asker], asked[group]
        self._count -= 1
        if not askers:
            del self.open[group]
        if not asked:
            del self._asked[asker]
