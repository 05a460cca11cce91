"""What engines ask for: chains of Mooncake's own trace, spread over the groups of a world at random."""

from __future__ import annotations

from functools import lru_cache
from random import Random
from typing import Final

from federation.bench.trace import packaged_trace, read_trace

CHAIN_MAX: Final = 12
"""Blocks of one chain: of a trace's chain those at its beginning, which are what others share."""
REPEATED: Final = 0.3
"""Share of requests that go on where one of the last ones has been, as a conversation does."""
LATELY: Final = 40


@lru_cache(maxsize=1)
def _chains() -> tuple[tuple[str, ...], ...]:
    requests = read_trace(packaged_trace())
    return tuple(tuple(f"b{block}" for block in r.blocks[:CHAIN_MAX]) for r in requests)


class Workload:
    """The requests of a world, in the order in which whichever engine asks for the next one.

    Args:
        namespaces: fingerprints: each request is in one of them.
    """

    def __init__(self, random: Random, namespaces: list[bytes]) -> None:
        self._random = random
        self._namespaces = namespaces
        self._chains = _chains()
        self._at = random.randrange(len(self._chains))
        self._lately: list[tuple[bytes, tuple[str, ...]]] = []

    def next(self) -> tuple[bytes, list[str]]:
        """A namespace and a chain."""
        random = self._random
        if self._lately and random.random() < REPEATED:
            fingerprint, chain = random.choice(self._lately)
            return fingerprint, list(chain)
        self._at = (self._at + 1) % len(self._chains)
        chosen = (random.choice(self._namespaces), self._chains[self._at])
        self._lately.append(chosen)
        del self._lately[:-LATELY]
        return chosen[0], list(chosen[1])
