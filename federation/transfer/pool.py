"""How large the local pool is: what limits on its use are shares of."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from federation.counters import counters
from local_group.admin import Segment
from local_group.process_errors import AdminError

REFRESH_SECONDS = 15.0
"""After this time the master is asked again: stores come and go, and nothing tells us."""
RETRY_SECONDS = 2.0
"""The same, after a question that failed."""


class Sized(Protocol):
    """The part of the master's admin client that is used."""

    async def segments(self) -> Sequence[Segment]:
        """All memory that stores have given to the pool."""


class PoolSize:
    """Looks when it is used, and makes nobody wait: until the answer is here, the last one holds."""

    def __init__(self, master: Sized) -> None:
        self._master = master
        self.tell: Callable[[int], None] = lambda pool: None
        """Told the bytes of the pool, each time they were asked for."""
        self._next = float("-inf")
        self._looking: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Asks the master, if it is time to."""
        now = time.monotonic()
        if self._looking is None and now >= self._next:
            self._next = now + RETRY_SECONDS
            self._looking = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        try:
            segments = await self._master.segments()
        except AdminError:
            counters.add("moonmesh_pool_size_errors_total")  # the last size stands
        else:
            self.tell(sum(segment.size for segment in segments if segment.ok))
            self._next = time.monotonic() + REFRESH_SECONDS
        finally:
            self._looking = None
