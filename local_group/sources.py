"""Where blocks came from, each told once: a block's record holds its number."""

from __future__ import annotations

from typing import NamedTuple

SOURCES_MAX = 65_536
"""Groups, with their epochs and hops, of which blocks can be held at a time: a number has 16 bits."""


class Source(NamedTuple):
    """Where a block came from."""

    origin: str
    """A group; or what `local_group.holdings` says of its own blocks."""
    epoch: int
    """Epoch of that group when the block came; 0 for our own."""
    hops: int
    """Group borders it has crossed; 0 for our own."""


class Sources:
    """Numbers of sources, for as long as something is from them."""

    def __init__(self) -> None:
        self._sources: list[Source | None] = []
        self._uses: list[int] = []
        self._numbers: dict[Source, int] = {}
        self._free: list[int] = []

    def __getitem__(self, number: int) -> Source:
        source = self._sources[number]
        assert source is not None
        return source

    def take(self, source: Source) -> int | None:
        """The number of a source of which there is one block more; None where there are too many sources."""
        number = self._numbers.get(source)
        if number is None:
            if self._free:
                number = self._free.pop()
                self._sources[number] = source
            elif len(self._sources) < SOURCES_MAX:
                number = len(self._sources)
                self._sources.append(source)
                self._uses.append(0)
            else:
                return None
            self._numbers[source] = number
        self._uses[number] += 1
        return number

    def give(self, number: int) -> None:
        """There is one block less of it."""
        self._uses[number] -= 1
        if not self._uses[number]:
            del self._numbers[self[number]]
            self._sources[number] = None
            self._free.append(number)

    def origins(self) -> set[str]:
        """All of which there are blocks."""
        return {source.origin for source in self._numbers}
