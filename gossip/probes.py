"""Questions of other groups about a peer that they do not hear: has it said anything newer?"""

from __future__ import annotations

from collections.abc import Iterator
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

    Args:
        timeout: seconds that a question stays open.
    """

    def __init__(self, timeout: float, config: GossipConfig) -> None:
        self._timeout = timeout
        self._max = config.max_probed
        self._open: dict[str, dict[str, Question]] = {}
        self._count = 0
        self.refused = 0
        """Questions for which there was no room."""
        self.next_at = float("inf")
        """When the next one may be over."""

    def __len__(self) -> int:
        return self._count

    def ask(self, asker: str, group: str, version: Version, now: float) -> bool:
        """Opens a question; False if it is open already, or there is no room.

        One that is asked again keeps its time, or an answer would never come.
        """
        askers = self._open.get(group)
        if askers is not None and asker in askers:
            return False
        if self._count >= self._max:
            self.refused += 1
            return False
        until = now + self._timeout
        self._open.setdefault(group, {})[asker] = Question(version, until)
        self._count += 1
        self.next_at = min(self.next_at, until)
        return True

    def heard(self, group: str, version: Version) -> list[str]:
        """A newer statement of a group came: who asked for it, and is answered by it."""
        askers = self._open.get(group)
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
            for group, askers in self._open.items()
            for asker, question in askers.items()
            if question.until <= now
        ]
        for asker, group, _ in late:
            self._close(group, asker)
        self.next_at = min(
            (question.until for askers in self._open.values() for question in askers.values()),
            default=float("inf"),
        )
        yield from late

    def _close(self, group: str, asker: str) -> None:
        askers = self._open[group]
        del askers[asker]
        self._count -= 1
        if not askers:
            del self._open[group]
