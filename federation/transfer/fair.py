"""Who is next of those that wait, by class and by namespace; sans-IO.

`first_token` goes before the others. Among these each class has its weight, and within a class every
namespace the same: start-time fair queueing, so one that has not been served for long is next, and nobody
saves up a claim while it wants nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Generic, TypeVar

from moonmesh.v1 import pull_pb2


class PullClass(enum.IntEnum):
    """How urgent a pull is; a lower value is more so."""

    FIRST_TOKEN = pull_pb2.FIRST_TOKEN
    BATCH = pull_pb2.BATCH
    PREFETCH = pull_pb2.PREFETCH

    @classmethod
    def told(cls, value: int) -> PullClass:
        """As it is in a message. What is not said, or not known, is `BATCH`."""
        return cls(value) if value in (cls.FIRST_TOKEN, cls.BATCH, cls.PREFETCH) else cls.BATCH


WEIGHTS: Final[Mapping[PullClass, int]] = MappingProxyType(
    {PullClass.BATCH: 4, PullClass.PREFETCH: 1}
)
"""Of the classes below `first_token`, among themselves."""
FIRST_IN_A_ROW: Final = 8
"""Of `first_token` that go while others wait, before one of those does: nobody waits for ever."""
CLAIMS_KEPT: Final = 64
"""Flows that are remembered before those are forgotten which have no claim and no debt."""

K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=Hashable)


class VirtualTime(Generic[K]):
    """What each flow has had, as time that passes faster for those of less weight."""

    def __init__(self) -> None:
        self._now = 0.0
        self._ends: dict[K, float] = {}

    def next(self, flows: Iterable[K]) -> K:
        """Of the flows that want something, the one whose turn it is; the first of equals."""
        return min(flows, key=self._begins)

    def charge(self, flow: K, cost: float, weight: float = 1.0) -> None:
        """It was its turn, and it took so much."""
        self._now = self._begins(flow)
        self._ends[flow] = self._now + cost / weight
        if len(self._ends) > CLAIMS_KEPT:
            self._ends = {flow: end for flow, end in self._ends.items() if end > self._now}

    def _begins(self, flow: K) -> float:
        return max(self._now, self._ends.get(flow, 0.0))


class Fairness:
    """Shares among classes and, within each, among namespaces."""

    def __init__(self) -> None:
        self._classes: VirtualTime[PullClass] = VirtualTime()
        self._namespaces: dict[PullClass, VirtualTime[bytes]] = {
            each: VirtualTime() for each in PullClass
        }

    def next(self, wanting: Mapping[PullClass, Iterable[bytes]]) -> tuple[PullClass, bytes]:
        """Whose turn it is, of the namespaces of each class that want something."""
        pull_class = self._classes.next(wanting)
        return pull_class, self._namespaces[pull_class].next(wanting[pull_class])

    def charge(self, pull_class: PullClass, namespace: bytes, cost: float) -> None:
        """It was its turn, and it took so much."""
        if pull_class in WEIGHTS:  # else it did not take anybody's turn
            self._classes.charge(pull_class, cost, WEIGHTS[pull_class])
        self._namespaces[pull_class].charge(namespace, cost)


@dataclass(slots=True)
class _Entry:
    pull_class: PullClass
    namespace: bytes
    cost: float
    number: int


class FairQueue(Generic[T]):
    """Those that wait, in order of their turns; within a class and namespace in that of their coming.

    Args:
        most: that wait at once.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._entries: dict[T, _Entry] = {}
        self._lanes: dict[PullClass, dict[bytes, dict[T, None]]] = {each: {} for each in PullClass}
        self._fairness = Fairness()
        self._row = 0
        self._count = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, item: T) -> bool:
        return item in self._entries

    def count(self, pull_class: PullClass) -> int:
        """How many of a class wait."""
        return sum(map(len, self._lanes[pull_class].values()))

    def add(self, item: T, pull_class: PullClass, namespace: bytes, cost: float = 1.0) -> bool:
        """One more waits. False, and it does not, where there is no room."""
        if len(self._entries) >= self.most:
            return False
        self._count += 1
        self._entries[item] = _Entry(pull_class, namespace, cost, self._count)
        self._lanes[pull_class].setdefault(namespace, {})[item] = None
        return True

    def peek(self, allowed: Callable[[PullClass], bool] = lambda pull_class: True) -> T | None:
        """Whose turn it is among the classes that are allowed; the same one until something changes."""
        waiting = {c: lanes for c, lanes in self._lanes.items() if lanes and allowed(c)}
        if not waiting:
            return None
        first = waiting.get(PullClass.FIRST_TOKEN)
        if first is not None and len(waiting) > 1:
            if self._row < FIRST_IN_A_ROW:
                waiting = {PullClass.FIRST_TOKEN: first}
            else:
                del waiting[PullClass.FIRST_TOKEN]
        pull_class, namespace = self._fairness.next(waiting)
        return next(iter(waiting[pull_class][namespace]))

    def take(self, item: T) -> None:
        """It has its turn, and waits no longer."""
        entry = self._remove(item)
        self._fairness.charge(entry.pull_class, entry.namespace, entry.cost)
        others = len(self._entries) > self.count(PullClass.FIRST_TOKEN)
        self._row = self._row + 1 if entry.pull_class is PullClass.FIRST_TOKEN and others else 0

    def drop(self, item: T) -> bool:
        """It waits no longer; False if it did not."""
        if item not in self._entries:
            return False
        self._remove(item)
        return True

    def move(self, item: T, pull_class: PullClass) -> None:
        """It is of this class from now on, and stands among its like as it came."""
        entry = self._remove(item)
        entry.pull_class = pull_class
        self._entries[item] = entry
        lane = self._lanes[pull_class].setdefault(entry.namespace, {})
        lane[item] = None
        in_order = sorted(lane, key=lambda each: self._entries[each].number)
        lane.clear()
        lane.update(dict.fromkeys(in_order))

    def _remove(self, item: T) -> _Entry:
        entry = self._entries.pop(item)
        lanes = self._lanes[entry.pull_class]
        del lanes[entry.namespace][item]
        if not lanes[entry.namespace]:
            del lanes[entry.namespace]
        return entry
