"""A simulated Mooncake as processes of a group reach it: with latency, deadlines and a breaker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple

from chaos.sim.mesh.store import Pool
from local_group import outcome as codes
from local_group.admin import Segment
from local_group.breaker import Breaker, BreakerLimits
from local_group.outcome import UNWELL, Outcome, failed
from local_group.process_errors import AdminError
from local_group.store import ReadBatch

CALL_SECONDS: Final = 0.0003
"""A call of a healthy Mooncake without its bytes."""
BYTES_PER_S: Final = 2e9
ADMIN_SECONDS: Final = 2.0
"""For which the master's admin HTTP is waited for."""
RPC_SECONDS: Final = 0.5
"""After which Mooncake's client gives up a master that does not answer."""


class Stats(NamedTuple):
    """The part of `StoreStats` that a gateway says of itself by."""

    breaker: str


@dataclass
class Mooncake:
    """A pool with how it is just now.

    Attributes:
        slow: what its calls take, in times of what they take when all is well.
        frozen: no call is answered.
    """

    pool: Pool
    slow: float = 1.0
    frozen: bool = False

    def seconds(self, size: int) -> float:
        """What a call takes that moves so many bytes."""
        if self.frozen:
            return float("inf")
        return self.slow * (CALL_SECONDS + size / BYTES_PER_S)


class SimStore:
    """The part of `local_group.store.StoreClient` that gateways use.

    Args:
        bounce: bytes of blocks that are read and not released.
    """

    def __init__(self, mooncake: Mooncake, rng: Random, bounce: int) -> None:
        self._mooncake = mooncake
        self._breaker = Breaker(BreakerLimits(), rng)
        self._bounce = bounce
        self.held = 0
        """Bytes of blocks that are read and not released."""

    def stats(self) -> Stats:
        return Stats(self._breaker.state(time.monotonic()).value)

    async def read(self, keys: Sequence[str], sizes: Sequence[int], timeout: float) -> ReadBatch:
        total = sum(sizes)
        if self.held + total > self._bounce:
            return ReadBatch([failed(codes.BOUNCE_EXCEEDED)] * len(keys))
        self.held += total
        given = False

        def give_back() -> None:
            nonlocal given
            if not given:
                given = True
                self.held -= total

        try:
            refused = await self._call(total, timeout)
            if refused is not None:
                give_back()
                return ReadBatch([refused] * len(keys))
            pool = self._mooncake.pool
            found = [pool.get(*each) for each in zip(keys, sizes, strict=True)]
        except BaseException:
            give_back()
            raise
        results = [len(each) if isinstance(each, bytes) else each for each in found]
        self._judge(results)
        views = [memoryview(each) if isinstance(each, bytes) else None for each in found]
        return ReadBatch(codes.of_get(results), views, give_back)

    async def write(
        self, items: Sequence[tuple[str, bytes | memoryview]], timeout: float
    ) -> list[Outcome]:
        sizes = [len(data) for _, data in items]
        copies = [(key, bytes(data)) for key, data in items]
        refused = await self._call(sum(sizes), timeout)
        if refused is not None:
            return [refused] * len(items)
        results = [self._mooncake.pool.put(*each) for each in copies]
        self._judge(results)
        return codes.of_put(results, sizes)

    async def write_in_place(
        self, items: Sequence[tuple[str, bytes | memoryview]], timeout: float
    ) -> list[Outcome]:
        """As `write`; the bytes are read where they are, at the end of the call: they must not change."""
        sizes = [len(data) for _, data in items]
        refused = await self._call(sum(sizes), timeout)
        if refused is not None:
            return [refused] * len(items)
        results = [self._mooncake.pool.put(key, bytes(data)) for key, data in items]
        self._judge(results)
        return codes.of_put(results, sizes)

    def remove(self, keys: Sequence[str], timeout: float, force: bool = False) -> list[Outcome]:
        """On a thread in production: here it is done at once."""
        if self._mooncake.frozen:
            return [failed(codes.DEADLINE_PASSED)] * len(keys)
        results = [self._mooncake.pool.remove(key, force) for key in keys]
        return [Outcome(codes.Status.HIT, 0, 0) if rc == 0 else failed(rc) for rc in results]

    async def _call(self, size: int, timeout: float) -> Outcome | None:
        """Waits for what a call takes; what it ends by if it is not made, or not answered."""
        if not self._breaker.allow(time.monotonic()):
            return failed(codes.BREAKER_OPEN)
        began = time.monotonic()
        seconds = self._mooncake.seconds(size)
        try:
            await asyncio.sleep(min(seconds, timeout))
        except asyncio.CancelledError:
            self._breaker.release(time.monotonic(), began)
            raise
        if seconds > timeout:
            self._breaker.failure(time.monotonic(), began)
            return failed(codes.DEADLINE_PASSED)
        return None

    def _judge(self, results: Iterable[int]) -> None:
        now = time.monotonic()
        unwell = any(rc in UNWELL for rc in results)
        (self._breaker.failure if unwell else self._breaker.success)(now)


class SimAdmin:
    """The part of `local_group.admin.AdminClient` that gateways use."""

    def __init__(self, mooncake: Mooncake) -> None:
        self._mooncake = mooncake

    async def segments(self) -> list[Segment]:
        await self._call()
        pool = self._mooncake.pool
        return [Segment("s", "h:1", pool.capacity, pool.used, "OK")]

    async def query(self, keys: Iterable[str]) -> dict[str, int | None]:
        asked = list(keys)
        await self._call()
        sizes = ((key, self._mooncake.pool.size(key)) for key in asked)
        return {key: size for key, size in sizes if size is not None}

    async def list_keys(self, take: Callable[[list[bytes]], None], max_bytes: int = 1 << 28) -> int:
        await self._call()
        lines = [key.encode() for key in self._mooncake.pool.listing()]
        await self._call()
        take(lines)
        return sum(map(len, lines))

    async def _call(self) -> None:
        seconds = self._mooncake.seconds(0)
        await asyncio.sleep(min(seconds, ADMIN_SECONDS))
        if seconds > ADMIN_SECONDS or self._mooncake.pool.dead:
            raise AdminError("no answer", where="the master")
