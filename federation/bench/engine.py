"""The engine's side of a replay: read a chain, check every byte of it, write what was missing."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from federation.bench.workload import BlockBytes
from federation.errors import UsageError

BUFFER_BYTES = 2 * 1024**3
"""Most memory that one engine's reading threads take together."""
NOT_FOUND = -704
"""Mooncake's code for a block that is not there: the one negative code that is no surprise."""
SLACK_S = 0.010
"""What a call may be late by, beside the machine's own scheduling delay."""


class ReplayStore(Protocol):
    """What a replay needs of a store: FederatedStore's calls, or a fake's."""

    def register_buffer(self, ptr: int, size: int) -> int: ...
    def batch_get_into(
        self, keys: list[str], ptrs: list[int], sizes: list[int], deadline_ms: int
    ) -> list[int]: ...
    def batch_put_from(self, keys: list[str], ptrs: list[int], sizes: list[int]) -> list[int]: ...
    def last_tiers(self) -> list[str]: ...
    def stats(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


StoreFactory = Callable[[Mapping[str, Any]], ReplayStore]
"""Opens a store from a spec (see `engine_process`)."""


class Answer(NamedTuple):
    """What became of one request. Times in ms."""

    number: int
    local: int
    """Blocks of the leading run that came from the group's own Mooncake."""
    peer: int
    """... and from a peer."""
    misses: int
    wrong_bytes: int
    get_ms: float
    put_ms: float
    overrun_ms: float
    """By how much the read was over its deadline, beyond slack and scheduling delay; else 0."""
    errors: list[str]
    """Exceptions that reached the engine."""
    codes: dict[str, int]
    """Codes of reads and puts other than a hit, a miss and stored, e.g. `get -800`: how often."""


class SchedulingWatch:
    """Measures how late this process's threads are woken, so that a busy machine is not blamed on
    the store. One thread that sleeps in short steps."""

    STEP_S = 0.005
    KEPT = 4096

    def __init__(self) -> None:
        self._late: deque[tuple[float, float]] = deque(maxlen=self.KEPT)  # (due, woken)
        self._due = time.monotonic() + self.STEP_S
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scheduling-watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.wait(max(0.0, self._due - time.monotonic())):
            now = time.monotonic()
            if now - self._due > 0.001:
                self._late.append((self._due, now))
            self._due = now + self.STEP_S

    def delay(self, begin: float, end: float) -> float:
        """The longest wake-up delay, in seconds, that overlaps [begin, end] (monotonic)."""
        worst = max(0.0, time.monotonic() - self._due)  # the delay that is under way
        for due, woken in list(self._late):
            if due <= end and woken >= begin:
                worst = max(worst, woken - due)
        return worst

    def close(self) -> None:
        self._end.set()
        self._thread.join(1.0)


class Slot:
    """Memory of one reading thread: a row a block of the longest chain."""

    def __init__(self, rows: npt.NDArray[np.uint8]) -> None:
        self.rows = rows
        base, size = rows.ctypes.data, rows.shape[1]
        self.ptrs = [base + i * size for i in range(rows.shape[0])]
        self.sizes = [size] * rows.shape[0]


class Engine:
    """Serves requests on a few threads, as an inference engine with that many prefills would.

    Args:
        blocks: makes and checks the bytes.
        chain_blocks: longest chain that will come.
        deadline_ms: of one read.
        on_answer: called, from the engine's threads, once a request.

    Raises:
        UsageError: if blocks and chains are too large for `BUFFER_BYTES`.
    """

    def __init__(
        self,
        store: ReplayStore,
        blocks: BlockBytes,
        *,
        threads: int,
        chain_blocks: int,
        deadline_ms: int,
        on_answer: Callable[[Answer], None],
    ) -> None:
        need = threads * chain_blocks * blocks.size
        if need > BUFFER_BYTES:
            raise UsageError(
                f"{threads} chains of up to {chain_blocks} blocks of {blocks.size} bytes need "
                f"{need} bytes of memory in each engine, more than {BUFFER_BYTES}",
                hint="lower --block-bytes or --concurrency",
            )
        self._store = store
        self._blocks = blocks
        self._deadline_ms = deadline_ms
        self._on_answer = on_answer
        self._watch = SchedulingWatch()
        self._memory = np.zeros((threads, chain_blocks, blocks.size), np.uint8)
        code = store.register_buffer(self._memory.ctypes.data, self._memory.nbytes)
        if code != 0:
            raise UsageError(f"the store refused to register {self._memory.nbytes} bytes: {code}")
        # The replay keeps fewer requests in flight than this: a full queue is a bug, not a wait.
        self._queue: queue.Queue[tuple[int, list[str]] | None] = queue.Queue(4096)
        self._threads = [
            threading.Thread(target=self._run, args=(Slot(self._memory[i]),), daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, number: int, keys: list[str]) -> None:
        """Queue a request; its answer comes through `on_answer`."""
        self._queue.put_nowait((number, keys))

    def close(self, timeout: float = 5.0) -> dict[str, Any]:
        """End the threads, close the store and return its last `stats()`.

        If a thread is still inside a call after `timeout` seconds the store is left open: closing
        it under a call would crash the process.
        """
        for _ in self._threads:
            self._queue.put(None)
        end = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        self._watch.close()
        stats = dict(self._store.stats())
        if not any(thread.is_alive() for thread in self._threads):
            self._store.close()
        return stats

    def _run(self, slot: Slot) -> None:
        while (item := self._queue.get()) is not None:
            self._on_answer(self.serve(*item, slot))

    def serve(self, number: int, keys: list[str], slot: Slot) -> Answer:
        """One request, start to end, in the calling thread."""
        count = len(keys)
        errors: list[str] = []
        codes: Counter[str] = Counter()
        # What an earlier request left in the rows must not pass for what this one was given.
        slot.rows[:count] = 0
        begin = time.monotonic()
        tiers: Sequence[str] = ()
        try:
            results = self._store.batch_get_into(
                keys, slot.ptrs[:count], slot.sizes[:count], deadline_ms=self._deadline_ms
            )
            end = time.monotonic()
            tiers = self._store.last_tiers()
        except Exception as error:  # whatever reaches an engine is what this bench is to count
            end = time.monotonic()
            results = []
            errors.append(f"get: {type(error).__name__}: {error}")
        run = self._leading_run(results, count, codes, errors)
        wrong = self._blocks.wrong_bytes(keys[:run], slot.rows[:run])
        peer = sum(tier == "peer" for tier in tiers[:run])
        put_ms = self._write(keys, run, slot, codes, errors) if run < count else 0.0
        return Answer(
            number=number,
            local=run - peer,
            peer=peer,
            misses=count - run,
            wrong_bytes=wrong,
            get_ms=(end - begin) * 1e3,
            put_ms=put_ms,
            overrun_ms=self._overrun(begin, end) * 1e3,
            errors=errors,
            codes=dict(codes),
        )

    def _leading_run(
        self, results: Sequence[int], count: int, codes: Counter[str], errors: list[str]
    ) -> int:
        if not errors and len(results) != count:
            errors.append(f"get: {len(results)} results for {count} keys")
        run = 0
        for i, result in enumerate(results[:count]):
            if result == self._blocks.size:
                run += run == i
            elif result >= 0:
                errors.append(f"get: a block of {result} bytes instead of {self._blocks.size}")
            elif result != NOT_FOUND:
                codes[f"get {result}"] += 1
        return run

    def _write(
        self, keys: list[str], run: int, slot: Slot, codes: Counter[str], errors: list[str]
    ) -> float:
        """Write the blocks from `run` on, as an engine does after its prefill; returns ms."""
        missing, count = keys[run:], len(keys)
        self._blocks.fill(missing, slot.rows[run:count])
        begin = time.monotonic()
        try:
            for code in self._store.batch_put_from(
                missing, slot.ptrs[run:count], slot.sizes[run:count]
            ):
                if code != 0:
                    codes[f"put {code}"] += 1
        except Exception as error:
            errors.append(f"put: {type(error).__name__}: {error}")
        return (time.monotonic() - begin) * 1e3

    def _overrun(self, begin: float, end: float) -> float:
        over = (end - begin) - self._deadline_ms / 1e3 - SLACK_S
        if over <= 0:
            return 0.0
        return max(0.0, over - self._watch.delay(begin, end))
