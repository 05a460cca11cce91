"""Reads again what an engine was to write: what was acknowledged is there, and right."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from chaos.load.memory import Memory
from chaos.load.mixups import mixup
from chaos.load.spec import Audit
from federation.bench.engine import NOT_FOUND
from federation.bench.workload import BlockBytes

EXAMPLES = 8
AUDIT_BATCH = 32
AUDIT_MS = 3000
AUDIT_S = 8.0
"""How long a batch is asked for again: the breaker of a store that has just come back is still open."""
AGAIN_S = 0.3


def audit(
    store: Any, blocks: BlockBytes, stored: Sequence[str], refused: Sequence[str], *, again: bool
) -> Audit:
    """What became of everything that was to be written: what was acknowledged is in the own group, and
    right; what was not is absent, or right.

    Args:
        again: ask once more, for a while, for what is neither there nor known to be lost.
    """
    found = Audit()
    memory = Memory(AUDIT_BATCH, blocks.size)
    for keys, acknowledged in ((stored, True), (refused, False)):
        for start in range(0, len(keys), AUDIT_BATCH):
            batch = list(keys[start : start + AUDIT_BATCH])
            seconds = AUDIT_S if again else 0.0
            _batch(store, blocks, batch, stored, acknowledged, memory, found, seconds)
    return found


def _batch(
    store: Any,
    blocks: BlockBytes,
    keys: list[str],
    written: Sequence[str],
    acknowledged: bool,
    memory: Memory,
    found: Audit,
    seconds: float,
) -> None:
    count = len(keys)
    end = time.monotonic() + seconds
    while True:
        results = store.batch_get_into(
            keys, memory.pointers[:count], memory.sizes[:count], deadline_ms=AUDIT_MS
        )
        tiers = store.last_tiers()
        # While its breaker is open, a store says that blocks are not there without having looked.
        looked = store.stats()["store"]["breaker"] == "closed"
        sure = looked and all(r >= 0 or r == NOT_FOUND for r in results)
        if sure or time.monotonic() > end:
            break
        time.sleep(AGAIN_S)
    found.checked += count
    for i, (key, result) in enumerate(zip(keys, results, strict=True)):
        if result >= 0:
            found.verified_bytes += blocks.size
            differ = blocks.wrong_bytes([key], memory.rows[i : i + 1])
            found.wrong_bytes += differ
            if differ and len(found.wrong) < EXAMPLES:
                what = f"audit {key} ({tiers[i]})"
                found.wrong.append(mixup(what, blocks, memory.rows[i], keys, written))
        if not acknowledged or (result >= 0 and tiers[i] == "local"):
            continue
        if result >= 0 or (result == NOT_FOUND and looked):
            found.lost += 1
        else:
            found.unread += 1
        if len(found.examples) < EXAMPLES:
            found.examples.append(f"{key}: {result} ({tiers[i]})")
