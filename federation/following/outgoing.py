"""What engines at a follower have written and the leader does not know yet; sans-IO."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from federation.counters import counters
from local_group.journal import Entry

OUTGOING_MAX = 65_536
"""Blocks that wait to be told (20 MB); the oldest go first. Nothing is lost by it:
what the leader lacks is told again after each of its snapshots."""
ENTRY_BYTES = 64
"""Bytes of a block in a report; measured 43 at most."""


class Outgoing:
    """Blocks that wait for the leader's answer, each once, in the order in which they were written."""

    def __init__(self, blocks_max: int = OUTGOING_MAX) -> None:
        self._blocks_max = blocks_max
        self._waiting: OrderedDict[tuple[bytes, int], Entry] = OrderedDict()
        self.dropped = 0
        """Blocks for which there was no room."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, block: tuple[bytes, int]) -> bool:
        return block in self._waiting

    def add(self, entries: Iterable[Entry]) -> None:
        """These are to be told; the last word on a block holds."""
        for entry in entries:
            self._waiting[(entry.fingerprint, entry.name)] = entry
            if len(self._waiting) > self._blocks_max:
                self._waiting.popitem(last=False)
                self.dropped += 1
                counters.add("moonmesh_forward_dropped_total")

    def batch(self, blocks_max: int, bytes_max: int) -> list[Entry]:
        """The oldest that fit one report, all of one namespace; they wait on until `told`."""
        chosen: list[Entry] = []
        size = ENTRY_BYTES  # of the message itself
        for entry in self._waiting.values():
            if chosen and entry.fingerprint != chosen[0].fingerprint:
                break
            size += ENTRY_BYTES
            if chosen and (size > bytes_max or len(chosen) == blocks_max):
                break
            chosen.append(entry)
        return chosen

    def told(self, entries: Iterable[Entry]) -> None:
        """The leader has answered. What was written anew meanwhile waits on."""
        for entry in entries:
            name = (entry.fingerprint, entry.name)
            if self._waiting.get(name) is entry:
                del self._waiting[name]

    def clear(self) -> None:
        """There is nobody to tell: this gateway leads."""
        self._waiting.clear()
