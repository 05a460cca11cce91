"""Requests of a trace as load: each engine goes through the same trace and takes what falls to its group."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from pathlib import Path

from federation.bench.trace import packaged_trace, read_trace

CHAIN_BLOCKS = 128
"""Of a longer prompt, its first blocks."""
REQUESTS_MAX = 100_000
"""Of a longer trace, its first requests."""


class Replayed:
    """The chains of one group's requests, in their order, over and over again.

    All engines draw alike which group a request falls to, so groups read what others have written
    without having to agree on anything. After the last request the trace begins anew, under other keys.

    Args:
        path: of the trace; empty for the one that comes with the package.
        groups: that the requests are shared out among.
        group: whose they are here.

    Raises:
        TraceError: it cannot be used.
    """

    def __init__(self, path: str, groups: Sequence[str], group: str) -> None:
        file = Path(path) if path else packaged_trace()
        self._chains = [r.blocks[:CHAIN_BLOCKS] for r in read_trace(file, REQUESTS_MAX)]
        self._groups = tuple(groups)
        self._group = group
        self._rng = random.Random(0)
        self._number = self._lap = 0
        self._lock = threading.Lock()

    def next(self) -> list[str]:
        """The keys of the next request of this group; from any thread."""
        with self._lock:
            while True:
                if self._number == len(self._chains):
                    self._number, self._lap = 0, self._lap + 1
                blocks = self._chains[self._number]
                self._number += 1
                if self._rng.choice(self._groups) == self._group:
                    return [f"trace.{self._lap}.{block}" for block in blocks]
