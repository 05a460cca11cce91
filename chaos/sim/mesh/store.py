"""A simulated Mooncake: what `mooncake_master` and its stores do with keys, space and leases.

`tests/conformance/test_native.py` holds it to the real one. Time comes in as a function; nothing here waits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

NO_SPACE: Final = -200
BAD: Final = -600
ABSENT: Final = -704
LEASED: Final = -706
RPC_FAIL: Final = -900
HIGH: Final = 0.9
"""Share of the pool above which there is eviction."""
ROUND: Final = 0.05
"""Share of the blocks that go in one round of it."""
ROUND_SECONDS: Final = 0.01
"""Between two looks of the master at how full it is."""


@dataclass(slots=True)
class _Object:
    data: bytes
    lease_until: float
    used: int


class Pool:
    """Blocks of one group.

    Args:
        capacity: bytes of all stores.
        lease: seconds.
        clock: seconds, monotonic.
        lost: told of each key that is not there any more, and whether it was removed by somebody (True), or
            evicted or lost with its store.

    Attributes:
        dead: its processes are gone: each call fails.
        full: nothing more is taken, whatever there is room for.
    """

    def __init__(
        self,
        capacity: int,
        lease: float,
        clock: Callable[[], float],
        lost: Callable[[str, bool], None] = lambda key, removed: None,
    ) -> None:
        self.capacity = capacity
        self.lease = lease
        self.used = 0
        self.dead = False
        self.full = False
        self._clock = clock
        self._lost = lost
        self._objects: dict[str, _Object] = {}
        self._uses = 0
        self._wanted = False
        """There was no room for something: there is eviction, however full it is."""
        self._next_round = float("-inf")

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: str) -> bool:
        """Whether it is here now; takes no lease."""
        self._evict()
        return key in self._objects

    def peek(self, key: str) -> bytes | None:
        """Its bytes; takes no lease."""
        found = self._objects.get(key)
        return None if found is None else found.data

    def listing(self) -> list[str]:
        """All keys that are here, as the master lists them."""
        self._evict()
        return list(self._objects)

    def size(self, key: str) -> int | None:
        """The lease-free question to the master; None if it is not here."""
        self._evict()
        found = self._objects.get(key)
        return None if found is None else len(found.data)

    @property
    def leased(self) -> int:
        """Bytes that cannot be evicted now."""
        now = self._clock()
        return sum(len(o.data) for o in self._objects.values() if o.lease_until > now)

    def put(self, key: str, data: bytes) -> int:
        """0, or a code. A second put of a key returns 0 and changes nothing."""
        if self.dead:
            return RPC_FAIL
        if not key or not data:
            return BAD
        self._evict()
        if key in self._objects:
            return 0
        if self.full or self.used + len(data) > self.capacity:
            self._wanted = True
            return NO_SPACE
        self._uses += 1
        self._objects[key] = _Object(bytes(data), float("-inf"), self._uses)
        self.used += len(data)
        return 0

    def get(self, key: str, room: int) -> bytes | int:
        """The block, or a code. It is leased from now on."""
        if self.dead:
            return RPC_FAIL
        found = self._touch(key)
        if found is None:
            return ABSENT
        return found.data if len(found.data) <= room else BAD

    def exists(self, key: str) -> int:
        """1, 0 or a code. What exists is leased from now on."""
        if self.dead:
            return RPC_FAIL
        return int(self._touch(key) is not None)

    def remove(self, key: str, force: bool) -> int:
        """0, or a code: what is leased stays, unless it is forced."""
        if self.dead:
            return RPC_FAIL
        found = self._objects.get(key)
        if found is None:
            return ABSENT
        if found.lease_until > self._clock() and not force:
            return LEASED
        self._drop(key, removed=True)
        return 0

    def lose_all(self) -> None:
        """Its stores are gone, and others are there."""
        for key in list(self._objects):
            self._drop(key)

    def evict_all(self) -> None:
        """All that is not leased goes."""
        now = self._clock()
        for key in [key for key, each in self._objects.items() if each.lease_until <= now]:
            self._drop(key)

    def _touch(self, key: str) -> _Object | None:
        self._evict()
        found = self._objects.get(key)
        if found is not None:
            self._uses += 1
            found.used = self._uses
            found.lease_until = self._clock() + self.lease
        return found

    def _evict(self) -> None:
        """What the master does beside all calls, as far as anybody can see it."""
        now = self._clock()
        while (self._wanted or self.used > HIGH * self.capacity) and now >= self._next_round:
            self._next_round = now + ROUND_SECONDS
            self._wanted = False
            free = [(o.used, key) for key, o in self._objects.items() if o.lease_until <= now]
            free.sort()
            for _, key in free[: max(1, int(ROUND * len(self._objects)))]:
                self._drop(key)
            if not free:
                return

    def _drop(self, key: str, *, removed: bool = False) -> None:
        self.used -= len(self._objects.pop(key).data)
        self._lost(key, removed)


class PoolNative:
    """A pool with the calls of `local_group.native.Native`: for the conformance tests."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.closed = False

    def get(self, keys: Sequence[str], ptrs: Sequence[int], sizes: Sequence[int]) -> list[int]:
        self._check()
        if not len(keys) == len(ptrs) == len(sizes):
            return [BAD] * len(keys)
        found: list[int] = []
        for key, ptr, size in zip(keys, ptrs, sizes, strict=True):
            data = self.pool.get(key, size)
            if isinstance(data, bytes):
                ctypes.memmove(ptr, data, len(data))
            found.append(len(data) if isinstance(data, bytes) else data)
        return found

    def put(
        self, keys: Sequence[str], ptrs: Sequence[int], sizes: Sequence[int], replicate: object
    ) -> list[int]:
        self._check()
        return [
            self.pool.put(key, ctypes.string_at(ptr, size))
            for key, ptr, size in zip(keys, ptrs, sizes, strict=True)
        ]

    def exists(self, keys: Sequence[str]) -> list[int]:
        self._check()
        return [self.pool.exists(key) for key in keys]

    def remove(self, keys: Sequence[str], force: bool) -> list[int]:
        self._check()
        return [self.pool.remove(key, force) for key in keys]

    def register(self, ptr: int, size: int) -> int:
        return 0

    def unregister(self, ptr: int) -> int:
        return 0

    def close(self) -> None:
        self.closed = True

    def _check(self) -> None:
        from local_group.native import StoreClosed

        if self.closed:
            raise StoreClosed
