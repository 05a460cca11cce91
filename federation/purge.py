"""Takes the blocks that came from one group out of the local Mooncake: what it wrote is not to be trusted."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from federation.counters import counters
from federation.removal import Removal
from federation.transfer.staging import Staging
from local_group.holdings import CHANGED, OWN, UNKNOWN, Holdings
from local_group.names import Named

LISTED_AT_ONCE = 65_536
"""Blocks whose keys are looked for in one listing: 20 MB of keys."""
LOOKED_AT_ONCE = 1024
"""Blocks that are looked at in one go: some ms."""
PAUSE_SECONDS = 0.25
"""Before blocks that are under lease are tried again."""


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

    def __init__(self, *, removal: Removal, holdings: Holdings, staging: Staging) -> None:
        self._removal = removal
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
            found = await self._of(origin, epoch)
            for start in range(0, len(found), LISTED_AT_ONCE):
                if time.monotonic() < end:
                    part = found[start : start + LISTED_AT_ONCE]
                    removed += await self._removal.remove(
                        part,
                        end,
                        only=lambda held: held.origin == origin and epoch in (None, held.epoch),
                        force=force,
                    )
            left = len(await self._of(origin, epoch))
            if not left or time.monotonic() >= end:
                break
            if removed == before:
                await asyncio.sleep(PAUSE_SECONDS)
        counters.add("moonmesh_purged_total", removed)
        origins = self._holdings.origins() - {OWN, UNKNOWN, CHANGED}
        return Purged(removed, left, tuple(sorted(origins)))

    async def _of(self, origin: str, epoch: int | None) -> list[Named]:
        found: list[Named] = []
        if origin not in self._holdings.origins():
            return found
        for n, (fingerprint, name, held) in enumerate(self._holdings.items()):
            if held.origin == origin and epoch in (None, held.epoch):
                found.append((fingerprint, name))
            if n % LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)
        return found
