"""Copies between the caller's memory and bounce memory, in steps, so that a deadline cuts them.

One copy each way is the price of a hard deadline: put copies the caller's bytes in before Mooncake
sees them, get copies Mooncake's bytes out after it has finished. Without it Mooncake would be given
the caller's own memory, and would go on using it after the deadline. `ctypes.memmove` runs without
the interpreter's lock, at memory speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import memmove
from itertools import accumulate

# Between two looks at the clock: about half a millisecond of copying.
STEP = 2 << 20
ALIGN = 64  # blocks in bounce memory begin on a cache line


def layout(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where blocks of `sizes` lie in one span: their offsets, and the bytes of the span."""
    padded = [-(-size // ALIGN) * ALIGN for size in sizes]
    ends = list(accumulate(padded))
    return [0, *ends[:-1]], ends[-1]


def copy_blocks(
    to: Sequence[int],
    from_: Sequence[int],
    sizes: Sequence[int],
    deadline: float,
    clock: Callable[[], float],
) -> int:
    """Copies block i of `sizes[i]` bytes (0 or less: nothing) from address to address, in order.

    Returns how many leading blocks were copied whole by the deadline; of the next one, a part may
    have been.
    """
    done = 0
    n = len(sizes)
    while done < n:
        size = sizes[done]
        if size <= 0:
            done += 1
            continue
        if clock() >= deadline:
            return done
        destination, source = to[done], from_[done]
        # Neighbours on both sides are one copy.
        i = done + 1
        while (
            i < n
            and size < STEP
            and to[i] == destination + size
            and from_[i] == source + size
            and sizes[i] > 0
        ):
            size += sizes[i]
            i += 1
        for at in range(0, size, STEP):
            if at and clock() >= deadline:
                return done
            memmove(destination + at, source + at, min(STEP, size - at))
        done = i
    return done
