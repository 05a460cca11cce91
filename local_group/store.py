"""The store client behind deadlines: the real Mooncake, a status per key, nothing that hangs.

Memory that a Mooncake call may still touch is not reused. Two paths follow from it:

- *bounce* (`get_into`, `put_from`, `read`, `write`, and `exists`, `remove`): a hard deadline. The
  call runs on a worker thread and on our own memory; when it is overdue it is left behind with
  both, and they come back when it does. The caller's memory is touched by the caller's own thread
  only, and never after return.
- *direct* (`get_into_direct`, `put_from_direct`): zero copies, on the caller's memory, in the
  caller's thread. Never abandoned: it ends when Mooncake ends it.

Lists of one call have equal lengths; pointers must stay valid until return: a pointer to freed
memory is a segmentation fault and cannot be checked here.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence

from local_group import outcome as codes
from local_group.arguments import cut, screen
from local_group.bounce import BounceMemory
from local_group.calls import Workers
from local_group.exit_guard import watch
from local_group.gate import Gate, StoreStats
from local_group.native import Native, Replicate, StoreClosed, StoreError
from local_group.outcome import Outcome, Status, failed
from local_group.stalls import Watch
from local_group.store_async import AsyncCalls, ReadBatch
from local_group.store_bounce import BounceCalls
from local_group.store_config import StoreLimits, StoreSettings

__all__ = [
    "Outcome",
    "ReadBatch",
    "Replicate",
    "Status",
    "StoreClient",
    "StoreClosed",
    "StoreError",
    "StoreLimits",
    "StoreSettings",
    "StoreStats",
]

_INVALID = failed(codes.INVALID_PARAMS)


class StoreClient(BounceCalls, AsyncCalls):
    """See the module. Thread-safe. Make it with `connect`."""

    def __init__(
        self,
        native: Native,
        limits: StoreLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._native = native
        self._limits = limits
        self._clock = clock
        self._watch = Watch(clock)
        self._gate = Gate(limits, clock, self._watch.lost, self._watch.wake)
        self._watch.start(self._gate.idle)
        self._closing = False
        self._closed_well = False
        tally = self._gate.tally
        watch(tally)
        self._memory = BounceMemory(limits.bounce_bytes, limits.waiters_max)
        code = native.register(self._memory.address, self._memory.size)
        if code != 0:
            self._watch.stop()
            raise StoreError(
                f"Mooncake refused {self._memory.size} bytes of bounce memory: code {code}",
                hint="lower bounce_bytes, or raise the limit of locked memory (ulimit -l)",
            )
        shared = limits.queue_max, tally, limits.proof_s, limits.stall_s, clock
        self._getters = Workers("store-get", limits.workers_get, *shared)
        self._putters = Workers("store-put", limits.workers_put, *shared)
        self._askers = Workers("store-meta", limits.workers_meta, *shared)

    @classmethod
    def connect(cls, settings: StoreSettings, limits: StoreLimits | None = None) -> StoreClient:
        """Connects to Mooncake. Raises `StoreError`.

        Takes 0.1 s with a healthy master. Mooncake holds the interpreter's lock meanwhile: with a
        frozen master no Python code of this process runs for 0.7 s.
        """
        return cls(Native(settings), limits or StoreLimits())

    def __repr__(self) -> str:
        stats = self.stats()
        return (
            f"StoreClient(closed={self._gate.tally.closed}, breaker={stats.breaker}, "
            f"active={stats.active}, stuck={stats.stuck})"
        )

    def __enter__(self) -> StoreClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Direct path

    def get_into_direct(
        self, keys: Sequence[str], ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[Outcome]:
        """As `get_into`, with no copy and no deadline: it returns when Mooncake does.

        The memory should be registered (`register_buffer`); over TCP it need not be. The longest it
        takes with the default settings, measured: 3.4 s with a store node frozen, 0.5 s with the
        master frozen, 4.3 s with the master killed (Mooncake reconnects, and no setting shortens
        it). The breaker makes the next calls return at once. The first calls, until bytes have
        moved, take the bounce path with a deadline of `first_contact_s`, and so do those after the
        breaker has opened. A node that joins later and freezes before the first contact can still
        hold a call for 62 s.
        """
        return self._direct("get", keys, ptrs, sizes, None)

    def put_from_direct(
        self,
        keys: Sequence[str],
        ptrs: Sequence[int],
        sizes: Sequence[int],
        replicate: Replicate | None = None,
    ) -> list[Outcome]:
        """As `put_from`, with no copy and no deadline; see `get_into_direct`."""
        return self._direct("put", keys, ptrs, sizes, replicate)

    def _direct(
        self,
        name: str,
        keys: Sequence[str],
        ptrs: Sequence[int],
        sizes: Sequence[int],
        replicate: Replicate | None,
    ) -> list[Outcome]:
        gate, native, limits = self._gate, self._native, self._limits
        if not gate.warm and max(sizes, default=0) <= limits.window_bytes:
            if name == "get":
                return self.get_into(keys, ptrs, sizes, limits.first_contact_s)
            return self.put_from(keys, ptrs, sizes, limits.first_contact_s, replicate)
        gate.enter()
        try:
            if not keys:
                return []
            if screen(keys, ptrs, sizes, sys.maxsize) is not None:
                outcomes = [_INVALID] * len(keys)
                gate.count(name, outcomes)
                return outcomes
            outcomes = []
            for a, b in cut(sizes, limits.direct_bytes, limits.direct_keys):
                if not gate.admit(meta=False):
                    code = codes.NOT_TRIED if outcomes else codes.BREAKER_OPEN
                    outcomes += [failed(code)] * (len(keys) - a)
                    break
                part = keys[a:b], ptrs[a:b], sizes[a:b]
                began = self._clock()
                try:
                    results = native.get(*part) if name == "get" else native.put(*part, replicate)
                except (TypeError, ValueError):
                    gate.no_verdict(meta=False)
                    results = [codes.INVALID_PARAMS] * (b - a)
                    seconds = 0.0
                else:
                    ended = self._clock()
                    seconds = ended - began
                    gate.verdict(False, results, began, ended, sum(part[2]))
                outcomes += (
                    codes.of_get(results) if name == "get" else codes.of_put(results, part[2])
                )
                # Some or all transfers failed, and slowly: each further part would make the caller
                # wait as long again.
                if seconds > limits.slow_call_s / 2 and not codes.UNWELL.isdisjoint(results):
                    outcomes += [failed(codes.NOT_TRIED)] * (len(keys) - b)
                    break
            gate.count(name, outcomes)
            return outcomes
        finally:
            gate.leave()

    def unsettled(self) -> bool:
        """Whether a put that Mooncake has acknowledged may not be there: some call of this client
        hangs inside Mooncake, or has hung lately.

        A put that another client gave up while the master stood still begins when the master goes on, and
        never ends. For as long as the master keeps its place, a put of the same key is told that the
        key exists, and answers 0. `exists` says no to such a key.
        """
        tally = self._gate.tally
        with tally.lock:
            return tally.stuck > 0 or (self._clock() - tally.stalled_at < self._limits.unsettled_s)

    def register_buffer(self, ptr: int, size: int) -> int:
        """Registers memory for the direct path. Mooncake's code: 0, or -600."""
        self._gate.enter()
        try:
            return self._native.register(ptr, size) if ptr > 0 and size > 0 else -600
        finally:
            self._gate.leave()

    def unregister_buffer(self, ptr: int) -> int:
        """Ends a registration. Mooncake's code: 0, or -600."""
        self._gate.enter()
        try:
            return self._native.unregister(ptr) if ptr > 0 else -600
        finally:
            self._gate.leave()

    # Life

    def stats(self) -> StoreStats:
        """A snapshot; works after `close` too."""
        queued = len(self._getters) + len(self._putters) + len(self._askers)
        return self._gate.stats(queued, self._memory.used_bytes, self._memory.size)

    def close(self, timeout: float = 5.0) -> bool:
        """Ends the client; every later call raises `StoreClosed`. Idempotent: another `close`
        answers at once what came of the first.

        Waits up to `timeout` seconds for the calls in flight, then lets Mooncake close, for up to
        `close_s`. That took up to 1 s, during which Mooncake holds the interpreter's lock. If a
        call is still inside Mooncake by then, the C++ object is left alone for the rest of the
        process's life: closing it under that call is a segmentation fault.

        Returns:
            True when Mooncake was closed, False when it was left behind.
        """
        tally = self._gate.tally
        with tally.lock:
            if self._closing:
                return self._closed_well
            self._closing = tally.closed = True
            quiet = tally.idle.wait_for(lambda: not (tally.active or tally.running), timeout)
            if quiet:
                tally.running += 1  # the close itself is a call inside Mooncake
        self._watch.stop()
        for workers in (self._getters, self._putters, self._askers):
            workers.stop()
        if not quiet:
            keep_forever(self._memory)
            self._native.leak()
            return False

        def close() -> None:
            try:
                self._native.close()
            finally:
                with tally.lock:
                    tally.running -= 1

        closer = threading.Thread(target=close, name="store-close", daemon=True)
        closer.start()
        closer.join(self._limits.close_s)
        if closer.is_alive():
            keep_forever(self._memory)
            return False
        self._closed_well = True
        return True


_KEPT: list[BounceMemory] = []


def keep_forever(memory: BounceMemory) -> None:
    """Memory that Mooncake may still write to is never unmapped."""
    _KEPT.append(memory)
