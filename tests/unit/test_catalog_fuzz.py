"""Damaged catalog messages are refused as such, and take no more memory than is said."""

from __future__ import annotations

import tracemalloc

from federation.bench.catalog_fuzz import MEMORY_MAX, run


def test_a_damaged_message_is_read_or_refused_and_takes_little_memory() -> None:
    tracemalloc.start()
    try:
        outcome = run(3000, seed=1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not outcome.escaped
    assert outcome.tried == outcome.refused + outcome.believed == 3000
    assert outcome.refused > 500
    assert outcome.believed > 100
    assert peak < MEMORY_MAX
