"""What this group holds, per namespace: fed by writers' reports, corrected by listings; sans-IO.

A listing is the master's list of keys; it says that a block is here, not what it should contain. What it
should contain is known once somebody attests it: the engine that wrote it (with its digest), or the
gateway that pulled it (with its origin). A block that is known from listings alone is held here without a
digest, and offered to peers only in namespaces that allow such blocks.
"""

from __future__ import annotations

import math
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np

from local_group.entries import BLOCK_BYTES_MAX
from local_group.names import NAME_MAX, Names, among, name_of
from local_group.sources import Source, Sources
from local_group.table import Table

Block: TypeAlias = str | int
"""A block of a namespace: its key, or its name."""
OWN = ""
"""Origin of a block that an engine of this group computed."""
UNKNOWN = "?"
"""Origin of a block that was found here, and that may have come from a peer."""
CHANGED = "!"
"""Origin of a block whose bytes were replaced after they were written (an upsert)."""
HOPS_MAX = 0xFFFF
"""More than any hop limit: of blocks that are offered to nobody."""
GONE_MAX = 65_536
"""Blocks that may go while a listing is under way; if more do, it finds nothing new."""
RIVALS_MAX = 65_536
"""Blocks of which two digests are known; of one more, the first of them is withdrawn."""
COMPARED_AT_ONCE = 8192
"""Blocks of a listing that are compared with what is held in one go: a ms."""
WITHDRAWN_AT_ONCE = 256
"""Blocks that a listing lacks and that are withdrawn in one go: a ms or two."""

_RECORD = struct.Struct("<16sIHI")  # digest, size, number of the source, since
_TICKS = 16_384
"""Of `since`, in a second. A record has the last 32 bits: three days. An older block seems younger by
a multiple of that, and so may outlive one listing, once."""


class Held(NamedTuple):
    """One block."""

    size: int
    """Bytes; 0 where it is unattested: unknown."""
    digest: bytes
    """xxh3-128 made by its writer; empty where it is unattested."""
    origin: str
    """The group it came from; `OWN` if an engine here wrote it, `UNKNOWN`, `CHANGED`."""
    epoch: int
    """Epoch of that group when it came; 0 for our own."""
    hops: int
    """Group borders it has crossed; 0 for our own."""
    since: float
    """When it was attested, or found (monotonic seconds): a listing that began earlier says nothing
    of it."""
    rival: bytes | None = None
    """Another digest that was reported for it; reading the block tells which of the two it is."""

    @property
    def attested(self) -> bool:
        """Whether it is known what it should contain."""
        return bool(self.digest)


class Change(NamedTuple):
    """A block came or went."""

    fingerprint: bytes
    name: int
    added: bool
    attested: bool = True
    """Whether it is known what it should contain; of one that went, whether it was."""


