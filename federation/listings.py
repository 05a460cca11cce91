"""What Mooncake lists, and what follows from it for the holdings."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable

from federation.config import Limits
from federation.counters import counters
from federation.identity import read_stored_key
from federation.timeouts import timeout
from local_group.admin import AdminClient
from local_group.journal import Entry, JournalError
from local_group.ledger import Ledger
from local_group.process_errors import AdminError

log = logging.getLogger("moonmesh.gateway")

Classify = Callable[[str], "tuple[bytes, str] | None"]
"""The namespace (its fingerprint) and the key of what is stored under a key; None for what is in none."""

SLICE_KEYS = 1024
"""Listed keys that are looked at in one go: a ms or two, between which others get their turn."""


class Listings:
    """Corrects the holdings by key listings of the master.

    Args:
        namespaces: fingerprints of namespaces in which what is listed is held although nobody attested
            it; what is offered of that, the holdings know.
        classify: what is listed under a key.
        on_problem: told what an operator has to know.
    """

    def __init__(
        self,
        ledger: Ledger,
        admin: AdminClient,
        limits: Limits,
        on_problem: Callable[[str], None],
        *,
        namespaces: Collection[bytes] = frozenset(),
        classify: Classify = read_stored_key,
    ) -> None:
        self._ledger = ledger
        self._admin = admin
        self._limits = limits
        self._on_problem = on_problem
        self._namespaces = frozenset(namespaces)
        self._classify = classify
        self._one = asyncio.Lock()
        self.unmatched = 0
        """Keys in the newest listing that are of no namespace: they are offered to nobody."""

    async def restore(self) -> None:
        """Takes back what the last run knew, as far as Mooncake still has it."""
        async with self._one:
            began = time.monotonic()
            try:
                listed = await self._list()
            except AdminError as error:
                # Whose a block is must not be forgotten. That some may be gone costs a round trip each.
                self._on_problem(f"no key listing at start, all of the journal is taken: {error}")
                known = await self._ledger.load(lambda fingerprint, key: True)
            else:
                known = await self._ledger.load(listed.has)
                await self._find(listed, began)
            log.info("%d blocks are known from the journal", known)

    async def correct(self) -> None:
        """Lists now: withdraws what Mooncake has no more, and holds what is new."""
        async with self._one:
            began = time.monotonic()
            self._ledger.holdings.listing_begins()
            try:
                listed = await self._list()
                gone = self._ledger.holdings.reconcile(listed.has, began)
                counters.add("moonmesh_listing_gone_total", gone)
                await self._find(listed, began)
            except AdminError as error:
                self._on_problem(f"no key listing: {error}")
            finally:
                self._ledger.holdings.listing_ends()

    async def run(self, lost: asyncio.Event) -> None:
        """Lists at an interval, and before its time when serves show a great loss (`lost`)."""
        interval = self._limits.listing_interval_ms / 1000
        soonest = min(interval, self._limits.listing_soonest_ms / 1000)
        while True:
            await asyncio.sleep(soonest)
            with contextlib.suppress(asyncio.TimeoutError):
                async with timeout(interval - soonest):
                    await lost.wait()
            lost.clear()
            await self.correct()

    async def _list(self) -> _Listed:
        listed, unmatched = _Listed(), 0
        keys = await self._admin.all_keys(self._limits.listing_bytes_max)
        async for stored in _in_slices(keys):
            block = self._classify(stored)
            if block is not None:
                listed.add(*block)
            else:
                unmatched += 1
        self.unmatched = unmatched
        counters.add("moonmesh_listings_total")
        return listed

    async def _find(self, listed: _Listed, began_at: float) -> None:
        doubtful: list[Entry] = []
        before = len(self._ledger.holdings)
        for fingerprint in self._namespaces:
            async for key in _in_slices(listed.keys(fingerprint)):
                entry = self._ledger.find(fingerprint, key, began_at)
                if entry is not None:
                    doubtful.append(entry)
        counters.add("moonmesh_listing_found_total", max(0, len(self._ledger.holdings) - before))
        try:
            await self._ledger.found(doubtful)
        except JournalError as error:
            self._on_problem(str(error))


class _Listed:
    """What was listed, by namespace."""

    def __init__(self) -> None:
        self._keys: dict[bytes, set[str]] = {}

    def add(self, fingerprint: bytes, key: str) -> None:
        self._keys.setdefault(fingerprint, set()).add(key)

    def has(self, fingerprint: bytes, key: str) -> bool:
        return key in self._keys.get(fingerprint, ())

    def keys(self, fingerprint: bytes) -> Collection[str]:
        return self._keys.get(fingerprint, ())


async def _in_slices(keys: Iterable[str]) -> AsyncIterator[str]:
    for n, key in enumerate(keys, 1):
        yield key
        if n % SLICE_KEYS == 0:
            await asyncio.sleep(0)
