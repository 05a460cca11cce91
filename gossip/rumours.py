"""What was learned lately and is passed on, where groups are too many for everybody to greet everybody."""

from __future__ import annotations

from collections.abc import Mapping

from gossip.config import GossipConfig
from gossip.membership import Entry


class Rumours:
    """Statements of others by group: a newer one replaces an older one, so there are never more than groups.

    Args:
        groups: of the federation, this one included.
    """

    def __init__(self, groups: int, config: GossipConfig) -> None:
        self._times = (groups - 1).bit_length() + config.rumour_extra
        self._config = config
        self._left: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._left)

    def add(self, group: str) -> None:
        """There is a newer statement of a group."""
        self._left.pop(group, None)
        self._left[group] = self._times

    def batch(self, entries: Mapping[str, Entry], copies: int) -> list[Entry]:
        """What the hellos of a round carry, the newest first.

        Where there are more than fit, what is new spreads at once all the same; what is old is known to
        many by then, and comparing whole vectors repairs the rest.

        Args:
            copies: hellos that it goes into.
        """
        taken: list[Entry] = []
        size = 0
        for group in reversed(list(self._left)):
            entry = entries[group]
            if entry.signed is None or entry.quarantine is not None:
                del self._left[group]
                continue
            size += len(entry.signed.body)
            if size > self._config.relay_bytes_per_hello and taken:
                break
            taken.append(entry)
            self._left[group] -= copies  # where it is, or it would be new again
            if self._left[group] <= 0:
                del self._left[group]
            if len(taken) == self._config.relay_per_hello:
                break
        return taken