class Holdings:
    """Blocks of one group, each in 40 bytes.

    Keys are not kept: methods take a key or a name (see `local_group.names`), and tell names.

    Args:
        blocks_max: entries kept over all namespaces; further reports are counted and dropped.
        hop_limit: a block that crossed this many borders is not offered onward.
        unattested_ok: whether unattested blocks of a namespace (by its fingerprint) are offered.
        on_change: told of each block that peers may have, when it comes and when it goes.
        on_amended: told of one whose size or digest has been put in doubt since it came.
        on_hidden: told of each block that peers may not have, when it comes and when it goes.
    """

    def __init__(
        self,
        *,
        blocks_max: int,
        hop_limit: int,
        on_change: Callable[[Change], None],
        on_amended: Callable[[Change], None] = lambda _: None,
        on_hidden: Callable[[Change], None] = lambda _: None,
        unattested_ok: Callable[[bytes], bool] = lambda _: False,
    ) -> None:
        self._blocks_max = blocks_max
        self._unattested_ok = unattested_ok
        self._hop_limit = hop_limit
        self._on_change = on_change
        self._on_amended = on_amended
        self._on_hidden = on_hidden
        self._namespaces: dict[bytes, Table] = {}
        self._sources = Sources()
        self._rivals: OrderedDict[tuple[bytes, int], bytes] = OrderedDict()
        self._latest = 0  # ticks
        self._count = 0
        self._unattested = 0
        self._gone: set[tuple[bytes, int]] | None = None
        self.written = 0
        """Bytes of all blocks that have come; of those without a digest nobody knows."""
        self.refused = 0
        """Blocks dropped because `blocks_max` was reached."""
        self.conflicts = 0
        """Reports whose digest was not the one known."""
        self.changed = 0
        """Blocks whose bytes turned out to be others than were written."""

    def __len__(self) -> int:
        return self._count

    @property
    def unattested(self) -> int:
        """Blocks that are known from listings alone."""
        return self._unattested

    @property
    def nbytes(self) -> int:
        """Bytes of memory, about."""
        return sum(table.nbytes for table in self._namespaces.values())

    def get(self, fingerprint: bytes, block: Block) -> Held | None:
        """What is known of a block, if it is held."""
        table = self._namespaces.get(fingerprint)
        if table is None:
            return None
        name = _name(fingerprint, block)
        record = table.get(name)
        return None if record is None else self._held(fingerprint, name, record)

    def exportable(self, fingerprint: bytes, block: Block) -> Held | None:
        """The block, if peers may have it from us."""
        held = self.get(fingerprint, block)
        return held if held is not None and self._offered(fingerprint, held) else None

    def namespaces(self) -> Iterator[tuple[bytes, int]]:
        """Each namespace with the number of blocks held in it."""
        for fingerprint, table in self._namespaces.items():
            yield fingerprint, len(table)

    def origins(self) -> set[str]:
        """Where what is held came from."""
        return self._sources.origins()

    def after(self, fingerprint: bytes, name: int, count: int) -> list[int]:
        """Up to `count` names held in a namespace, above `name` (-1 for all), in ascending order."""
        table = self._namespaces.get(fingerprint)
        return table.after(name, count) if table is not None else []

    def last(self, fingerprint: bytes) -> int | None:
        """The highest name in a namespace."""
        table = self._namespaces.get(fingerprint)
        return table.last() if table is not None else None

    def items(self) -> Iterator[tuple[bytes, int, Held]]:
        """Every block, by its name. What comes and goes meanwhile may be among them or not."""
        for fingerprint, table in list(self._namespaces.items()):
            for name, record in table.items():
                yield fingerprint, name, self._held(fingerprint, name, record)

    def report(
        self, fingerprint: bytes, block: Block, size: int, digest: bytes, now: float
    ) -> bool:
        """An engine of this group says that it has put a block. True if it attests one that was not.

        Mooncake keeps the FIRST value of a key, and puts a block anew once it was evicted. So a second
        report with another digest leaves open which of the two is stored: both are kept, and whoever
        reads the block to send it finds out. A report of a block that came from a peer is an engine
        writing back what it was given: its origin stands. A block whose bytes were replaced stays one.
        """
        name = _name(fingerprint, block)
        known = self.get(fingerprint, name)
        if known is None:
            return self.add(fingerprint, name, Held(size, digest, OWN, 0, 0, now))
        if known.origin == CHANGED:
            return False
        if not known.attested:
            return self._replace(fingerprint, name, known, Held(size, digest, OWN, 0, 0, now))
        if known.digest != digest:
            self.conflicts += 1
            doubted = known._replace(rival=digest, size=max(size, known.size))
            self._replace(fingerprint, name, known, doubted)
        return False

    def admit(
        self,
        fingerprint: bytes,
        block: Block,
        size: int,
        digest: bytes,
        origin: str,
        epoch: int,
        hops: int,
        now: float,
    ) -> bool:
        """A block pulled from `origin` is now in the local Mooncake. True if that is news."""
        name = _name(fingerprint, block)
        if self.get(fingerprint, name) is not None:
            return False
        return self.add(fingerprint, name, Held(size, digest, origin, epoch, hops, now))

    def find(self, fingerprint: bytes, block: Block, origin: str, now: float) -> bool:
        """A listing has a block that nobody attested. True if that is news.

        Args:
            origin: `OWN`, or `UNKNOWN` where it may be a peer's: then it is offered to nobody.
            now: when the listing began.
        """
        name = _name(fingerprint, block)
        if self.get(fingerprint, name) is not None:
            return False
        return self.add(fingerprint, name, _unattested(origin, now))

    def withhold(self, fingerprint: bytes, block: Block, now: float) -> bool:
        """The bytes of a block were replaced: it is offered to nobody until a listing lacks it.

        False if that was known, or the block is not held.
        """
        name = _name(fingerprint, block)
        known = self.get(fingerprint, name)
        if known is None or known.origin == CHANGED:
            return False
        self.changed += 1
        return self._replace(fingerprint, name, known, _unattested(CHANGED, now))

    def restore(self, fingerprint: bytes, block: Block, held: Held) -> bool:
        """Takes what is known of a block in the place of what was; False if there is no room."""
        name = _name(fingerprint, block)
        self.withdraw(fingerprint, name)
        return self.add(fingerprint, name, held)

    def add(self, fingerprint: bytes, name: int, held: Held) -> bool:
        """As `restore`, of a block that is not held."""
        if self._count >= self._blocks_max or not self._put(fingerprint, name, held):
            self.refused += 1
            return False
        self._count += 1
        self.written += held.size
        self._unattested += not held.attested
        self._tell(held, Change(fingerprint, name, True, held.attested))
        return True

    def withdraw(self, fingerprint: bytes, block: Block) -> bool:
        """Forgets a block that is gone, or of which it is no longer known what it holds."""
        table = self._namespaces.get(fingerprint)
        if table is None:
            return False
        name = _name(fingerprint, block)
        record = table.pop(name)
        if record is None:
            return False
        held = self._held(fingerprint, name, record)
        if not len(table):
            del self._namespaces[fingerprint]
        self._sources.give(_RECORD.unpack(record)[2])
        self._rivals.pop((fingerprint, name), None)
        self._count -= 1
        self._unattested -= not held.attested
        if self._gone is not None and len(self._gone) <= GONE_MAX:
            self._gone.add((fingerprint, name))
        self._tell(held, Change(fingerprint, name, False, held.attested))
        return True

    # Listings

    def listing_begins(self) -> None:
        """From now on it is remembered which blocks go: a listing made meanwhile may still have them."""
        self._gone = set()

    def listing_ends(self) -> None:
        """What the listing has is known by now."""
        self._gone = None

    def findable(self, fingerprint: bytes, block: Block) -> bool:
        """Whether a listing that has this block can be believed: it has not gone since that began."""
        gone = self._gone
        if gone is None:
            return True
        return len(gone) <= GONE_MAX and (fingerprint, _name(fingerprint, block)) not in gone

    def compare(
        self, fingerprint: bytes, listed: Names, began_at: float
    ) -> Iterator[tuple[int, Names]]:
        """Withdraws what a complete listing no longer has; a slice with each step.

        Args:
            listed: names that it has of the namespace, in ascending order.
            began_at: when it began; what was attested or found after it survives.

        Yields:
            How many blocks were withdrawn, and the names that are listed and not held.
        """
        first = 0
        while first <= NAME_MAX:
            at = int(np.searchsorted(listed, np.uint64(first)))
            last = NAME_MAX
            if at + COMPARED_AT_ONCE < len(listed):
                last = int(listed[at + COMPARED_AT_ONCE])
            table = self._namespaces.get(fingerprint)
            held = np.empty(0, dtype=np.uint64)
            if table is not None:
                held, last = table.between(first, last, COMPARED_AT_ONCE)
            there = listed[at : int(np.searchsorted(listed, np.uint64(last), side="right"))]
            lacking = held[~among(held, there)].tolist()
            for start in range(0, len(lacking), WITHDRAWN_AT_ONCE):
                gone = 0
                for name in lacking[start : start + WITHDRAWN_AT_ONCE]:
                    known = self.get(fingerprint, name)
                    if known is not None and known.since < began_at:
                        gone += self.withdraw(fingerprint, name)
                yield gone, there[:0]
            yield 0, there[~among(there, held)]
            first = last + 1

    # Parts

    def _held(self, fingerprint: bytes, name: int, record: bytes) -> Held:
        digest, size, number, ticks = _RECORD.unpack(record)
        source = self._sources[number]
        rival = self._rivals.get((fingerprint, name)) if self._rivals else None
        since = self._latest - ((self._latest - ticks) & 0xFFFFFFFF)
        return Held(size, digest if size else b"", *source, since / _TICKS, rival)

    def _put(self, fingerprint: bytes, name: int, held: Held) -> bool:
        if held.size > BLOCK_BYTES_MAX:
            return False
        number = self._sources.take(Source(held.origin, held.epoch, held.hops))
        if number is None:
            return False
        ticks = math.ceil(held.since * _TICKS)  # later, so that it survives a listing
        self._latest = max(self._latest, ticks)
        record = _RECORD.pack(held.digest, held.size, number, ticks & 0xFFFFFFFF)
        table = self._namespaces.get(fingerprint)
        if table is None:
            table = self._namespaces[fingerprint] = Table(_RECORD.size)
        table.put(name, record)
        if held.rival is not None:
            self._rivals[(fingerprint, name)] = held.rival
            if len(self._rivals) > RIVALS_MAX:
                self.withdraw(*next(iter(self._rivals)))
        return True

    def _replace(self, fingerprint: bytes, name: int, known: Held, held: Held) -> bool:
        """Something else is known of a block now."""
        record = self._namespaces[fingerprint].get(name)
        assert record is not None
        if not self._put(fingerprint, name, held):
            self.refused += 1
            return False
        self._sources.give(_RECORD.unpack(record)[2])
        if held.rival is None:
            self._rivals.pop((fingerprint, name), None)
        self._unattested += known.attested - held.attested
        before, after = self._offered(fingerprint, known), self._offered(fingerprint, held)
        change = Change(fingerprint, name, after, (held if after else known).attested)
        if before and after:
            self._on_amended(change)
        elif before or after:
            self._on_change(change)
        else:
            self._on_hidden(change._replace(added=True))
        return True

    def _offered(self, fingerprint: bytes, held: Held) -> bool:
        """Whether peers may have it from us."""
        return held.hops < self._hop_limit and (held.attested or self._unattested_ok(fingerprint))

    def _tell(self, held: Held, change: Change) -> None:
        offered = self._offered(change.fingerprint, held)
        (self._on_change if offered else self._on_hidden)(change)


def _name(fingerprint: bytes, block: Block) -> int:
    return block if isinstance(block, int) else name_of(fingerprint, block)


def _unattested(origin: str, now: float) -> Held:
    return Held(0, b"", origin, 0, 0 if origin == OWN else HOPS_MAX, now)
