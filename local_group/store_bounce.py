"""The bounce path for threads: a hard deadline, at the price of one copy.

See `local_group.store` for the rule, `local_group.calls` for the calls that are left behind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from operator import gt

from local_group import outcome as codes
from local_group.arguments import are_keys, cut, screen
from local_group.bounce import BounceMemory
from local_group.calls import Call, CallState, Workers
from local_group.copying import copy_blocks, layout
from local_group.gate import Gate, ended
from local_group.native import Native, Replicate
from local_group.outcome import Outcome, failed
from local_group.store_config import StoreLimits

Named = Callable[[Sequence[str]], list[str]]

_LATE = failed(codes.DEADLINE_PASSED)
_INVALID = failed(codes.INVALID_PARAMS)


class BounceCalls:
    """`get_into`, `put_from`, `exists`, `remove`; the rest of the client is `StoreClient`."""

    _native: Native
    _limits: StoreLimits
    _clock: Callable[[], float]
    _gate: Gate
    _memory: BounceMemory
    _getters: Workers
    _putters: Workers
    _askers: Workers

    def get_into(
        self, keys: Sequence[str], ptrs: Sequence[int], sizes: Sequence[int], timeout: float
    ) -> list[Outcome]:
        """Reads block `keys[i]` into `sizes[i]` bytes at `ptrs[i]`, within `timeout` seconds.

        In the order given: what ended in time is HIT, the rest TIMEOUT. Memory of a key that is not
        HIT is undefined but untouched after return.
        """
        return self._screened("get", keys, ptrs, sizes, timeout, self._get_window)

    def put_from(
        self,
        keys: Sequence[str],
        ptrs: Sequence[int],
        sizes: Sequence[int],
        timeout: float,
        replicate: Replicate | None = None,
    ) -> list[Outcome]:
        """Writes `sizes[i]` bytes at `ptrs[i]` as block `keys[i]`, within `timeout` seconds.

        A key that is there already keeps its first value and is STORED. After TIMEOUT the block is
        either not there or right: its bytes were copied before Mooncake saw them, so the caller may
        reuse its memory in any case.
        """

        def put_window(
            keys: Sequence[str], ptrs: Sequence[int], sizes: Sequence[int], deadline: float
        ) -> list[Outcome]:
            return self._put_window(keys, ptrs, sizes, deadline, replicate)

        return self._screened("put", keys, ptrs, sizes, timeout, put_window)

    def exists(
        self, keys: Sequence[str], timeout: float | None, named: Named | None = None
    ) -> list[Outcome]:
        """HIT or MISS per key (or TIMEOUT, ERROR). Grants the lease that Mooncake grants.

        Args:
            timeout: seconds; None: it is asked in the caller's own thread, which is faster, and ends when
                Mooncake ends it: see `get_into_direct`. No memory of the caller's is touched.
            named: makes what Mooncake calls them of `keys`; they are not looked at besides, and all are
                invalid if it raises TypeError or ValueError. It is called in the thread that asks: thousands
                of names are then in the cache of its core.
        """
        step, work = self._limits.exists_keys, self._native.exists
        if named is None:
            return self._meta("exists", keys, timeout, work, codes.of_exists, step)

        def work_by_name(part: Sequence[str]) -> list[int]:
            return work(named(part))

        return self._meta(
            "exists", keys, timeout, work_by_name, codes.of_exists, step, checked=True
        )

    def sizes(self, keys: Sequence[str], timeout: float) -> list[Outcome]:
        """HIT with the block's size, or MISS, per key. One question to the master a key: for few."""
        return self._meta("sizes", keys, timeout, self._native.sizes, codes.of_get)

    def remove(self, keys: Sequence[str], timeout: float, force: bool = False) -> list[Outcome]:
        """HIT: it was there and is gone; MISS: it was not; ERROR with OBJECT_HAS_LEASE: it is being
        read, and stays unless `force`. After TIMEOUT it may be removed, now or later."""

        def remove(keys: Sequence[str]) -> list[int]:
            return self._native.remove(keys, force)

        return self._meta("remove", keys, timeout, remove, codes.of_remove)

    def _screened(
        self,
        call: str,
        keys: Sequence[str],
        ptrs: Sequence[int],
        sizes: Sequence[int],
        timeout: float,
        window: Callable[[Sequence[str], Sequence[int], Sequence[int], float], list[Outcome]],
    ) -> list[Outcome]:
        deadline = self._clock() + timeout
        self._gate.enter()
        try:
            if not keys:
                return []
            bad = screen(keys, ptrs, sizes, self._limits.window_bytes)
            if bad is not None:
                good = [i for i in range(len(keys)) if i not in bad]
                keys = [keys[i] for i in good]
                ptrs = [ptrs[i] for i in good]
                sizes = [sizes[i] for i in good]
            outcomes: list[Outcome] = []
            for a, b in cut(sizes, self._limits.window_bytes, self._limits.window_keys):
                if b - a == len(keys):
                    outcomes = window(keys, ptrs, sizes, deadline)
                else:
                    outcomes += window(keys[a:b], ptrs[a:b], sizes[a:b], deadline)
            if bad is not None:
                rest = iter(outcomes)
                total = len(good) + len(bad)
                outcomes = [bad[i] if i in bad else next(rest) for i in range(total)]
            self._gate.count(call, outcomes)
            return outcomes
        finally:
            self._gate.leave()

    def _get_window(
        self, keys: Sequence[str], ptrs: Sequence[int], sizes: Sequence[int], deadline: float
    ) -> list[Outcome]:
        n = len(keys)
        offsets, total = layout(sizes)
        span = self._room(total, deadline, meta=False)
        if isinstance(span, Outcome):
            return [span] * n
        base = self._memory.address + span
        places = [base + offset for offset in offsets]
        call = Call(
            lambda: self._native.get(keys, places, sizes),
            deadline,
            total,
            partial(self._memory.give, span),
        )
        results = self._run(self._getters, call, total)
        if isinstance(results, Outcome):
            return [results] * n
        if any(map(gt, results, sizes)):  # never seen; the caller's memory would be overrun
            results = [rc if rc <= size else -1 for rc, size in zip(results, sizes, strict=True)]
        try:
            copied = copy_blocks(ptrs, places, results, deadline, self._clock)
        finally:
            self._memory.give(span)
        outcomes = codes.of_get(results)
        if copied < n:
            outcomes[copied:] = [
                _LATE if rc > 0 else outcome
                for rc, outcome in zip(results[copied:], outcomes[copied:], strict=True)
            ]
        return outcomes

    def _put_window(
        self,
        keys: Sequence[str],
        ptrs: Sequence[int],
        sizes: Sequence[int],
        deadline: float,
        replicate: Replicate | None,
    ) -> list[Outcome]:
        n = len(keys)
        offsets, total = layout(sizes)
        span = self._room(total, deadline, meta=False)
        if isinstance(span, Outcome):
            return [span] * n
        base = self._memory.address + span
        places = [base + offset for offset in offsets]
        if copy_blocks(places, ptrs, sizes, deadline, self._clock) < n:
            self._memory.give(span)
            self._gate.no_verdict(meta=False)
            return [_LATE] * n
        call = Call(
            lambda: self._native.put(keys, places, sizes, replicate),
            deadline,
            total,
            partial(self._memory.give, span),
        )
        results = self._run(self._putters, call, total)
        if isinstance(results, Outcome):
            return [results] * n
        self._memory.give(span)
        return codes.of_put(results, sizes)

    def _meta(
        self,
        name: str,
        keys: Sequence[str],
        timeout: float | None,
        work: Callable[[Sequence[str]], list[int]],
        outcomes_of: Callable[[Sequence[int]], list[Outcome]],
        step: int = 0,
        *,
        checked: bool = False,
    ) -> list[Outcome]:
        deadline = None if timeout is None else self._clock() + timeout
        self._gate.enter()
        try:
            outcomes: list[Outcome] = []
            step = step or self._limits.window_keys
            for a in range(0, len(keys), step):
                part = keys[a : a + step] if len(keys) > step else keys
                if not (checked or are_keys(part)):
                    outcomes += [_INVALID] * len(part)
                    continue
                if not self._gate.admit(meta=True):
                    outcomes += [failed(codes.BREAKER_OPEN)] * len(part)
                    continue
                ask = partial(work, part)
                if deadline is None:
                    results = self._ask_here(ask)
                else:
                    results = self._run(self._askers, Call(ask, deadline), 0, meta=True)
                if isinstance(results, Outcome):
                    outcomes += [results] * len(part)
                else:
                    outcomes += outcomes_of(results)
            self._gate.count(name, outcomes)
            return outcomes
        finally:
            self._gate.leave()

    def _ask_here(self, ask: Callable[[], list[int]]) -> list[int] | Outcome:
        """An admitted question, in this thread."""
        call = Call(ask, float("inf"))
        call.began = self._clock()
        try:
            call.result = ask()
        except Exception as error:
            call.error = error
        call.ended = self._clock()
        call.state = CallState.DONE
        return ended(self._gate, call, None, 0, meta=True)

    def _room(self, size: int, deadline: float, meta: bool) -> int | Outcome:
        """Bounce memory for an admitted call; or why not."""
        if not self._gate.admit(meta):
            return failed(codes.BREAKER_OPEN)
        offset = self._memory.take(size)
        if offset is not None:
            return offset
        wake = threading.Lock()
        wake.acquire()
        waiter = self._memory.wait_in_line(size, wake.release)
        if waiter is not None:
            remaining = deadline - self._clock()
            if waiter.offset is not None or (remaining > 0 and wake.acquire(timeout=remaining)):
                assert waiter.offset is not None
                return waiter.offset
            self._memory.leave_line(waiter)
        self._gate.no_verdict(meta)
        return _LATE if waiter is not None else failed(codes.QUEUE_FULL)

    def _run(
        self, workers: Workers, call: Call, size: int, meta: bool = False
    ) -> list[int] | Outcome:
        """Runs an admitted call to its end or its deadline. On an Outcome the call's memory is
        taken care of; on results it is the caller's to give back."""
        refused = workers.submit(call)
        if refused is None and not workers.wait(call):
            self._gate.overdue(meta, call.began)
            return _LATE
        return ended(self._gate, call, refused, size, meta)
