"""Takes the blocks that came from one group out of the local Mooncake: what it wrote is not to be trusted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from federation.counters import counters
from federation.keys.naming import Naming
from federation.transfer.staging import Staging
from local_group.holdings import CHANGED, OWN, UNKNOWN, Holdings
from local_group.store import Outcome, Status

BATCH_BLOCKS = 512
REMOVE_SECONDS = 5.0
"""For one batch."""
PAUSE_SECONDS = 0.25
"""Before blocks that are under lease are tried again."""


class Remover(Protocol):
    """The part of the store client that a purge uses."""

    def remove(self, keys: Sequence[str], timeout: float, force: bool = False) -> list[Outcome]:
        """Removes blocks; one outcome each."""


class Purged(NamedTuple):
    """What became of a purge."""

    removed: int
    """Blocks that were in the local Mooncake and are not any more."""
    left: int
    """Blocks that are still there: they are being read, or Mooncake did not answer."""
    origins: tuple[str, ...]
    """Groups of which blocks are still known here, for whoever has mistyped a name."""


class Purge:
    """Removes blocks by their origin, as the holdings know it.

    That a block is not this group's own stays known: written back by an engine that still has it, it
    counts as the origin's again, and another purge finds it. What is pulled meanwhile is found too, as
    long as the purge lasts; a peer that goes on sending is to be taken out of `import` first.
    """

    def __init__(
        self, *, store: Remover, holdings: Holdings, staging: Staging, naming: Naming
    ) -> None:
        self._store = store
        self._naming = naming
        self._holdings = holdings
        self._staging = staging

    async def run(
        self, origin: str, *, epoch: int | None = None, force: bool = False, seconds: float
    ) -> Purged:
        """Removes what is here of `origin`, for at most `seconds`: a block that is being read has a lease,
        and stays until that ends.

        Args:
            epoch: only what came while the origin was in this epoch.
            force: remove what is being read too: its readers may be given the bytes of another block.
        """
        end = time.monotonic() + seconds
        removed = 0
        while True:
            self._staging.drop_of(origin, epoch)
            before = removed
            found = self._of(origin, epoch)
            for start in range(0, len(found), BATCH_BLOCKS):
                if time.monotonic() < end:
                    removed += await self._remove(found[start : start + BATCH_BLOCKS], force)
            left = len(self._of(origin, epoch))
            if not left or time.monotonic() >= end:
                break
            if removed == before:
                await asyncio.sleep(PAUSE_SECONDS)
        counters.add("moonmesh_purged_total", removed)
        origins = {held.origin for _, _, held in self._holdings.items()}
        origins -= {OWN, UNKNOWN, CHANGED}
        return Purged(removed, left, tuple(sorted(origins)))

    def _of(self, origin: str, epoch: int | None) -> list[tuple[bytes, str]]:
        return [
            (fingerprint, key)
            for fingerprint, key, held in self._holdings.items()
            if held.origin == origin and epoch in (None, held.epoch)
        ]

    async def _remove(self, blocks: Sequence[tuple[bytes, str]], force: bool) -> int:
        keys = [self._naming.stored(fingerprint, key) for fingerprint, key in blocks]
        outcomes = await asyncio.to_thread(self._store.remove, keys, REMOVE_SECONDS, force)
        gone = 0
        for (fingerprint, key), outcome in zip(blocks, outcomes, strict=True):
            if outcome.status in (Status.HIT, Status.MISS):
                self._holdings.withdraw(fingerprint, key)
                gone += outcome.status is Status.HIT
        return gone
