"""Places of blocks in the gateway's memory: what is packed comes out, and nothing that was not asked for."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federation.transfer.places import END, PLACE_BYTES, Place, PlaceError, PlaceReader, PlaceWriter

DIGEST = bytes(range(16))


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 2**31), max_size=40),
    message_bytes=st.integers(1, 4 * PLACE_BYTES),
)
def test_what_is_packed_comes_out(sizes: list[int], message_bytes: int) -> None:
    places = [Place(n, size, n << 33, DIGEST) for n, size in enumerate(sizes)]
    writer = PlaceWriter(message_bytes)
    messages = [m for place in places for m in writer.place(place)]
    messages += writer.flush()
    messages.append(writer.end())
    assert all(len(m) < message_bytes + PLACE_BYTES for m in messages)
    reader = PlaceReader(sizes)
    assert [place for m in messages for place in reader.feed(m)] == places
    assert reader.ended


def place(block: int, size: int = 4) -> bytes:
    return struct.pack("<IIQ16s", block, size, 0, DIGEST)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (place(0)[:-1], "no whole number"),
        (place(2), "block 2 after -1 in an answer to 2 keys"),
        (place(1) + place(1), "block 1 after 1"),
        (place(0, 0), "block 0 of 0 bytes"),
        (place(0, 9), "block 0 of 9 bytes; there is room for 8"),
        (place(END) + place(0), "after the end"),
    ],
)
def test_what_does_not_fit_is_refused(message: bytes, says: str) -> None:
    with pytest.raises(PlaceError, match=says):
        list(PlaceReader([8, 8]).feed(message))
