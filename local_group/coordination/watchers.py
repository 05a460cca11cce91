"""Watchers of a configuration that this process holds in memory: file and Raft."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping

from local_group.coordination.base import Changed, Listed

PENDING_MAX = 4096
"""Changes that wait for one watcher; beyond, it is told to list all of it again."""


class Watchers:
    """Tells changes to every watcher. Belongs to the thread of one event loop.

    Args:
        values: all that there is now.
    """

    def __init__(self, values: Callable[[], Mapping[str, bytes]]) -> None:
        self._values = values
        self._watchers: set[_Watcher] = set()

    def changed(self, key: str, value: bytes | None) -> None:
        """A key has this value now."""
        for watcher in self._watchers:
            watcher.add(Changed(key, value))

    def replaced(self) -> None:
        """Everything may have changed."""
        for watcher in self._watchers:
            watcher.start_over()

    async def watch(self, prefix: str) -> AsyncIterator[Listed | Changed]:
        """See `Coordination.watch`."""
        watcher = _Watcher(prefix)
        self._watchers.add(watcher)
        try:
            while True:
                while watcher.behind or watcher.pending:
                    if watcher.behind:
                        watcher.behind = False
                        values = {k: v for k, v in self._values().items() if k.startswith(prefix)}
                        yield Listed(values)
                    else:
                        yield watcher.pending.popleft()
                watcher.news.clear()
                await watcher.news.wait()
        finally:
            self._watchers.discard(watcher)


class _Watcher:
    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.pending: deque[Changed] = deque()
        self.behind = True
        self.news = asyncio.Event()

    def add(self, change: Changed) -> None:
        if self.behind or not change.key.startswith(self.prefix):
            return  # a listing that is still to come has it
        if len(self.pending) >= PENDING_MAX:
            self.start_over()
            return
        self.pending.append(change)
        self.news.set()

    def start_over(self) -> None:
        self.pending.clear()
        self.behind = True
        self.news.set()
