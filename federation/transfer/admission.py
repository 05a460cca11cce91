"""Puts pulled blocks into the local Mooncake: those that its policy wants there, in the background.

Provenance is journalled, and on disk, before Mooncake gets the block: whatever dies in between, a block
is never here without it being known whose it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from opentelemetry.context import Context, get_current

from federation.counters import counters
from federation.identity import key_hash
from federation.keys.naming import Naming
from federation.telemetry import SPAN_STORE_ADMIT, span
from federation.timeouts import timeout
from federation.transfer.copies import Copies
from federation.transfer.policy import AdmissionPolicy
from federation.transfer.staging import StagedBlock
from local_group.journal import Entry, JournalError
from local_group.ledger import Ledger
from local_group.names import name_of
from local_group.store import Outcome, Status

BATCH_BLOCKS: Final = 256
"""Blocks put in one call: large batches are what Mooncake is fast at."""
BATCH_BYTES: Final = 16 * 1024 * 1024
"""Payload put in one call: a few such are as fast as one large, and pulls that come meanwhile wait less."""
PUT_SECONDS: Final = 5.0
"""How long one batch may take; what is not stored by then is left to a later pull."""
DEFER_SECONDS: Final = 1.0
"""How long a block waits at most while others are being pulled: engines wait for those, nobody for this."""

Write: TypeAlias = Callable[[Sequence[tuple[str, memoryview]], float], Awaitable[list[Outcome]]]
"""Puts blocks within so many seconds; one outcome each."""


class _Item(NamedTuple):
    block: StagedBlock
    context: Context
    """The trace of the pull that brought it."""
    queued_at: float
    """Monotonic seconds."""


class Admission:
    """A bounded queue in front of the local Mooncake.

    Args:
        write: puts blocks into the local Mooncake, from where they are.
        busy: whether blocks are being pulled: `hurry` is called once they are not.
        defer: seconds that a block waits for that at most; it does not while half of the queue is full.
        policy: says which.
        copies: what is in the pool of peers' blocks, and whether there is room for more.
        dear: whether the line that a block came over is to be used as little as can be.
        queue_max: blocks that may wait; more are not admitted (they stay in staging for their time).
        on_error: told what went wrong, for the log and `status`.
    """

    def __init__(
        self,
        *,
        write: Write,
        ledger: Ledger,
        naming: Naming,
        policy: AdmissionPolicy,
        copies: Copies,
        queue_max: int,
        on_error: Callable[[str], None],
        dear: Callable[[StagedBlock], bool] = lambda _: False,
        busy: Callable[[], bool] = lambda: False,
        defer: float = DEFER_SECONDS,
    ) -> None:
        self._write = write
        self._busy = busy
        self._go = asyncio.Event()
        self._defer = defer
        self._ledger = ledger
        self._naming = naming
        self._policy = policy
        self._copies = copies
        self._dear = dear
        self._on_error = on_error
        self._queue: asyncio.Queue[_Item] = asyncio.Queue(queue_max)

    @property
    def queued(self) -> int:
        """Blocks that wait."""
        return self._queue.qsize()

    def landed(self, block: StagedBlock) -> None:
        """A block has come from a peer: from now on it is known whose it is. Never waits."""
        self._ledger.remember(_entry(block))
        if self._policy.landed():
            self._put(block)

    def given(self, block: StagedBlock, before: str = "") -> None:
        """An engine was given a block that came from a peer. Never waits.

        Args:
            before: key of the block before it in the chain; empty where there is none, or nobody knows.
        """
        self._chain(block, before)
        if self._policy.given(key_hash(block.fingerprint, block.key), self._dear(block)):
            self._put(block)

    def keep(self, block: StagedBlock, before: str = "") -> None:
        """Puts a block into the local pool whatever the policy says: somebody asked for just that. Never
        waits."""
        self._chain(block, before)
        self._put(block)

    def read_on(self, fingerprint: bytes, before: str) -> None:
        """An engine asks for what comes after this block, which it has. Never waits."""
        self._copies.used(fingerprint, key_hash(fingerprint, before))

    def _chain(self, block: StagedBlock, before: str) -> None:
        if before:
            fingerprint = block.fingerprint
            names = key_hash(fingerprint, block.key), key_hash(fingerprint, before)
            self._copies.comes_after(fingerprint, *names)

    def _put(self, block: StagedBlock) -> None:
        try:
            self._queue.put_nowait(_Item(block, get_current(), time.monotonic()))
        except asyncio.QueueFull:
            counters.add("moonmesh_admission_shed_total")
        if self._crowded:
            self._go.set()

    def hurry(self) -> None:
        """What waits need not wait any more. Never waits."""
        self._go.set()

    @property
    def _crowded(self) -> bool:
        return 2 * self._queue.qsize() >= self._queue.maxsize

    async def _its_time(self, most: float) -> None:
        self._go.clear()
        if self._busy() and not self._crowded:
            with contextlib.suppress(asyncio.TimeoutError):
                async with timeout(most):
                    await self._go.wait()

    async def run(self) -> None:
        """Admits blocks until it is cancelled."""
        while True:
            batch = [await self._queue.get()]
            await self._its_time(batch[0].queued_at + self._defer - time.monotonic())
            size = len(batch[0].block.data)
            while not self._queue.empty() and len(batch) < BATCH_BLOCKS and size < BATCH_BYTES:
                batch.append(self._queue.get_nowait())
                size += len(batch[-1].block.data)
            batch = self._within_quota([item for item in batch if self._absent(item.block)])
            if batch:
                await self._admit(batch)
            del batch  # it would keep its blocks' memory until the next comes

    def _within_quota(self, batch: Sequence[_Item]) -> list[_Item]:
        size = 0
        taken: list[_Item] = []
        for item in batch:
            if self._copies.fits(size + len(item.block.data)):
                size += len(item.block.data)
                taken.append(item)
        counters.add("moonmesh_admission_over_quota_total", len(batch) - len(taken))
        return taken

    def _absent(self, block: StagedBlock) -> bool:
        """Whether the local Mooncake lacks a block that was pulled.

        An entry of the holdings from before the pull is of a copy that is gone, or no engine would have
        missed the block: it is withdrawn. A later one is of an engine that computed the block meanwhile.
        """
        held = self._ledger.holdings.get(block.fingerprint, block.key)
        if held is not None and held.since < block.asked_at:
            self._ledger.holdings.withdraw(block.fingerprint, block.key)
            return True
        return held is None

    async def _admit(self, batch: Sequence[_Item]) -> None:
        entries = [_entry(item.block) for item in batch]
        try:
            await self._ledger.announce(entries)
        except JournalError as error:
            counters.add("moonmesh_admission_journal_errors_total", len(batch))
            self._on_error(str(error))
            return
        # A batch mixes the blocks of several pulls: it is told in the trace of the first.
        with span(SPAN_STORE_ADMIT, {"moonmesh.blocks": len(batch)}, parent=batch[0].context):
            outcomes = await self._write(
                [(self._naming.stored(b.fingerprint, b.key), b.data) for b, *_ in batch],
                PUT_SECONDS,
            )
        # From the tail on: of a chain what comes first is to be known as the latest.
        for entry, outcome in reversed(list(zip(entries, outcomes, strict=True))):
            if outcome.status is Status.STORED:
                counters.add("moonmesh_admitted_total")
                self._ledger.admitted(entry)
            else:
                counters.add("moonmesh_admission_failed_total")


def _entry(b: StagedBlock) -> Entry:
    name = name_of(b.fingerprint, b.key)
    return Entry(b.fingerprint, name, len(b.data), b.digest, b.origin, b.epoch, b.hops)
