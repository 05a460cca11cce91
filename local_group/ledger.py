"""Holdings and their journal as one: what is attributed here is also on disk.

Calls into the disk run on threads; a lock keeps a compaction from losing what is appended meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from local_group.holdings import OWN, Held, Holdings
from local_group.journal import Entry, Journal

REWRITE_SECONDS = 30.0
"""Between two attempts to make room in a full journal: each writes all of it."""


class Ledger:
    """The attributed blocks of this group.

    Args:
        holdings: told of everything that is written here.
        journal: not yet open; `load` opens it.
    """

    def __init__(self, holdings: Holdings, journal: Journal) -> None:
        self.holdings = holdings
        self._journal = journal
        self._disk = asyncio.Lock()
        self._rewritten_at = float("-inf")

    async def load(self, listed: Callable[[bytes, str], bool]) -> int:
        """Takes back what the last run knew, less what Mooncake no longer has; opens the journal.

        Args:
            listed: whether a listing of Mooncake, taken just now, has this block.

        Returns:
            The number of blocks known again.

        Raises:
            JournalError: if the disk refuses.
        """

        def read() -> list[Entry]:
            latest = {(e.fingerprint, e.key): e for e in self._journal.load()}
            kept = [e for e in latest.values() if listed(e.fingerprint, e.key)]
            self._journal.rewrite(kept)
            return kept

        async with self._disk:
            kept = await asyncio.to_thread(read)
        now = time.monotonic()
        for e in kept:
            held = Held(e.size, e.digest, e.origin, e.epoch, e.hops, now)
            self.holdings.restore(e.fingerprint, e.key, held)
        return len(kept)

    async def report(self, entries: Sequence[Entry]) -> None:
        """Engines of this group have put these blocks.

        Raises:
            JournalError: if the disk refuses; the blocks are offered all the same, until a restart.
        """
        now = time.monotonic()
        fresh = [
            e for e in entries if self.holdings.report(e.fingerprint, e.key, e.size, e.digest, now)
        ]
        if fresh:
            await self._append(fresh, durable=False)

    async def announce(self, entries: Sequence[Entry]) -> None:
        """Blocks of peers are about to be put: on disk before Mooncake has them.

        Raises:
            JournalError: if the disk refuses: then do not put them.
        """
        await self._append(entries, durable=True)

    def admitted(self, entry: Entry) -> None:
        """A block that was announced is now in Mooncake."""
        self.holdings.admit(
            entry.fingerprint,
            entry.key,
            entry.size,
            entry.digest,
            entry.origin,
            entry.epoch,
            entry.hops,
            time.monotonic(),
        )

    async def close(self) -> None:
        """Closes the journal once what is being written has been written."""
        async with self._disk:
            await asyncio.to_thread(self._journal.close)

    async def _append(self, entries: Sequence[Entry], *, durable: bool) -> None:
        async with self._disk:
            now = time.monotonic()
            full = not self._journal.has_room(entries)
            if full and now - self._rewritten_at >= REWRITE_SECONDS:
                self._rewritten_at = now
                known = [
                    Entry(fp, key, h.size, h.digest, h.origin, h.epoch, h.hops)
                    for fp, key, h in self.holdings.items()
                ]
                await asyncio.to_thread(self._journal.rewrite, known)
            await asyncio.to_thread(self._journal.append, entries, durable=durable)


def own(fingerprint: bytes, key: str, size: int, digest: bytes) -> Entry:
    """The entry of a block that an engine of this group wrote."""
    return Entry(fingerprint, key, size, digest, OWN, 0, 0)
