"""Sorted prints as bytes: the gaps between them, in words of one width.

    gap of the first = print - base;  of each other = print - the one before - 1

A word is `width` bytes, little-endian. All bits set means: so far, and no print yet. What a print costs is
thus `width` bytes, and the encoder takes the width that costs least: two bytes in a snapshot, four in a few
hundred changes of ten million blocks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from federation.catalog.prints import BITS_MAX, Prints

WIDTHS = range(2, BITS_MAX // 8 + 1)
"""Bytes a word can have."""
_PLAIN = (2, 4)
"""Widths that numpy knows."""


def bytes_max(prints: int) -> int:
    """Bytes that so many prints take at most."""
    return WIDTHS[-1] * (prints + 1)


def encode(prints: Prints, base: int) -> tuple[int, bytes]:
    """Width and bytes of sorted prints, none of them below `base`."""
    if not len(prints):
        return WIDTHS[0], b""
    gaps = np.empty_like(prints)
    gaps[0] = int(prints[0]) - base
    np.subtract(prints[1:], prints[:-1], out=gaps[1:])
    gaps[1:] -= np.uint64(1)
    width = _cheapest(gaps)
    far = np.uint64(_far(width))
    if int(gaps.max()) < far:
        return width, _pack(gaps, width)
    skipped, rest = np.divmod(gaps, far)
    places = np.cumsum(skipped + np.uint64(1)).astype(np.intp) - 1
    words = np.full(int(places[-1]) + 1, far, dtype=np.uint64)
    words[places] = rest
    return width, _pack(words, width)


def decode(packed: bytes, width: int, base: int, bits: int) -> Prints:
    """Sorted prints of `bits` bits, none of them below `base`.

    Takes at most 40 bytes of memory for each word of `packed`.

    Raises:
        ValueError: these are not the bytes of any.
    """
    if width not in WIDTHS:
        raise ValueError(f"words of {width} bytes; they have {WIDTHS[0]} to {WIDTHS[-1]}")
    if len(packed) % width:
        raise ValueError(f"{len(packed)} bytes in words of {width}")
    if base >> bits:
        raise ValueError(f"a base above {bits} bits")
    if not packed:
        return np.empty(0, dtype=np.uint64)
    words = _unpack(packed, width)
    is_print = words != np.uint64(_far(width))
    if not is_print[-1]:
        raise ValueError("a gap behind which nothing comes")
    # No overflow: words have at most 40 bits, and a message has less than 2^23 of them.
    prints = np.cumsum(words, dtype=np.uint64)
    if not is_print.all():
        prints = prints[is_print]
    prints += np.arange(base, base + len(prints), dtype=np.uint64)
    if int(prints[-1]) >> bits:
        raise ValueError(f"a print above {bits} bits")
    return prints


def _far(width: int) -> int:
    return (1 << 8 * width) - 1


def _cheapest(gaps: Prints) -> int:
    best, least = WIDTHS[-1], bytes_max(len(gaps)) + 1
    for width in WIDTHS:
        wide = gaps[gaps >= np.uint64(_far(width))]
        cost = width * (len(gaps) + int((wide // np.uint64(_far(width))).sum()))
        if cost < least:
            best, least = width, cost
        if not len(wide):
            break
    return best


def _pack(words: Prints, width: int) -> bytes:
    if width in _PLAIN:
        return words.astype(f"<u{width}").tobytes()
    octets: npt.NDArray[np.uint8] = words.astype("<u8").view(np.uint8).reshape(-1, 8)
    return octets[:, :width].tobytes()


def _unpack(packed: bytes, width: int) -> Prints:
    if width in _PLAIN:
        return np.frombuffer(packed, dtype=f"<u{width}").astype(np.uint64)
    octets = np.zeros((len(packed) // width, 8), dtype=np.uint8)
    octets[:, :width] = np.frombuffer(packed, dtype=np.uint8).reshape(-1, width)
    return octets.view("<u8")[:, 0].astype(np.uint64)
