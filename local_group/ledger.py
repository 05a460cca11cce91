"""Holdings and their journal as one: what is attributed here is also on disk.

Calls into the disk run on threads; a lock keeps a compaction from losing what is appended meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from local_group.entries import Entries
from local_group.foreign import Foreign
from local_group.holdings import CHANGED, HOPS_MAX, OWN, UNKNOWN, Block, Held, Holdings
from local_group.journal import Entry, Journal
from local_group.names import Names, name_of

REWRITE_SECONDS = 30.0
"""Between two attempts to make room in a full journal: each writes all of it."""
APPEND_BLOCKS = 4096
"""Blocks found by a listing that are recorded in one go."""
RESTORED_AT_ONCE = 1024
"""Blocks of the journal that are taken in one go at start."""
FOREIGN_BLOCKS = 262_144
"""Pulled blocks that are remembered at most, unless told otherwise."""


class Ledger:
    """The blocks of this group.

    A block of a peer is known as such from its landing on. An engine that writes back what it was given
    (before it was admitted, or after it was evicted) does not make it this group's own.

    Args:
        holdings: told of everything that is written here.
        journal: not yet open; `load` opens it.
        on_own: told of blocks that `report` found to be this group's own, and that it did not know so.
        imported: fingerprints of namespaces in which blocks may come from peers.
        foreign_max: pulled blocks that are remembered at most, although they are not (or no longer) in
            Mooncake; half as many at least.
        alone: no other gateway of this group can have pulled any.
        elsewhere: whether the master that is asked is not this group's: what it lists then, and what
            happens in its pool, says nothing of the holdings.
    """

    def __init__(
        self,
        holdings: Holdings,
        journal: Journal,
        on_own: Callable[[Sequence[Entry]], None] = lambda _: None,
        *,
        imported: Collection[bytes] = frozenset(),
        foreign_max: int = FOREIGN_BLOCKS,
        alone: bool = True,
        elsewhere: Callable[[], bool] = lambda: False,
    ) -> None:
        self.holdings = holdings
        self.elsewhere = elsewhere
        self._journal = journal
        self._on_own = on_own
        self._imported = frozenset(imported)
        self._alone = alone
        self._withheld: list[Entry] = []  # not recorded yet; each is held
        self._doubt = False  # until all is found that was here when the journal was lost
        self._foreign = Foreign(foreign_max // 2)
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

    async def load(self, listed: Callable[[bytes], Names] | None) -> int:
        """Takes back what the last run knew; opens the journal.

        Args:
            listed: the names that a listing of Mooncake, taken just now, has of a namespace, in ascending
                order. Own blocks that it lacks are forgotten; of a peer's it stays known whose they are.
                None: nobody could tell, and all are taken.

        Returns:
            The number of blocks held.

        Raises:
            JournalError: if the disk refuses.
        """
        latest = Entries()

        def read() -> None:
            for e in self._journal.load():
                if not latest.put(e):
                    latest.drop(e.fingerprint, e.name)  # what was known before does not stand
                if is_foreign(e):
                    self.remember(e)
                else:
                    self._foreign.forget(e.fingerprint, e.name)
            if listed is not None:
                latest.keep(listed)

        async with self._disk:
            await asyncio.to_thread(read)
            self._doubt = self._journal.lost
            await asyncio.to_thread(self._journal.begin_anew)
            gone = (e for e in self._foreign if latest.get(e.fingerprint, e.name) is None)
            await asyncio.to_thread(self._journal.write_anew, gone)
            now = time.monotonic()
            entries = iter(latest)
            while part := list(itertools.islice(entries, RESTORED_AT_ONCE)):
                await asyncio.to_thread(self._journal.write_anew, part)
                for e in part:
                    self.holdings.restore(e.fingerprint, e.name, held_of(e, now))
            await asyncio.to_thread(self._journal.end_anew)
        return len(latest)

    def remember(self, entry: Entry) -> None:
        """A block of a peer has landed here: from now on it is known whose it is."""
        self._foreign.remember(entry)

    async def report(self, entries: Sequence[Entry]) -> None:
        """Engines of this group have put these blocks.

        Raises:
            JournalError: if the disk refuses; the blocks are offered all the same, until a restart.
        """
        now = time.monotonic()
        fresh: list[Entry] = []
        ours: list[Entry] = []
        for e in entries:
            known = self._foreign.get(e.fingerprint, e.name)
            if known is not None and known.digest == e.digest:
                if self._hold(known, now):
                    fresh.append(known)
                continue
            before = self.holdings.get(e.fingerprint, e.name)
            if self.holdings.report(e.fingerprint, e.name, e.size, e.digest, now):
                fresh.append(e)
                ours.append(e)
            elif before is not None and before.origin == OWN and before.digest != e.digest:
                ours.append(e)  # there are two of it, and one is in Mooncake
        if ours:
            self._on_own(ours)
        if fresh:
            await self._append(fresh, durable=False)

    def find(self, fingerprint: bytes, name: int, began_at: float) -> Entry | None:
        """A listing that began at `began_at` has this block. What is to be recorded of it, if anything.

        A block of a peer is known as such. Of any other it is doubtful whose it is, where it can have
        been pulled and nobody here would know: by another gateway of this group, or before the journal
        was lost. Such a block is offered to nobody, and that is recorded: at the next start nobody knows
        of the loss.
        """
        if not self.holdings.findable(fingerprint, name):
            return None
        known = self._foreign.get(fingerprint, name)
        if known is not None:
            self._hold(known, began_at)
            return None
        doubtful = fingerprint in self._imported and (self._doubt or not self._alone)
        origin = UNKNOWN if doubtful else OWN
        if not self.holdings.find(fingerprint, name, origin, began_at) or not doubtful:
            return None
        return Entry(fingerprint, name, 0, b"", UNKNOWN, 0, HOPS_MAX)

    async def record(self, doubtful: Sequence[Entry]) -> None:
        """Writes down what `find` gave, and what is withheld.

        Raises:
            JournalError: if the disk refuses.
        """
        entries, self._withheld = [*doubtful, *self._withheld], []
        for start in range(0, len(entries), APPEND_BLOCKS):
            await self._append(entries[start : start + APPEND_BLOCKS], durable=True)

    def found_all(self) -> None:
        """A whole listing has been gone through with `find`: what comes later was put later."""
        self._doubt = False

    def withhold(self, fingerprint: bytes, name: int) -> None:
        """The bytes of a block are not those that were written first: it is offered to nobody. That is
        recorded with the next listing; who starts anew before that finds out once more.
        """
        if self.holdings.withhold(fingerprint, name, time.monotonic()):
            self._withheld.append(Entry(fingerprint, name, 0, b"", CHANGED, 0, HOPS_MAX))

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
            before = self.holdings.get(e.fingerprint, e.name)
            held = held_of(e, now)._replace(rival=rival)
            self.holdings.restore(e.fingerprint, e.name, held)
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
            entry.name,
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
                await self._compact()
            await asyncio.to_thread(self._journal.append, entries, durable=durable)

    async def _compact(self) -> None:
        """A journal of what is known now. What changes meanwhile is appended to it after that."""
        await asyncio.to_thread(self._journal.begin_anew)
        entries = self._everything()
        while part := list(itertools.islice(entries, APPEND_BLOCKS)):
            await asyncio.to_thread(self._journal.write_anew, part)
        await asyncio.to_thread(self._journal.end_anew)

    def _everything(self) -> Iterator[Entry]:
        """What a compacted journal holds: all that is known of a peer's blocks, and our own."""
        for e in self._foreign:
            if self.holdings.get(e.fingerprint, e.name) is None:
                yield e
        for fingerprint, name, held in self.holdings.items():
            if held.attested or held.origin != OWN:  # the next listing finds it again
                yield entry_of(fingerprint, name, held)


def is_foreign(entry: Entry) -> bool:
    """Whether a block is known to have come from a peer."""
    return is_foreign_origin(entry.origin)


def is_foreign_origin(origin: str) -> bool:
    """The same of what the holdings say."""
    return origin not in (OWN, UNKNOWN, CHANGED)


def own(fingerprint: bytes, block: Block, size: int, digest: bytes) -> Entry:
    """The entry of a block that an engine of this group wrote."""
    name = block if isinstance(block, int) else name_of(fingerprint, block)
    return Entry(fingerprint, name, size, digest, OWN, 0, 0)


def entry_of(fingerprint: bytes, name: int, held: Held) -> Entry:
    """What is recorded of a block."""
    return Entry(fingerprint, name, held.size, held.digest, held.origin, held.epoch, held.hops)


def held_of(entry: Entry, now: float) -> Held:
    """A block as it was recorded."""
    return Held(entry.size, entry.digest, entry.origin, entry.epoch, entry.hops, now)
