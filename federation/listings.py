"""What Mooncake lists, and what follows from it for the holdings."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from federation.config import Limits
from federation.identity import Fingerprint, stored_key
from federation.timeouts import timeout
from local_group.admin import AdminClient
from local_group.ledger import Ledger
from local_group.process_errors import AdminError

log = logging.getLogger("moonmesh.gateway")


class Listings:
    """Corrects the holdings by key listings of the master.

    Args:
        on_problem: told what an operator has to know.
    """

    def __init__(
        self, ledger: Ledger, admin: AdminClient, limits: Limits, on_problem: Callable[[str], None]
    ) -> None:
        self._ledger = ledger
        self._admin = admin
        self._limits = limits
        self._on_problem = on_problem

    async def restore(self) -> None:
        """Takes back what the last run knew, as far as Mooncake still has it."""
        try:
            keys = await self._admin.all_keys(self._limits.listing_bytes_max)
            listed = _listed(keys)
        except AdminError as error:
            # Whose a block is must not be forgotten. That some may be gone costs a round trip each.
            self._on_problem(f"no key listing at start, all of the journal is taken: {error}")
            listed = lambda fingerprint, key: True  # noqa: E731
        known = await self._ledger.load(listed)
        log.info("%d blocks are known from the journal", known)

    async def correct(self) -> None:
        """Lists now, and withdraws what Mooncake has no more."""
        began = time.monotonic()
        try:
            keys = await self._admin.all_keys(self._limits.listing_bytes_max)
        except AdminError as error:
            self._on_problem(f"no key listing: {error}")
            return
        self._ledger.holdings.reconcile(_listed(keys), began)

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


def _listed(keys: set[str]) -> Callable[[bytes, str], bool]:
    return lambda fingerprint, key: stored_key(Fingerprint(fingerprint), key) in keys
