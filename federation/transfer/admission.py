"""Puts pulled blocks into the local Mooncake: those that its policy wants there, in the background.

Provenance is journalled, and on disk, before Mooncake gets the block: whatever dies in between, a block
is never here without it being known whose it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from opentelemetry.context import Context, get_current

from federation.counters import counters
from federation.identity import key_hash
from federation.keys.naming import Naming
from federation.telemetry import SPAN_STORE_ADMIT, span
from federation.transfer.copies import Copies
from federation.transfer.policy import AdmissionPolicy
from federation.transfer.staging import StagedBlock
from local_group.journal import Entry, JournalError
from local_group.ledger import Ledger
from local_group.names import name_of
from local_group.store import Outcome, Status

BATCH_BLOCKS = 256
"""Blocks put in one call: large batches are what Mooncake is fast at."""
BATCH_BYTES = 16 * 1024 * 1024
"""Payload put in one call, so that a batch fits the store client's bounce memory."""
PUT_SECONDS = 5.0
"""How long one batch may take; what is not stored by then is left to a later pull."""


class _Item(NamedTuple):
    block: StagedBlock
    context: Context
    """The trace of the pull that brought it."""


class Writer(Protocol):
    """The part of the store client that admission uses."""

    async def write(
        self, items: Sequence[tuple[str, bytes | memoryview]], timeout: float
    ) -> list[Outcome]:
        """Puts blocks; one outcome each."""


class Admission:
    """A bounded queue in front of the local Mooncake.

    Args:
        policy: says which.
        copies: what is in the pool of peers' blocks, and whether there is room for more.
        dear: whether the line that a block came over is to be used as little as can be.
        queue_max: blocks that may wait; more are not admitted (they stay in staging for their time).
        on_error: told what went wrong, for the log and `status`.
    """

    def __init__(
        self,
        *,
        store: Writer,
        ledger: Ledger,
        naming: Naming,
        policy: AdmissionPolicy,
        copies: Copies,
        queue_max: int,
        on_error: Callable[[str], None],
        dear: Callable[[StagedBlock], bool] = lambda _: False,
    ) -> None:
        self._store = store
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
            self._queue.put_nowait(_Item(block, get_current()))
        except asyncio.QueueFull:
            counters.add("moonmesh_admission_shed_total")

    async def run(self) -> None:
        """Admits blocks until it is cancelled."""
        while True:
            batch = [await self._queue.get()]
            size = len(batch[0].block.data)
            while not self._queue.empty() and len(batch) < BATCH_BLOCKS and size < BATCH_BYTES:
                batch.append(self._queue.get_nowait())
                size += len(batch[-1].block.data)
            batch = self._within_quota([item for item in batch if self._absent(item.block)])
            if batch:
                await self._admit(batch)

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
            outcomes = await self._store.write(
                [
                    (self._naming.stored(b.fingerprint, b.key), memoryview(b.data))
                    for b, *_ in batch
                ],
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
