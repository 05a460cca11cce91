"""Entries of the journal by the name of their block, the newest of each: 30 bytes a block; sans-IO."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from local_group.journal import Entry
from local_group.names import NAME_MAX, Names, among
from local_group.sources import Source, Sources
from local_group.table import Table

BLOCK_BYTES_MAX = (1 << 32) - 1
"""Of a block: a record has 32 bits for it."""
_RECORD = struct.Struct("<16sIH")  # digest, size, number of the source


class Entries:
    """What is known of blocks."""

    def __init__(self) -> None:
        self._sources = Sources()
        self._tables: dict[bytes, Table] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Entry]:
        """What comes and goes meanwhile may be among them or not."""
        for fingerprint, table in list(self._tables.items()):
            for name, record in table.run_by_run():
                yield self._entry(fingerprint, name, record)

    def get(self, fingerprint: bytes, name: int) -> Entry | None:
        """Of a block; None if there is none."""
        table = self._tables.get(fingerprint)
        record = table.get(name) if table is not None else None
        return None if record is None else self._entry(fingerprint, name, record)

    def put(self, entry: Entry) -> bool:
        """In the place of the one there was of its block. False: there are too many sources, or the block is
        larger than any can be; then nothing has changed."""
        if entry.size > BLOCK_BYTES_MAX:
            return False
        number = self._sources.take(Source(entry.origin, entry.epoch, entry.hops))
        if number is None:
            return False
        table = self._tables.get(entry.fingerprint)
        if table is None:
            table = self._tables[entry.fingerprint] = Table(_RECORD.size)
        record = _RECORD.pack(entry.digest, entry.size, number)
        self._count += table.put(entry.name, record)
        return True

    def drop(self, fingerprint: bytes, name: int) -> None:
        """Forgets that of a block, if there is one."""
        table = self._tables.get(fingerprint)
        if table is not None and table.pop(name) is not None:
            self._count -= 1

    def keep(self, listed: Callable[[bytes], Names]) -> None:
        """Forgets all but what is listed.

        Args:
            listed: the names of a namespace that are kept, in ascending order.
        """
        for fingerprint, table in self._tables.items():
            names, _ = table.between(0, NAME_MAX, len(table))
            for name in names[~among(names, listed(fingerprint))].tolist():
                self.drop(fingerprint, name)

    def _entry(self, fingerprint: bytes, name: int, record: bytes) -> Entry:
        digest, size, number = _RECORD.unpack(record)
        return Entry(fingerprint, name, size, digest if size else b"", *self._sources[number])
