"""Holdings and their journal as one: what is attributed here is also on disk.

Calls into the disk run on threads; a lock keeps a compaction from losing what is appended meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence

from local_group.holdings import CHANGED, HOPS_MAX, OWN, UNKNOWN, Held, Holdings
from local_group.journal import Entry, Journal

REWRITE_SECONDS = 30.0
"""Between two attempts to make room in a full journal: each writes all of it."""
APPEND_BLOCKS = 4096
"""Blocks found by a listing that are recorded in one go."""

FOREIGN_MAX = 262_144
"""Pulled blocks remembered although they are not (or no longer) in Mooncake; the oldest go first."""


class Ledger:
    """The blocks of this group.

    A block of a peer is known as such from its landing on. An engine that writes back what it was given
    (before it was admitted, or after it was evicted) does not make it this group's own.

    Args:
        holdings: told of everything that is written here.
        journal: not yet open; `load` opens it.
        on_own: told of blocks that `report` found to be this group's own, and that it did not know so.
        imported: fingerprints of namespaces in which blocks may come from peers.
        alone: no other gateway of this group can have pulled any.
    """

    def __init__(
        self,
        holdings: Holdings,
        journal: Journal,
        on_own: Callable[[Sequence[Entry]], None] = lambda _: None,
        *,
        imported: Collection[bytes] = frozenset(),
        alone: bool = True,
    ) -> None:
        self.holdings = holdings
        self._journal = journal
        self._on_own = on_own
        self._imported = frozenset(imported)
        self._alone = alone
        self._doubt = False  # until all is found that was here when the journal was lost
        self._foreign: OrderedDict[tuple[bytes, str], Entry] = OrderedDict()
        self._disk = asyncio.Lock()
        self._rewritten_at = float("-inf")

    @property
    def journal_bytes(self) -> int:
        """Size of the journal."""
        return self._journal.size

    @property
    def remembered(self) -> int:
        """Blocks of peers that are known as such."""
        return len(self._foreign)

    async def load(self, listed: Callable[[bytes, str], bool]) -> int:
        """Takes back what the last run knew; opens the journal.

        Args:
            listed: whether a listing of Mooncake, taken just now, has this block. Own blocks that it
                lacks are forgotten; of a peer's it stays known whose they are.

        Returns:
            The number of blocks held.

        Raises:
            JournalError: if the disk refuses.
        """

        def read() -> tuple[list[Entry], list[Entry]]:
            latest = {(e.fingerprint, e.key): e for e in self._journal.load()}
            here = [e for e in latest.values() if listed(e.fingerprint, e.key)]
            gone = [
                e for e in latest.values() if is_foreign(e) and not listed(e.fingerprint, e.key)
            ][-FOREIGN_MAX:]
            self._journal.rewrite([*gone, *here])
            return here, gone

        async with self._disk:
            here, gone = await asyncio.to_thread(read)
        self._doubt = self._journal.lost
        now = time.monotonic()
        for e in gone:
            self.remember(e)
        for e in here:
            if is_foreign(e):
                self.remember(e)
            held = Held(e.size, e.digest, e.origin, e.epoch, e.hops, now)
            self.holdings.restore(e.fingerprint, e.key, held)
        return len(here)

    def remember(self, entry: Entry) -> None:
        """A block of a peer has landed here: from now on it is known whose it is."""
        name = (entry.fingerprint, entry.key)
        self._foreign[name] = entry
        self._foreign.move_to_end(name)
        while len(self._foreign) > FOREIGN_MAX:
            self._foreign.popitem(last=False)

    async def report(self, entries: Sequence[Entry]) -> None:
        """Engines of this group have put these blocks.

        Raises:
            JournalError: if the disk refuses; the blocks are offered all the same, until a restart.
        """
        now = time.monotonic()
        fresh: list[Entry] = []
        ours: list[Entry] = []
        for e in entries:
            known = self._foreign.get((e.fingerprint, e.key))
            if known is not None and known.digest == e.digest:
                if self._hold(known, now):
                    fresh.append(known)
                continue
            before = self.holdings.get(e.fingerprint, e.key)
            if self.holdings.report(e.fingerprint, e.key, e.size, e.digest, now):
                fresh.append(e)
                ours.append(e)
            elif before is not None and before.origin == OWN and before.digest != e.digest:
                ours.append(e)  # there are two of it, and one is in Mooncake
        if ours:
            self._on_own(ours)
        if fresh:
            await self._append(fresh, durable=False)

    def find(self, fingerprint: bytes, key: str, began_at: float) -> Entry | None:
        """A listing that began at `began_at` has this block. What is to be recorded of it, if anything.

        A block of a peer is known as such. Of any other it is doubtful whose it is, where it can have
        been pulled and nobody here would know: by another gateway of this group, or before the journal
        was lost. Such a block is offered to nobody, and that is recorded: at the next start nobody knows
        of the loss.
        """
        if not self.holdings.findable(fingerprint, key):
            return None
        known = self._foreign.get((fingerprint, key))
        if known is not None:
            self._hold(known, began_at)
            return None
        doubtful = fingerprint in self._imported and (self._doubt or not self._alone)
        origin = UNKNOWN if doubtful else OWN
        if not self.holdings.find(fingerprint, key, origin, began_at) or not doubtful:
            return None
        return Entry(fingerprint, key, 0, b"", UNKNOWN, 0, HOPS_MAX)

    async def found(self, doubtful: Sequence[Entry]) -> None:
        """A listing has been gone through with `find`, which gave these.

        Raises:
            JournalError: if the disk refuses.
        """
        for start in range(0, len(doubtful), APPEND_BLOCKS):
            await self._append(doubtful[start : start + APPEND_BLOCKS], durable=True)
        self._doubt = False

    async def withhold(self, fingerprint: bytes, key: str) -> None:
        """The bytes of a block are not those that were written first: it is offered to nobody.

        Raises:
            JournalError: if the disk refuses; it is not offered all the same, until a restart.
        """
        if self.holdings.withhold(fingerprint, key, time.monotonic()):
            counted = Entry(fingerprint, key, 0, b"", CHANGED, 0, HOPS_MAX)
            await asyncio.shield(self._append([counted], durable=False))

    async def copy(self, told: Iterable[tuple[Entry, bytes | None]]) -> None:
        """Another gateway of this group holds these blocks, each with its rival digest, if it has one.

        Raises:
            JournalError: if the disk refuses; they are held all the same, until a restart.
        """
        now = time.monotonic()
        fresh: list[Entry] = []
        for e, rival in told:
            if is_foreign(e):
                self.remember(e)
            before = self.holdings.get(e.fingerprint, e.key)
            held = Held(e.size, e.digest, e.origin, e.epoch, e.hops, now, rival)
            self.holdings.restore(e.fingerprint, e.key, held)
            if before is None or (before.digest, before.origin) != (e.digest, e.origin):
                fresh.append(e)
        if fresh:
            # Whoever waits may be cancelled. What is held is written all the same: it is news only once.
            await asyncio.shield(self._append(fresh, durable=False))

    async def announce(self, entries: Sequence[Entry]) -> None:
        """Blocks of peers are about to be put: on disk before Mooncake has them.

        Raises:
            JournalError: if the disk refuses: then do not put them.
        """
        for entry in entries:
            self.remember(entry)
        await self._append(entries, durable=True)

    def admitted(self, entry: Entry) -> None:
        """A block that was announced is now in Mooncake."""
        self._hold(entry, time.monotonic())

    async def close(self) -> None:
        """Closes the journal once what is being written has been written."""
        async with self._disk:
            await asyncio.to_thread(self._journal.close)

    def _hold(self, entry: Entry, now: float) -> bool:
        return self.holdings.admit(
            entry.fingerprint,
            entry.key,
            entry.size,
            entry.digest,
            entry.origin,
            entry.epoch,
            entry.hops,
            now,
        )

    async def _append(self, entries: Sequence[Entry], *, durable: bool) -> None:
        async with self._disk:
            now = time.monotonic()
            full = not self._journal.has_room(entries)
            if full and now - self._rewritten_at >= REWRITE_SECONDS:
                self._rewritten_at = now
                await asyncio.to_thread(self._journal.rewrite, self._everything())
            await asyncio.to_thread(self._journal.append, entries, durable=durable)

    def _everything(self) -> list[Entry]:
        """What a compacted journal holds: all that is known of a peer's blocks, and our own."""
        held = [
            Entry(fp, key, h.size, h.digest, h.origin, h.epoch, h.hops)
            for fp, key, h in self.holdings.items()
            if h.attested or h.origin != OWN  # the next listing finds it again
        ]
        names = {(e.fingerprint, e.key) for e in held}
        return [*(e for name, e in self._foreign.items() if name not in names), *held]


def is_foreign(entry: Entry) -> bool:
    """Whether a block is known to have come from a peer."""
    return entry.origin not in (OWN, UNKNOWN, CHANGED)


def own(fingerprint: bytes, key: str, size: int, digest: bytes) -> Entry:
    """The entry of a block that an engine of this group wrote."""
    return Entry(fingerprint, key, size, digest, OWN, 0, 0)
