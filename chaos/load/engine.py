"""An engine under load: threads that read, write and ask, at fixed rates, and check all they get.

What a call leaves in the caller's memory is checked twice. After it returned, every byte is derived
again and compared. Then the memory is reused, as an engine would: filled with a pattern, which must
still be there at the next call; a late write of an overdue call would show.
"""

from __future__ import annotations

import itertools
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from chaos.load.auditing import audit
from chaos.load.keys import chain
from chaos.load.memory import Memory
from chaos.load.mixups import LOOKED_AT, mixup
from chaos.load.replayed import CHAIN_BLOCKS, Replayed
from chaos.load.spec import Audit, LoadSpec, Sample, Totals
from chaos.load.watch import ControlThread
from federation.bench.engine import NOT_FOUND, ReplayStore
from federation.bench.workload import BlockBytes

ERRORS_MAX = 32
EXISTS_WAIT_MS = 20
EXISTS_BLOCKS = 4
TRACE_THREADS = 2
SAMPLES_MAX = 100_000
"""Samples that wait to be fetched; a runner that hangs does not fill this process."""
PREPARED_AT_ONCE = 32
"""Blocks that are put with one call before a load."""
PREPARE_MS = 5000


class Load:
    """The load of one run in one engine process.

    Args:
        store: in the honest namespace.
        guest: in the guest namespace, or None.
        exists_deadline_ms: of the store's calls that take no deadline.
        replayed: where requests of a trace come from, where the spec wants some.
    """

    def __init__(
        self,
        spec: LoadSpec,
        group: str,
        store: ReplayStore,
        guest: ReplayStore | None,
        blocks: BlockBytes,
        guest_blocks: BlockBytes,
        exists_deadline_ms: int,
        replayed: Replayed | None = None,
    ) -> None:
        self._spec = spec
        self._replayed = replayed
        self._group = group
        self._store: Any = store
        self._guest: Any = guest
        self._blocks = blocks
        self._guest_blocks = guest_blocks
        self._exists_deadline_ms = exists_deadline_ms
        self._lock = threading.Lock()
        self._samples: list[Sample] = []
        self._totals = Totals()
        self._codes: Counter[str] = Counter()
        self._stored: list[str] = []
        self._refused: list[str] = []
        self._fresh = itertools.count()
        self._guests = itertools.count()
        self._written = itertools.count(spec.local_chains + spec.fresh_chains + 1)
        self._after = math.inf
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._watch = ControlThread()

    # Before the time line

    def prepare(self) -> None:
        """Writes the chains that this group has from the start; the last one is to settle by."""
        if self._spec.probe:
            return
        spec = self._spec
        count = spec.local_chains + spec.fresh_chains + 1
        keys = [k for n in range(count) for k in chain(spec.tag, self._group, n, spec.blocks)]
        memory = Memory(PREPARED_AT_ONCE, self._blocks.size)
        for start in range(0, len(keys), PREPARED_AT_ONCE):
            self._put(keys[start : start + PREPARED_AT_ONCE], memory, PREPARE_MS, sample=False)
        self._store.flush_reports()

    def settle(self, owners: Sequence[str], seconds: float) -> list[str]:
        """Waits until the last chain of each owner can be read from here; the owners it cannot."""
        memory = self._memory()
        waiting, end = list(owners), time.monotonic() + seconds
        probe = self._spec.local_chains + self._spec.fresh_chains
        while waiting and time.monotonic() < end:
            keys = chain(self._spec.tag, waiting[0], probe, self._spec.blocks)
            if self._get(self._store, self._blocks, "settle", keys, memory, 1000):
                time.sleep(0.05)
            else:
                waiting.pop(0)
        return waiting

    # While it runs

    def start(self, begin: float) -> None:
        """Starts the threads; their first calls are due at `begin` (CLOCK_MONOTONIC)."""
        spec = self._spec
        if spec.after_s is not None:
            self._after = begin + spec.after_s
        guests = spec.guest_rate if self._guest and spec.guest_owners else 0
        tasks: list[tuple[float, float, Callable[[random.Random, Memory], bool]]] = [
            (spec.local_rate, spec.local_rate, self._local),
            (spec.write_rate, spec.write_rate, self._write),
            (spec.exists_rate, spec.exists_rate, self._exists),
            (guests, guests, self._guest_read),
        ]
        if spec.peer_owners:
            threads = spec.peer_threads
            rates = (spec.peer_rate / threads, spec.after_peer_rate / threads)
            tasks += [(*rates, self._peer)] * threads
        if self._replayed is not None:
            rate = spec.trace_rate / TRACE_THREADS
            tasks += [(rate, rate, self._trace)] * TRACE_THREADS
        for number, (rate, later, work) in enumerate(tasks):
            if rate > 0:
                thread = threading.Thread(
                    target=self._run, args=(rate, later, work, number, begin), daemon=True
                )
                self._threads.append(thread)
                thread.start()

    def stop(self, timeout: float = 15.0) -> bool:
        """Ends the threads; False if one is still in a call after `timeout` seconds."""
        self._stop.set()
        end = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        self._totals.scheduling_ms_max = round(1000 * self._watch.worst, 3)
        self._watch.close()
        return not any(thread.is_alive() for thread in self._threads)

    def take(self) -> list[Sample]:
        """The samples since the last time."""
        with self._lock:
            taken, self._samples = self._samples, []
        return taken

    def totals(self) -> Totals:
        """The sums so far."""
        with self._lock:
            return self._totals.model_copy(update={"codes": dict(self._codes)})

    def audit(self, again: bool = True) -> Audit:
        """What became of everything that was to be written; see `auditing`."""
        with self._lock:
            stored, refused = list(self._stored), list(self._refused)
        return audit(self._store, self._blocks, stored, refused, again=again)

    def _run(
        self,
        rate: float,
        later: float,
        work: Callable[[random.Random, Memory], bool],
        number: int,
        begin: float,
    ) -> None:
        rng = random.Random(f"{self._spec.seed}/{self._group}/{number}")
        memory = self._memory(CHAIN_BLOCKS if work == self._trace else 0)
        period = 1 / rate
        due = begin + period * rng.random()  # engines are not in step with each other
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            try:
                if not work(rng, memory):
                    break
            except Exception as error:  # whatever reaches an engine is what this is to count
                self._error(f"{work.__name__.strip('_')}: {type(error).__name__}: {error}")
            due += period
            if rate != later and due >= self._after:
                rate, period = later, 1 / later
                due = self._after + period * rng.random()  # nor are threads with each other
            late = time.monotonic() - due
            if late > period:
                # Not made up for: a load that catches up hides how long a call took from the next.
                left_out = int(late / period)
                due += left_out * period
                with self._lock:
                    self._totals.behind += left_out

    def _local(self, rng: random.Random, memory: Memory) -> bool:
        number = rng.randrange(self._spec.local_chains)
        keys = chain(self._spec.tag, self._group, number, self._spec.blocks)
        self._get(self._store, self._blocks, "local", keys, memory, self._spec.deadline_ms)
        return True

    def _peer(self, rng: random.Random, memory: Memory) -> bool:
        spec = self._spec
        owner, number = self._next(self._fresh, spec.peer_owners)
        if number >= spec.fresh_chains:
            return False
        keys = chain(spec.tag, owner, spec.local_chains + number, spec.blocks)
        over = time.monotonic() >= self._after
        deadline_ms = spec.after_peer_deadline_ms if over else spec.peer_deadline_ms
        missing = self._get(self._store, self._blocks, "peer", keys, memory, deadline_ms, owner)
        if missing and spec.writes_back:
            self._put(missing, memory, spec.deadline_ms)
        return True

    def _trace(self, rng: random.Random, memory: Memory) -> bool:
        """Reads a prompt's chain and writes what was missing, as an engine does that has computed it."""
        assert self._replayed is not None
        keys = self._replayed.next()
        deadline_ms = self._spec.peer_deadline_ms
        missing = self._get(self._store, self._blocks, "trace", keys, memory, deadline_ms)
        if missing:
            self._put(missing, memory, self._spec.deadline_ms)
        return True

    def _guest_read(self, rng: random.Random, memory: Memory) -> bool:
        spec = self._spec
        owner, number = self._next(self._guests, spec.guest_owners)
        if number >= spec.fresh_chains:
            return False
        keys = chain(spec.tag, owner, number, spec.blocks)
        self._get(self._guest, self._guest_blocks, "guest", keys, memory, spec.peer_deadline_ms)
        return True

    def _write(self, rng: random.Random, memory: Memory) -> bool:
        keys = chain(self._spec.tag, self._group, next(self._written), self._spec.blocks)
        self._put(keys, memory, self._spec.deadline_ms)
        return True

    def _exists(self, rng: random.Random, memory: Memory) -> bool:
        number = rng.randrange(self._spec.local_chains)
        keys = chain(self._spec.tag, self._group, number, EXISTS_BLOCKS)
        if self._spec.peer_owners:
            owner = rng.choice(self._spec.peer_owners)
            keys += chain(
                self._spec.tag, owner, rng.randrange(2 * self._spec.fresh_chains), EXISTS_BLOCKS
            )
        begin = time.monotonic()
        results = self._store.batch_is_exist(keys, wait_ms=EXISTS_WAIT_MS)
        end = time.monotonic()
        here = sum(result == 1 for result in results)
        self._sample("exists", begin, end, self._exists_deadline_ms, here, 0, len(keys) - here)
        return True

    # Calls

    @staticmethod
    def _next(numbers: itertools.count[int], owners: Sequence[str]) -> tuple[str, int]:
        number = next(numbers)  # atomic: one call of C code
        return owners[number % len(owners)], number // len(owners)

    def _memory(self, blocks: int = 0) -> Memory:
        return Memory(max(blocks, self._spec.blocks), self._blocks.size)

    def _check_untouched(self, memory: Memory) -> None:
        if not memory.untouched():
            with self._lock:
                self._totals.late_writes += 1
            memory.reuse()

    def _get(
        self,
        store: Any,
        blocks: BlockBytes,
        kind: str,
        keys: list[str],
        memory: Memory,
        deadline_ms: int,
        owner: str = "",
    ) -> list[str]:
        """Reads a chain and checks it; the keys that were not found."""
        self._check_untouched(memory)
        count = len(keys)
        begin = time.monotonic()
        try:
            results = store.batch_get_into(
                keys, memory.pointers[:count], memory.sizes[:count], deadline_ms=deadline_ms
            )
            end = time.monotonic()
            tiers = store.last_tiers()
            wrong = verified = 0
            codes: Counter[str] = Counter()
            for i, result in enumerate(results):
                if result == blocks.size:
                    verified += result
                    differ = blocks.wrong_bytes([keys[i]], memory.rows[i : i + 1])
                    wrong += differ
                    if differ and kind != "guest":
                        self._wrong(f"{kind} {keys[i]} ({tiers[i]})", blocks, memory.rows[i], keys)
                elif result >= 0 and kind == "guest":
                    wrong += result  # of the wrong length, and its writer is trusted
                elif result != NOT_FOUND:
                    codes[f"{kind} {result}"] += 1
        finally:
            memory.reuse()
        with self._lock:
            self._totals.verified_bytes += verified
            if kind == "guest":
                self._totals.poisoned_bytes += wrong
            else:
                self._totals.wrong_bytes += wrong
            if kind != "settle":
                self._codes.update(codes)
        local, peer = tiers.count("local"), tiers.count("peer")
        blocks_by_tier = (local, peer, count - local - peer)
        self._sample(kind, begin, end, deadline_ms, *blocks_by_tier, owner=owner)
        return [key for key, tier in zip(keys, tiers, strict=True) if tier == "miss"]

    def _wrong(
        self, what: str, blocks: BlockBytes, row: npt.NDArray[np.uint8], keys: Sequence[str]
    ) -> None:
        """Notes what was given in the place of a block."""
        with self._lock:
            stored = self._stored[-LOOKED_AT:]
        text = mixup(what, blocks, row, keys, stored)
        with self._lock:
            if len(self._totals.wrong) < ERRORS_MAX:
                self._totals.wrong.append(text)

    def _put(
        self, keys: list[str], memory: Memory, deadline_ms: int, *, sample: bool = True
    ) -> None:
        self._check_untouched(memory)
        count = len(keys)
        self._blocks.fill(keys, memory.rows[:count])
        begin = time.monotonic()
        try:
            results = self._store.batch_put_from(
                keys, memory.pointers[:count], memory.sizes[:count], deadline_ms=deadline_ms
            )
            end = time.monotonic()
        finally:
            memory.reuse()  # at once: an overdue put must not store this
        stored = [key for key, code in zip(keys, results, strict=True) if code == 0]
        with self._lock:
            self._stored += stored
            self._refused += [k for k, code in zip(keys, results, strict=True) if code != 0]
            self._totals.puts += count
            self._totals.stored += len(stored)
            self._codes.update(f"put {code}" for code in results if code != 0)
        if sample:
            self._sample("put", begin, end, deadline_ms, len(stored), 0, count - len(stored))

    def _sample(
        self, kind: str, begin: float, end: float, deadline_ms: int, *blocks: int, owner: str = ""
    ) -> None:
        late = (end - begin) - deadline_ms / 1000
        if late > 0:
            late -= self._watch.delay(begin, end)
        local, peer, misses = blocks
        sample = Sample(
            round(begin, 6),
            kind,
            round(1000 * (end - begin), 4),
            round(1000 * max(0.0, late), 4),
            local,
            peer,
            misses,
            owner,
        )
        if kind != "settle":
            with self._lock:
                if len(self._samples) < SAMPLES_MAX:
                    self._samples.append(sample)

    def _error(self, text: str) -> None:
        with self._lock:
            if len(self._totals.errors) < ERRORS_MAX:
                self._totals.errors.append(text[:300])
