"""What others have of our own statements, where it is later than what we made: a lost epoch, or a twin."""

from __future__ import annotations

from gossip.events import OwnTwin, OwnVersionAhead
from gossip.membership import NO_VERSION
from gossip.version import Version


class OwnPast:
    """Statements of this group that this process has not made.

    A group that lost its disk speaks below its own past, and nobody believes it; what peers still have
    of it, signed by its own key, says how far it had come. It may speak above that if nobody else does:
    an operator may have started it twice, and two processes that outbid each other never end. So a past
    that goes on while we watch is not ours to continue.

    Args:
        wait: seconds for which it must not have gone on.
    """

    def __init__(self, wait: float) -> None:
        self._wait = wait
        self._claimed = NO_VERSION
        self._peer = ""
        self._proven = NO_VERSION
        self._first_at = 0.0
        self._went_on_at = 0.0
        self._seen_at = float("-inf")
        self._twin = False
        self.due_at = float("inf")
        """When `due` may have something; infinite without a proof."""

    def claim(self, peer: str, version: Version) -> OwnVersionAhead | None:
        """A peer says that it has this of ours; the event, if that is news."""
        if version <= max(self._claimed, self._proven):
            return None
        self._claimed = version
        return OwnVersionAhead(peer, version)

    def prove(self, peer: str, version: Version, now: float, *, contested: bool) -> OwnTwin | None:
        """There is this statement, signed by our key; the event, if somebody else must have made it now.

        Args:
            contested: of the epoch that we speak in. Who speaks there too will find the same, and the
                higher of the two new epochs ends it.
        """
        first = not self._proven.epoch
        if first:
            self._first_at = now
        self._seen_at = now
        went_on = version > self._proven
        if went_on:
            self._peer, self._proven = peer, version
            self._went_on_at = now
        if contested:
            self._went_on_at = now - self._wait
        self.due_at = self._went_on_at + self._wait
        if went_on and not contested and now - self._first_at >= self._wait and not self._twin:
            self._twin = True
            return OwnTwin(peer, version)
        return None

    def due(self, now: float) -> OwnVersionAhead | None:
        """Above what to speak, if that is sure by now; again after each `wait`, until we do."""
        if now < self.due_at:
            return None
        self._went_on_at = now
        self.due_at = now + self._wait
        if now - self._seen_at > self._wait:
            return None  # nobody has said so lately
        return OwnVersionAhead(self._peer, self._proven, proven=True)
