"""Checks what can be checked of a call's arguments, and cuts long batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from local_group import outcome as codes
from local_group.outcome import Outcome, failed

_INVALID = failed(codes.INVALID_PARAMS)
_TOO_LARGE = failed(codes.BOUNCE_EXCEEDED)


def are_keys(keys: Sequence[str]) -> bool:
    """Whether all are strings, and none is empty. Seen as a whole: joining is the fastest look at each."""
    try:
        "".join(keys)
    except TypeError:
        return False
    return all(keys)


def screen(
    keys: Sequence[str], ptrs: Sequence[int], sizes: Sequence[int], size_max: int
) -> dict[int, Outcome] | None:
    """What is wrong with the arguments, per index; None (the usual case, and fast) for nothing."""
    n = len(keys)
    if len(ptrs) != n or len(sizes) != n:
        return dict.fromkeys(range(n), _INVALID)
    if are_keys(keys) and min(sizes) > 0 and max(sizes) <= size_max and min(ptrs) > 0:
        return None
    bad = {}
    for i, (key, ptr, size) in enumerate(zip(keys, ptrs, sizes, strict=True)):
        if type(key) is not str or not key or size <= 0 or ptr <= 0:
            bad[i] = _INVALID
        elif size > size_max:
            bad[i] = _TOO_LARGE
    return bad


def cut(sizes: Sequence[int], bytes_max: int, keys_max: int) -> Iterator[tuple[int, int]]:
    """Cuts a batch in windows [start, stop) of at most that many bytes and keys."""
    if 0 < len(sizes) <= keys_max and sum(sizes) <= bytes_max:
        yield 0, len(sizes)  # nearly always: seen as a whole
        return
    start, total = 0, 0
    for i, size in enumerate(sizes):
        if i > start and (total + size > bytes_max or i - start >= keys_max):
            yield start, i
            start, total = i, 0
        total += size
    if start < len(sizes):
        yield start, len(sizes)
