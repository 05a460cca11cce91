"""The bounce path for asyncio callers: the same machinery, and nothing that blocks the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import numpy as np

from local_group import outcome as codes
from local_group.arguments import cut, screen
from local_group.bounce import BounceMemory
from local_group.calls import Call, Workers
from local_group.copying import copy_blocks, layout
from local_group.gate import Gate, ended
from local_group.native import Native, Replicate
from local_group.outcome import Outcome, Status, failed
from local_group.store_config import StoreLimits

_LATE = failed(codes.DEADLINE_PASSED)


class ReadBatch:
    """Blocks that were read, where they are: in bounce memory. Use it in an `async with`, or call
    `release`.

    Attributes:
        outcomes: per key, in the order asked.
    """

    def __init__(
        self,
        outcomes: list[Outcome],
        views: list[memoryview | None] | None = None,
        give_back: Callable[[], None] | None = None,
    ) -> None:
        self.outcomes = outcomes
        self._views = views if views is not None else [None] * len(outcomes)
        self._give_back = give_back

    def view(self, i: int) -> memoryview:
        """Block i, read-only, no copy; valid until `release`. Only if `outcomes[i]` is a HIT."""
        view = self._views[i]
        if view is None:
            raise ValueError(f"block {i} has no bytes: {self.outcomes[i].error_name}, or released")
        return view

    def release(self) -> None:
        """Invalidates the views and gives the memory back. Idempotent.

        A slice of a view, or an array made from one, is not invalidated with it, and must not be
        used any more: the memory is the next call's.
        """
        for i, view in enumerate(self._views):
            if view is not None:
                view.release()
                self._views[i] = None
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()

    async def __aenter__(self) -> ReadBatch:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()

    def __enter__(self) -> ReadBatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _address(item: bytes | memoryview) -> int:
    return cast(int, np.frombuffer(item, dtype=np.uint8).__array_interface__["data"][0])


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _Bell:
    """Lets another thread end a wait of the running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()

    def ring(self) -> None:
        """From any thread."""
        try:
            self._loop.call_soon_threadsafe(_wake, self._future)
        except RuntimeError:
            return  # the loop is closed: nobody waits any more

    async def wait(self, seconds: float) -> bool:
        """Whether it rang within that time."""
        done, _ = await asyncio.wait({self._future}, timeout=max(0.0, seconds))
        return bool(done)


