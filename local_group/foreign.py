"""Blocks of peers that were here once: whose they are stays known when Mooncake has them no more; sans-IO."""

from __future__ import annotations

from collections.abc import Iterator

from local_group.entries import Entries
from local_group.journal import Entry


class Foreign:
    """The last `blocks_max` blocks of peers, at least, and at most twice as many: in two generations, of
    which the older one is forgotten as a whole.

    Args:
        blocks_max: blocks of one generation.
    """

    def __init__(self, blocks_max: int) -> None:
        self._blocks_max = blocks_max
        self._young, self._old = Entries(), Entries()

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def __iter__(self) -> Iterator[Entry]:
        for generation in (self._old, self._young):
            yield from generation

    def get(self, fingerprint: bytes, name: int) -> Entry | None:
        """What is known of a block, if it is a peer's."""
        return self._young.get(fingerprint, name) or self._old.get(fingerprint, name)

    def remember(self, entry: Entry) -> None:
        """A block of a peer is here, or on its way."""
        if len(self._young) >= self._blocks_max or not self._young.put(entry):
            self._young, self._old = Entries(), self._young
            self._young.put(entry)
        self._old.drop(entry.fingerprint, entry.name)

    def forget(self, fingerprint: bytes, name: int) -> None:
        """It is not a peer's after all."""
        self._young.drop(fingerprint, name)
        self._old.drop(fingerprint, name)
