"""Takes blocks out of the local Mooncake: by a purge, or because copies take too much of the pool."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Protocol, TypeAlias

from local_group.holdings import Held, Holdings
from local_group.names import Named
from local_group.process_errors import AdminError
from local_group.store import Outcome, Status

Listed: TypeAlias = Callable[[Collection[Named]], Awaitable[Mapping[Named, str]]]

log = logging.getLogger(__name__)

BATCH_BLOCKS = 512
REMOVE_SECONDS = 5.0
"""For one batch."""


class Remover(Protocol):
    """The part of the store client that removes."""

    def remove(self, keys: Sequence[str], timeout: float, force: bool = False) -> list[Outcome]:
        """Removes blocks; one outcome each."""


class Removal:
    """Removes blocks that the holdings know by name.

    Args:
        listed: under which keys Mooncake has blocks, by a key listing made now.
    """

    def __init__(self, store: Remover, holdings: Holdings, listed: Listed) -> None:
        self._store = store
        self._holdings = holdings
        self._listed = listed

    async def remove(
        self,
        blocks: Sequence[Named],
        end: float,
        *,
        only: Callable[[Held], bool],
        force: bool = False,
    ) -> int:
        """Removes blocks, until `end` (monotonic seconds); how many were there and are not any more.

        Args:
            only: whether a block is still one that is meant: asked right before.
            force: remove what is being read too: its readers may be given the bytes of another block.
        """
        try:
            keys = await self._listed(set(blocks))
        except AdminError as error:
            log.warning("no key listing to remove blocks by: %s", error)
            return 0
        for named in blocks:
            if named not in keys:
                self._holdings.withdraw(*named)
        removed = 0
        here = list(keys.items())
        for start in range(0, len(here), BATCH_BLOCKS):
            if time.monotonic() < end:
                batch = [
                    (named, key)
                    for named, key in here[start : start + BATCH_BLOCKS]
                    if (held := self._holdings.get(*named)) is not None and only(held)
                ]
                removed += await self._remove(batch, force)
        return removed

    async def _remove(self, blocks: Sequence[tuple[Named, str]], force: bool) -> int:
        keys = [key for _, key in blocks]
        outcomes = await asyncio.to_thread(self._store.remove, keys, REMOVE_SECONDS, force)
        gone = 0
        for (named, _), outcome in zip(blocks, outcomes, strict=True):
            if outcome.status in (Status.HIT, Status.MISS):
                self._holdings.withdraw(*named)
                gone += outcome.status is Status.HIT
        return gone