class AsyncCalls:
    """`read`, `write` and `write_in_place`; the rest of the client is `StoreClient`."""

    _native: Native
    _limits: StoreLimits
    _clock: Callable[[], float]
    _gate: Gate
    _memory: BounceMemory
    _getters: Workers
    _putters: Workers

    async def read(self, keys: Sequence[str], sizes: Sequence[int], timeout: float) -> ReadBatch:
        """Reads blocks of at most `sizes[i]` bytes into bounce memory, within `timeout` seconds.

        All of them at once: what goes beyond `window_bytes` or `window_keys`, in the order given,
        is ERROR with BOUNCE_EXCEEDED. If the awaiting task is cancelled, the memory stays
        quarantined until Mooncake has returned.
        """
        deadline = self._clock() + timeout
        self._gate.enter()
        try:
            batch = await self._read(keys, sizes, deadline)
            self._gate.count("get", batch.outcomes)
            return batch
        finally:
            self._gate.leave()

    async def _read(self, keys: Sequence[str], sizes: Sequence[int], deadline: float) -> ReadBatch:
        n = len(keys)
        if not n:
            return ReadBatch([])
        bad = screen(keys, [1] * n, sizes, self._limits.window_bytes)
        if bad is not None:
            # The caller asks for what it has listed: one bad argument is an error of the program.
            return ReadBatch([bad.get(i, failed(codes.NOT_TRIED)) for i in range(n)])
        _, stop = next(cut(sizes, self._limits.window_bytes, self._limits.window_keys))
        rest = [failed(codes.BOUNCE_EXCEEDED)] * (n - stop)
        keys, sizes = keys[:stop], sizes[:stop]
        offsets, total = layout(sizes)
        span = await self._room_async(total, deadline)
        if isinstance(span, Outcome):
            return ReadBatch([span] * stop + rest)
        base = self._memory.address + span
        places = [base + offset for offset in offsets]
        give_back = partial(self._memory.give, span)
        call = Call(lambda: self._native.get(keys, places, sizes), deadline, total, give_back)
        results = await self._run_async(self._getters, call, total)
        if isinstance(results, Outcome):
            return ReadBatch([results] * stop + rest)
        outcomes = codes.of_get(results)
        views = [
            self._memory.view(span + offset, outcome.size).toreadonly()
            if outcome.status is Status.HIT
            else None
            for offset, outcome in zip(offsets, outcomes, strict=True)
        ]
        return ReadBatch(outcomes + rest, views + [None] * len(rest), give_back)

    async def write(
        self,
        items: Sequence[tuple[str, bytes | memoryview]],
        timeout: float,
        replicate: Replicate | None = None,
    ) -> list[Outcome]:
        """Writes blocks within `timeout` seconds; as `put_from`. The bytes are copied on a worker
        before Mooncake sees them; a call that is overdue or cancelled during the copy never reaches
        Mooncake, so no torn block is ever stored."""
        return await self._write(items, timeout, replicate, in_place=False)

    async def write_in_place(
        self,
        items: Sequence[tuple[str, bytes | memoryview]],
        timeout: float,
        replicate: Replicate | None = None,
    ) -> list[Outcome]:
        """As `write`, without the copy: Mooncake reads the bytes where they are.

        They must never change. Their memory stays as it is for as long as a call may touch it, also one that
        is overdue or whose caller is gone: the call itself holds on to the views. Over anything but TCP
        the memory has to be registered (`register_buffer`).
        """
        return await self._write(items, timeout, replicate, in_place=True)

    async def _write(
        self,
        items: Sequence[tuple[str, bytes | memoryview]],
        timeout: float,
        replicate: Replicate | None,
        *,
        in_place: bool,
    ) -> list[Outcome]:
        deadline = self._clock() + timeout
        write = self._put_in_place if in_place else self._write_window
        self._gate.enter()
        try:
            if not items:
                return []
            keys = [key for key, _ in items]
            sizes = [len(item) for _, item in items]
            limits = self._limits
            bad = screen(keys, [1] * len(items), sizes, limits.window_bytes) or {}
            good = [i for i in range(len(items)) if i not in bad]
            outcomes: list[Outcome] = []
            good_sizes = [sizes[i] for i in good]
            for a, b in cut(good_sizes, limits.window_bytes, limits.window_keys):
                part = good[a:b]
                outcomes += await write(
                    [keys[i] for i in part], [items[i][1] for i in part], deadline, replicate
                )
            if bad:
                found = iter(outcomes)
                outcomes = [bad[i] if i in bad else next(found) for i in range(len(items))]
            self._gate.count("put", outcomes)
            return outcomes
        finally:
            self._gate.leave()

    async def _write_window(
        self,
        keys: list[str],
        items: list[bytes | memoryview],
        deadline: float,
        replicate: Replicate | None,
    ) -> list[Outcome]:
        sizes = [len(item) for item in items]
        offsets, total = layout(sizes)
        span = await self._room_async(total, deadline)
        if isinstance(span, Outcome):
            return [span] * len(keys)
        base = self._memory.address + span
        places = [base + offset for offset in offsets]

        def prepare() -> None:
            # To its end, deadline or not: a call that is abandoned meanwhile is not sent.
            sources = [_address(item) for item in items]
            copy_blocks(places, sources, sizes, float("inf"), self._clock)

        call = Call(
            lambda: self._native.put(keys, places, sizes, replicate),
            deadline,
            total,
            partial(self._memory.give, span),
            prepare,
        )
        results = await self._run_async(self._putters, call, total)
        if isinstance(results, Outcome):
            return [results] * len(keys)
        self._memory.give(span)
        return codes.of_put(results, sizes)

    async def _put_in_place(
        self,
        keys: list[str],
        items: list[bytes | memoryview],
        deadline: float,
        replicate: Replicate | None,
    ) -> list[Outcome]:
        if not self._gate.admit(meta=False):
            return [failed(codes.BREAKER_OPEN)] * len(keys)
        sizes = [len(item) for item in items]

        def put() -> list[int]:
            # From here `items` stay: the call has this function for as long as it is inside Mooncake.
            places = [_address(item) for item in items]
            return self._native.put(keys, places, sizes, replicate)

        results = await self._run_async(self._putters, Call(put, deadline), sum(sizes))
        if isinstance(results, Outcome):
            return [results] * len(keys)
        return codes.of_put(results, sizes)

    async def _room_async(self, size: int, deadline: float) -> int | Outcome:
        if not self._gate.admit(meta=False):
            return failed(codes.BREAKER_OPEN)
        offset = self._memory.take(size)
        if offset is not None:
            return offset
        bell = _Bell()
        waiter = self._memory.wait_in_line(size, bell.ring)
        if waiter is None:
            self._gate.no_verdict(meta=False)
            return failed(codes.QUEUE_FULL)
        try:
            if waiter.offset is None:
                await bell.wait(deadline - self._clock())
        except asyncio.CancelledError:
            self._memory.leave_line(waiter)
            self._gate.no_verdict(meta=False)
            raise
        if waiter.offset is None:
            # It may be granted until this very line; `leave_line` gives that back.
            self._memory.leave_line(waiter)
            self._gate.no_verdict(meta=False)
            return _LATE
        return waiter.offset

    async def _run_async(self, workers: Workers, call: Call, size: int) -> list[int] | Outcome:
        bell = _Bell()
        call.on_end = bell.ring
        refused = workers.submit(call)
        if refused is None:
            try:
                rang = await bell.wait(call.deadline - self._clock())
            except asyncio.CancelledError:
                if workers.abandon(call) and call.give_back is not None:
                    call.give_back()
                self._gate.no_verdict(meta=False)
                raise
            if not rang and not workers.abandon(call):
                self._gate.overdue(False, call.began)
                return _LATE
        return ended(self._gate, call, refused, size, meta=False)
