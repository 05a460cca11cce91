"""Damaged catalog messages are refused as such, and take no more memory than is said."""

from __future__ import annotations

import multiprocessing
import tracemalloc

from federation.bench.catalog_fuzz import MEMORY_MAX, restrict, run, run_restricted


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


def test_the_kernel_holds_the_process_to_its_memory() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        small, large = pool.apply(grow)
        assert small == MEMORY_MAX // 4
        assert large == "MemoryError"
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        outcome = pool.apply(run_restricted, (500, 2))
    assert not outcome.escaped
    assert outcome.grown_bytes < MEMORY_MAX


def grow() -> tuple[int, str]:
    """What becomes of memory below and above the limit."""
    restrict()
    small = len(bytearray(MEMORY_MAX // 4))
    try:
        large = str(len(bytearray(2 * MEMORY_MAX)))
    except MemoryError as error:
        large = type(error).__name__
    return small, large
