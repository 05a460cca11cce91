"""Damaged catalog messages are refused as such, and take no more memory than is said."""

from __future__ import annotations

import multiprocessing
import tracemalloc
from typing import Any

from federation.bench import catalog_fuzz
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
    assert outcome.grown_bytes is not None
    assert outcome.grown_bytes < MEMORY_MAX


def test_memory_that_grows_is_measured_whatever_the_process_had_before() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        sound, leaks = pool.apply(grown, (False,)), pool.apply(grown, (True,))
    assert sound is not None
    assert leaks is not None
    assert sound < MEMORY_MAX
    assert leaks - sound > 90 << 20


def grown(leak: bool) -> int | None:
    """What reading a hundred messages takes, where each may leave a MiB behind."""
    kept = []
    sound = catalog_fuzz._read

    def leaking(*arguments: Any) -> None:
        kept.append(b"x" * (1 << 20))
        sound(*arguments)

    del bytearray(b"x" * (256 << 20))[:]  # a peak from before
    catalog_fuzz._read = leaking if leak else sound
    try:
        return run(100, seed=1).grown_bytes
    finally:
        catalog_fuzz._read = sound


def grow() -> tuple[int, str]:
    """What becomes of memory below and above the limit."""
    restrict()
    small = len(bytearray(MEMORY_MAX // 4))
    try:
        large = str(len(bytearray(2 * MEMORY_MAX)))
    except MemoryError as error:
        large = type(error).__name__
    return small, large
