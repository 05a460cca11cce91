"""A caller's lists of keys, pointers and sizes, cut to what one step may take, and made safe to use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from federation.identity import block_digest
from federation.memory import bytes_at
from federation.timeouts import Deadline

STEP_KEYS = 2048
STEP_BYTES = 16 * 1024 * 1024
"""What is worked on between two looks at the clock: digests of 16 MiB take about 2 ms."""
_NATURAL_END = 1 << 63
"""No address or size is above."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Blocks of one step. A pointer or size that cannot be one is 0, which the store client refuses."""

    keys: Sequence[str]
    pointers: list[int]
    sizes: list[int]

    def only(self, places: Sequence[int]) -> Batch:
        """The blocks at these places."""
        return Batch(
            [self.keys[place] for place in places],
            [self.pointers[place] for place in places],
            [self.sizes[place] for place in places],
        )

    def names(self, stored: Callable[[Sequence[str]], list[str]]) -> list[str]:
        """The keys as Mooncake knows them; "" for what can be no key, which the store refuses."""
        return names_of(stored, self.keys)

    def digests(self, fingerprint: bytes) -> list[bytes | None]:
        """The writer's digest of each block; None for what cannot be read."""
        return [
            block_digest(fingerprint, key, bytes_at(pointer, size))
            if pointer and size and _is_key(key)
            else None
            for key, pointer, size in zip(self.keys, self.pointers, self.sizes, strict=True)
        ]


def are_plain(keys: Sequence[str]) -> bool:
    """Whether all are keys of plain ASCII, as nearly always. Thousands are looked at as a whole."""
    try:
        return "".join(keys).isascii() and all(keys)
    except TypeError:  # one is no string
        return False


def names_of(stored: Callable[[Sequence[str]], list[str]], keys: Sequence[str]) -> list[str]:
    """See `Batch.names`."""
    if are_plain(keys):
        return stored(keys)
    good = iter(stored([key for key in keys if _is_key(key)]))
    return [next(good) if _is_key(key) else "" for key in keys]


def batches(
    keys: Sequence[str],
    pointers: Sequence[int],
    sizes: Sequence[int],
    until: Deadline | None,
) -> Iterator[Batch]:
    """The lists in steps; all at once without a deadline. Ends early when the deadline has passed.

    Lists of different lengths make every block of the call one that is refused, as Mooncake does.
    """
    if not len(keys) == len(pointers) == len(sizes):
        yield Batch(keys, [0] * len(keys), [0] * len(keys))
        return
    start = 0
    while start < len(keys) and (until is None or until.left() > 0):
        end = min(len(keys), start + STEP_KEYS) if until is not None else len(keys)
        here = _naturals(sizes[start:end])
        if until is not None:
            here = here[: _fitting(here)]
            end = start + len(here)
        yield Batch(keys[start:end], _naturals(pointers[start:end]), here)
        start = end


def _fitting(sizes: Sequence[int]) -> int:
    """How many of the first sizes one step takes: at least one."""
    total = 0
    for count, size in enumerate(sizes):
        total += size
        if total > STEP_BYTES and count:
            return count
    return len(sizes)


def _naturals(values: Sequence[object]) -> list[int]:
    """Each as `_natural`. Nearly always all of them are such ints, which is seen as a whole."""
    if set(map(type, values)) == {int}:
        numbers = cast("Sequence[int]", values)
        if min(numbers) > 0 and max(numbers) < _NATURAL_END:
            return list(numbers)
    return [_natural(value) for value in values]


def _natural(value: object) -> int:
    """An address or size as an int (numpy's too); 0 for anything that is none."""
    try:
        number = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return 0
    return int(number) if 0 < number < _NATURAL_END else 0


def _is_key(key: object) -> bool:
    if not isinstance(key, str) or not key:
        return False
    if key.isascii():
        return True
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True
