"""The C library's allocator, told what this process does with memory."""

from __future__ import annotations

import asyncio
import ctypes
from typing import Final

MESSAGES_BYTES_MAX: Final = 32 << 20
"""What is at most as large comes out of memory that is kept. glibc takes no more."""
KEPT_BYTES: Final = 64 << 20
"""Free memory that is kept at the end of a heap, unless the caller says otherwise."""
SERVING_KEPT_BYTES: Final = 16 << 20
"""The same in a serving process: less, for what peers do there counts against `serving_memory`."""
GIVE_BACK_SECONDS: Final = 300.0
"""Between two times that free memory is given back: a few ms in a thread, and page faults where it is used
again."""
HEAPS_MAX: Final = 4
"""Heaps of one process. glibc makes up to eight for each core, whenever a thread finds the others in use, and
free memory stays in each of them."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


def keep_memory_of_messages(kept_bytes: int = KEPT_BYTES) -> None:
    """Messages of 1 MiB come and go all the time. By itself glibc gets fresh pages for many of them and
    gives them back, which is a fault for each 4 KiB: a quarter of a core's second for a GB that is pulled.

    Args:
        kept_bytes: free memory that is kept at the end of each heap.
    """
    have_few_heaps()
    _mallopt(_M_MMAP_THRESHOLD, MESSAGES_BYTES_MAX)
    _mallopt(_M_TRIM_THRESHOLD, kept_bytes)


def have_few_heaps() -> None:
    """As MALLOC_ARENA_MAX=4 in the environment: of no use to threads that have one of their own by now."""
    _mallopt(_M_ARENA_MAX, HEAPS_MAX)


def _mallopt(parameter: int, value: int) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # not every C library has it
    if mallopt is not None:
        mallopt(parameter, value)


def give_back_free_memory() -> None:
    """To the system: what a peak took, in any heap, is not kept for ever. glibc gives back by itself what is
    free at the end of a heap, and not what lies between."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


async def give_back_now_and_then() -> None:
    """`give_back_free_memory` every `GIVE_BACK_SECONDS`, until it is cancelled."""
    while True:
        await asyncio.sleep(GIVE_BACK_SECONDS)
        await asyncio.to_thread(give_back_free_memory)
