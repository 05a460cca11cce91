"""Where a watch of etcd stands, without IO: what to tell, and where to go on after a break."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeVar


class Event(Protocol):
    """What is needed of an etcd event: `kv.mod_revision`."""

    @property
    def kv(self) -> KeyValue:
        """Its key and value."""


class KeyValue(Protocol):
    """Of etcd: only the revision matters here."""

    @property
    def mod_revision(self) -> int:
        """When it was changed."""


E = TypeVar("E", bound=Event)


@dataclass
class Position:
    """Where a watch stands.

    A watch goes on after the last event that was told, and not after the revision that a response was
    sent at: what etcd had not sent yet would be lost. A response that comes in fragments may cut the
    events of one revision in two; those are told together, so that no break can come between.

    Attributes:
        next: the revision to ask from.
    """

    next: int
    _held: list[object] = field(default_factory=list)

    def take(self, events: Iterable[E], *, fragment: bool) -> Iterator[E]:
        """The events that can be told, in order. Each counts as told once it was given out.

        Args:
            events: of one response.
            fragment: more fragments of the same response follow.
        """
        held: list[E] = [*self._held, *events]  # type: ignore[list-item]
        last = held[-1].kv.mod_revision if held else 0
        count = len(held)
        if fragment:
            count = sum(1 for event in held if event.kv.mod_revision < last)
        self._held = list(held[count:])
        for event in held[:count]:
            if event.kv.mod_revision < self.next:
                continue
            yield event
        if count:
            self.next = max(self.next, held[count - 1].kv.mod_revision + 1)

    def broken(self) -> None:
        """The stream has ended: what was held comes again."""
        self._held = []
