"""What Mooncake lists, and what follows from it for the holdings."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from federation.config import Limits
from federation.counters import counters
from federation.identity import read_stored_key
from federation.timeouts import timeout
from local_group.admin import AdminClient
from local_group.journal import Entry, JournalError
from local_group.ledger import Ledger
from local_group.names import Named, Names, name_of
from local_group.process_errors import AdminError

log = logging.getLogger("moonmesh.gateway")

Classify: TypeAlias = Callable[[str], "tuple[bytes, str] | None"]
"""The namespace (its fingerprint) and the key of what is stored under a key; None for what is in none."""

FOUND_AT_ONCE = 256
"""Blocks that a listing finds and that are taken in one go: a ms or two."""
DOUBTFUL_AT_ONCE = 4096
"""Blocks that may be a peer's and that are recorded in one go."""
DUTY = 60
"""Listings are made in one of so many parts of the time at most: a master of a million keys is slower for
others while it makes one."""
LOST_DUTY = 5
"""The same while serves show that much is lost, and peers should be told."""
FAILED_PAUSE_S = 600.0
"""After one that failed it is no longer than that until the next: a master that hung for half a minute is not
to go unlisted for half an hour."""


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
        self.seconds = 0.0
        """What the last listing took, from the question to the last byte, or until it was given up."""
        self.keys = 0
        """Keys in the last listing, of whatever namespace."""
        self.unmatched = 0
        """Keys in the newest listing that are of no namespace, or too long to be asked for: they are offered
        to nobody."""
        self._trouble = ""
        self._failed_at = 0.0
        """When the first of those failed that have failed since the last one that did not."""

    async def restore(self) -> None:
        """Takes back what the last run knew, as far as Mooncake still has it."""
        async with self._one:
            began = time.monotonic()
            listed = None
            try:
                if not self._ledger.elsewhere():
                    listed = await self._list()
            except AdminError as error:
                self._on_problem(f"no key listing at start, all of the journal is taken: {error}")
                self._failed(error, began)
            if listed is None:
                # Whose a block is must not be forgotten. That some may be gone costs a round trip each.
                known = await self._ledger.load(None)
            else:
                known = await self._ledger.load(listed.of)
                await self._compare(listed, began)
            log.info("%d blocks are known from the journal", known)

    async def correct(self) -> None:
        """Lists now: withdraws what Mooncake has no more, and holds what is new."""
        async with self._one:
            if self._ledger.elsewhere():
                return
            began = time.monotonic()
            self._ledger.holdings.listing_begins()
            try:
                await self._compare(await self._list(), began)
            except AdminError as error:
                self._failed(error, began)
            else:
                if self._trouble:
                    past = f"key listings failed for {time.monotonic() - self._failed_at:.0f} s"
                    self._on_problem(f"{past}: {self._trouble}")
                    self._trouble = ""
            finally:
                self._ledger.holdings.listing_ends()

    def trouble(self, now: float) -> str:
        """Why key listings cannot be made now, and since when; empty if they can."""
        if not self._trouble:
            return ""
        return f"no key listing for {now - self._failed_at:.0f} s: {self._trouble}"

    async def stored_keys(self, blocks: Collection[Named]) -> Mapping[Named, str]:
        """The keys under which Mooncake has those of the blocks that it has.

        Raises:
            AdminError: it cannot be asked.
        """
        found: dict[Named, str] = {}

        def take(lines: list[bytes]) -> None:
            for line in lines:
                stored = line.decode(errors="surrogateescape")
                block = self._classify(stored)
                if block is not None:
                    named = (bytes(block[0]), name_of(*block))
                    if named in blocks:
                        found[named] = stored

        async with self._one:
            await self._admin.list_keys(take, self._limits.listing_bytes_max)
        return found

    async def run(self, lost: asyncio.Event) -> None:
        """Lists at an interval, and before its time when serves show a great loss (`lost`)."""
        while True:
            soonest, interval = self.pauses()
            await asyncio.sleep(soonest)
            with contextlib.suppress(asyncio.TimeoutError):
                async with timeout(interval - soonest):
                    await lost.wait()
            lost.clear()
            await self.correct()

    def pauses(self) -> tuple[float, float]:
        """Seconds until the next listing: at least, and at most."""
        rest = self.seconds * (DUTY - 1)
        if self._trouble:
            rest = min(rest, FAILED_PAUSE_S)
        interval = max(self._limits.listing_interval_ms / 1000, rest)
        soonest = max(self._limits.listing_soonest_ms / 1000, self.seconds * (LOST_DUTY - 1))
        return min(interval, soonest), interval

    def _failed(self, error: AdminError, began: float) -> None:
        if not self._trouble:
            self._failed_at = began
            log.warning("no key listing: %s", error)
        self._trouble = str(error)

    async def _list(self) -> _Listed:
        listed = _Listed(self._classify)
        began = time.monotonic()
        try:
            await self._admin.list_keys(listed.take, self._limits.listing_bytes_max)
        finally:
            # Of one that failed as well: the master has made it, or is making it.
            self.seconds = time.monotonic() - began
        await asyncio.to_thread(listed.sort)  # without the interpreter's lock
        self.keys = listed.keys
        self.unmatched = listed.unmatched
        counters.add("moonmesh_listings_total")
        return listed

    async def _compare(self, listed: _Listed, began_at: float) -> None:
        holdings = self._ledger.holdings
        gone = found = 0
        doubtful: list[Entry] = []
        held = {fingerprint for fingerprint, _ in holdings.namespaces()}
        for fingerprint in sorted(self._namespaces | held):
            for lost, new in holdings.compare(fingerprint, listed.of(fingerprint), began_at):
                gone += lost
                await asyncio.sleep(0)
                if fingerprint not in self._namespaces:
                    continue
                before = len(holdings)
                for n, name in enumerate(new.tolist(), 1):
                    entry = self._ledger.find(fingerprint, name, began_at)
                    if entry is not None:
                        doubtful.append(entry)
                    if n % FOUND_AT_ONCE == 0:
                        await asyncio.sleep(0)
                if len(doubtful) >= DOUBTFUL_AT_ONCE:
                    await self._record(doubtful)
                    doubtful.clear()
                found += max(0, len(holdings) - before)
        counters.add("moonmesh_listing_gone_total", gone)
        counters.add("moonmesh_listing_found_total", found)
        await self._record(doubtful)
        self._ledger.found_all()

    async def _record(self, doubtful: Sequence[Entry]) -> None:
        try:
            await self._ledger.record(doubtful)
        except JournalError as error:
            self._on_problem(str(error))


class _Listed:
    """Names of what was listed, by namespace: eight bytes a block."""

    def __init__(self, classify: Classify) -> None:
        self._classify = classify
        self._coming: dict[bytes, array[int]] = {}
        self._names: dict[bytes, Names] = {}
        self.keys = 0
        self.unmatched = 0

    def take(self, lines: list[bytes]) -> None:
        """The next keys."""
        self.keys += len(lines)
        for line in lines:
            block = self._classify(line.decode(errors="surrogateescape"))
            if block is not None:
                names = self._coming.get(block[0])
                if names is None:
                    names = self._coming.setdefault(bytes(block[0]), array("Q"))
                names.append(name_of(*block))
            else:
                self.unmatched += bool(line)

    def sort(self) -> None:
        """All keys are here."""
        while self._coming:
            fingerprint, names = self._coming.popitem()
            found = np.array(names, dtype=np.uint64)
            found.sort()
            self._names[fingerprint] = found

    def of(self, fingerprint: bytes) -> Names:
        """Of one namespace, in ascending order."""
        return self._names.get(fingerprint, np.empty(0, dtype=np.uint64))
