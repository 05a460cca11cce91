"""Version vectors: the newest statement of each group that somebody has.

A group's entry is written by that group alone, so `(epoch, seq)` orders its statements totally.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple


class Version(NamedTuple):
    """A place in the history of one group's statements; compares by epoch, then by seq."""

    epoch: int
    seq: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.seq}"


class VersionVector(Mapping[str, Version]):
    """`{group: Version}`, immutable. No operation moves an entry backwards.

    `merge` is commutative, associative and idempotent, so vectors may meet in any order, any number
    of times.
    """

    __slots__ = ("_entries",)

    def __init__(self, entries: Mapping[str, Version] | Iterable[tuple[str, Version]] = ()) -> None:
        self._entries: Mapping[str, Version] = MappingProxyType(dict(entries))

    def __getitem__(self, group: str) -> Version:
        return self._entries[group]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VersionVector) and self._entries == other._entries

    def __hash__(self) -> int:
        return hash(frozenset(self._entries.items()))

    def __repr__(self) -> str:
        inner = ", ".join(f"{group}: {self[group]}" for group in sorted(self))
        return f"VersionVector({inner})"

    def is_newer(self, group: str, version: Version) -> bool:
        """Whether `version` of `group` is newer than what this vector has."""
        known = self._entries.get(group)
        return known is None or version > known

    def advance(self, group: str, version: Version) -> VersionVector:
        """This vector with `group` at `version`; itself where that would not be an advance."""
        if not self.is_newer(group, version):
            return self
        return VersionVector({**self._entries, group: version})

    def merge(self, other: VersionVector) -> VersionVector:
        """The newer entry of each group."""
        merged = dict(self._entries)
        for group, version in other.items():
            if self.is_newer(group, version):
                merged[group] = version
        return VersionVector(merged)

    def dominates(self, other: VersionVector) -> bool:
        """Whether this vector has everything that `other` has (equal ones dominate each other)."""
        return not missing(other, self)


def missing(ours: VersionVector, theirs: VersionVector) -> tuple[str, ...]:
    """The groups, sorted, of which `ours` has a newer statement than `theirs`: what they lack."""
    return tuple(sorted(g for g, version in ours.items() if theirs.is_newer(g, version)))
