"""Blocks of peers that were here once: whose they are stays known when Mooncake has them no more; sans-IO."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from local_group.journal import Entry
from local_group.sources import Source, Sources
from local_group.table import Table

_RECORD = struct.Struct("<16sIH")  # digest, size, number of the source


class _Generation:
    def __init__(self) -> None:
        self.sources = Sources()
        self.tables: dict[bytes, Table] = {}
        self.count = 0

    def get(self, fingerprint: bytes, name: int) -> Entry | None:
        table = self.tables.get(fingerprint)
        record = table.get(name) if table is not None else None
        return None if record is None else self._entry(fingerprint, name, record)

    def put(self, entry: Entry) -> bool:
        number = self.sources.take(Source(entry.origin, entry.epoch, entry.hops))
        if number is None:
            return False
        table = self.tables.setdefault(entry.fingerprint, Table(_RECORD.size))
        record = _RECORD.pack(entry.digest, entry.size, number)
        self.count += table.put(entry.name, record)
        return True

    def drop(self, fingerprint: bytes, name: int) -> None:
        table = self.tables.get(fingerprint)
        if table is not None and table.pop(name) is not None:
            self.count -= 1

    def entries(self) -> Iterator[Entry]:
        for fingerprint, table in list(self.tables.items()):
            for name, record in table.items():
                yield self._entry(fingerprint, name, record)

    def _entry(self, fingerprint: bytes, name: int, record: bytes) -> Entry:
        digest, size, number = _RECORD.unpack(record)
        source = self.sources[number]
        return Entry(fingerprint, name, size, digest, *source)


class Foreign:
    """The last `blocks_max` blocks of peers, at least, and at most twice as many: in two generations, of
    which the older one is forgotten as a whole.

    Args:
        blocks_max: blocks of one generation.
    """

    def __init__(self, blocks_max: int) -> None:
        self._blocks_max = blocks_max
        self._young, self._old = _Generation(), _Generation()

    def __len__(self) -> int:
        return self._young.count + self._old.count

    def __iter__(self) -> Iterator[Entry]:
        for generation in (self._old, self._young):
            yield from generation.entries()

    def get(self, fingerprint: bytes, name: int) -> Entry | None:
        """What is known of a block, if it is a peer's."""
        return self._young.get(fingerprint, name) or self._old.get(fingerprint, name)

    def remember(self, entry: Entry) -> None:
        """A block of a peer is here, or on its way."""
        if self._young.count >= self._blocks_max or not self._young.put(entry):
            self._young, self._old = _Generation(), self._young
            self._young.put(entry)
        self._old.drop(entry.fingerprint, entry.name)

    def forget(self, fingerprint: bytes, name: int) -> None:
        """It is not a peer's after all."""
        self._young.drop(fingerprint, name)
        self._old.drop(fingerprint, name)
