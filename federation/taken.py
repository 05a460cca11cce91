"""What an engine was given of peers a short while ago, so that it need not write it back.

An engine backs up what it computed, and some cannot tell what they were given from what they computed.
A block that is written back would be a copy in this group after a single hit, whatever the policy says.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

TAKEN_BLOCKS: Final = 65_536
"""Blocks remembered at most; the oldest go first."""
TAKEN_SECONDS: Final = 60.0
"""How long: an engine backs up within seconds, and whoever held the block then may have lost it later."""


class Taken:
    """Keys and digests of blocks that came from peers; safe from any thread.

    Args:
        clock: monotonic seconds.
    """

    def __init__(
        self, blocks_max: int = TAKEN_BLOCKS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max = blocks_max
        self._clock = clock
        self._lock = threading.Lock()
        self._blocks: OrderedDict[str, tuple[bytes, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def note(self, key: str, digest: bytes) -> None:
        """This block was given to the engine."""
        with self._lock:
            now = self._clock()
            self._blocks[key] = (digest, now)
            self._blocks.move_to_end(key)
            while len(self._blocks) > self._max or self._oldest() < now - TAKEN_SECONDS:
                self._blocks.popitem(last=False)

    def _oldest(self) -> float:
        return next(iter(self._blocks.values()))[1]

    def forget(self, keys: Iterable[str]) -> None:
        """Nobody had these any more: what is written now was computed."""
        with self._lock:
            for key in keys if self._blocks else ():
                self._blocks.pop(key, None)

    def any_of(self, keys: Iterable[str]) -> bool:
        """Whether some of them were given: lately, as far as is known without a look at each."""
        return bool(self._blocks) and any(key in self._blocks for key in keys)

    def same(self, key: str, digest: bytes | None) -> bool:
        """Whether what is about to be written is what was given, lately."""
        found = self._blocks.get(key)
        return (
            found is not None and found[0] == digest and self._clock() - found[1] <= TAKEN_SECONDS
        )
