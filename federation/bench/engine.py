"""The engine's side of a replay: read a chain, check every byte of it, write what was missing."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from federation.bench.delay import Delay, ThreadDelay
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
    """By how much the read was over its deadline, beyond slack and the machine's delay; else 0."""
    overrun_raw_ms: float
    """By how much it was over its deadline, with nothing taken off; else 0."""
    put_overrun_ms: float
    put_overrun_raw_ms: float
    """The same of the write."""
    errors: list[str]
    """Exceptions that reached the engine."""
    codes: dict[str, int]
    """Codes of reads and puts other than a hit, a miss and stored, e.g. `get -800`: how often."""


def buffer_bytes(threads: int, chain_blocks: int, block_bytes: int) -> int:
    """Bytes of memory that an engine's threads read into.

    Raises:
        UsageError: if that is more than `BUFFER_BYTES`.
    """
    need = threads * chain_blocks * block_bytes
    if need > BUFFER_BYTES:
        raise UsageError(
            f"{threads} chains of up to {chain_blocks} blocks of {block_bytes} bytes need "
            f"{need} bytes of memory in each engine, more than {BUFFER_BYTES}",
            hint="lower --block-bytes or --concurrency",
        )
    return need


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
        deadline_ms: of one read, and of one write.
        machine: the machine's delay, which is no overrun; closed with the engine.
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
        machine: Delay,
        on_answer: Callable[[Answer], None],
    ) -> None:
        buffer_bytes(threads, chain_blocks, blocks.size)
        self._store = store
        self._blocks = blocks
        self._deadline_ms = deadline_ms
        self._on_answer = on_answer
        self._machine = machine
        machine.restart()  # opening the store is not what is measured
        self._own = ThreadDelay()
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
        """End the threads, close the store and return its last `stats()`, and in ms the longest
        delays of the machine (`machine_delay_ms`) and of this process (`thread_delay_ms`).

        If a thread is still inside a call after `timeout` seconds the store is left open: closing
        it under a call would crash the process.
        """
        for _ in self._threads:
            self._queue.put(None)
        end = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        stats = dict(self._store.stats())
        stats["machine_delay_ms"] = self._machine.worst() * 1e3
        stats["thread_delay_ms"] = self._own.worst() * 1e3
        self._machine.close()
        self._own.close()
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
        put_begin = put_end = 0.0
        if run < count:
            put_begin, put_end = self._write(keys, run, slot, codes, errors)
        overrun, overrun_raw = self._overrun(begin, end)
        put_overrun, put_overrun_raw = self._overrun(put_begin, put_end)
        return Answer(
            number=number,
            local=run - peer,
            peer=peer,
            misses=count - run,
            wrong_bytes=wrong,
            get_ms=(end - begin) * 1e3,
            put_ms=(put_end - put_begin) * 1e3,
            overrun_ms=overrun * 1e3,
            overrun_raw_ms=overrun_raw * 1e3,
            put_overrun_ms=put_overrun * 1e3,
            put_overrun_raw_ms=put_overrun_raw * 1e3,
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
    ) -> tuple[float, float]:
        """Write the blocks from `run` on, as an engine does after its prefill; returns when the call
        began and ended (monotonic)."""
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
        return begin, time.monotonic()

    def _overrun(self, begin: float, end: float) -> tuple[float, float]:
        """Seconds that a call was over its deadline: less what is excused, and in truth."""
        raw = (end - begin) - self._deadline_ms / 1e3
        if raw <= SLACK_S:
            return 0.0, max(0.0, raw)
        return max(0.0, raw - SLACK_S - self._machine.within(begin, end)), raw
