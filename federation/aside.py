"""Threads for what would hold an event loop up: files, names of hosts, the sorting of listings."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Final

ASIDE_THREADS: Final = 8
"""Of a process. Each kind of work has one at a time: a disk that hangs takes three or four of them."""


def threads_aside() -> ThreadPoolExecutor:
    """For `loop.set_default_executor`; all of them run already: a process that gets more threads later has a
    leak, and not a pool that is filling."""
    pool = ThreadPoolExecutor(ASIDE_THREADS, "aside")
    together = threading.Barrier(ASIDE_THREADS)
    wait([pool.submit(together.wait) for _ in range(ASIDE_THREADS)])
    return pool
