"""Keeps copies of peers' blocks within their part of the pool."""

from __future__ import annotations

import asyncio
import time

from federation.counters import counters
from federation.removal import Removal
from federation.transfer.copies import Copies
from federation.transfer.pool import PoolSize, Sized
from local_group.ledger import is_foreign_origin

LOOK_SECONDS = 1.0
"""Between two looks at how much there is."""
ROUND_BLOCKS = 4096
"""Blocks that are given back in one round: its key listing has to be worth it."""
ROUND_SECONDS = 10.0
"""For one round; what could not be removed by then has its turn later."""
PAUSE_SECONDS = 5.0
"""After a round: each takes a key listing of the master."""


class GivingBack:
    """Gives back what is over the quota, in the background.

    Args:
        master: says how large the pool is.
    """

    def __init__(self, copies: Copies, removal: Removal, master: Sized) -> None:
        self._copies = copies
        self._removal = removal
        self._pool = PoolSize(master)
        self._pool.tell = copies.pool_is

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            self._pool.look()
            if await self.round():
                await asyncio.sleep(PAUSE_SECONDS)
            await asyncio.sleep(LOOK_SECONDS)

    async def round(self) -> bool:
        """Once; whether there was anything to give back."""
        surplus = self._copies.surplus(ROUND_BLOCKS)
        if not surplus:
            return False
        removed = await self._removal.remove(
            surplus,
            time.monotonic() + ROUND_SECONDS,
            only=lambda held: is_foreign_origin(held.origin),
        )
        counters.add("moonmesh_copies_given_back_total", removed)
        for named in surplus:
            self._copies.used(*named)  # what is still there is being read
        return True
