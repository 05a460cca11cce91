"""The frames of a pull: what is packed comes out; what does not fit is refused before memory is taken."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federation.transfer import frames
from federation.transfer.frames import Block, Decoder, Encoder, FrameError, Missing, NoRoomError

DIGEST = bytes(range(16))


def encode(items: list[bytes | None], message_bytes: int) -> list[bytes]:
    encoder = Encoder(message_bytes)
    messages: list[bytes] = []
    for index, data in enumerate(items):
        if data is None:
            messages += encoder.missing(index)
        else:
            messages += encoder.block(index, DIGEST, memoryview(data))
    messages.append(encoder.end())
    return messages


@settings(max_examples=200, deadline=None)
@given(
    items=st.lists(st.one_of(st.none(), st.binary(min_size=1, max_size=300)), max_size=12),
    message_bytes=st.integers(min_value=64, max_value=512),
)
def test_what_is_packed_comes_out(items: list[bytes | None], message_bytes: int) -> None:
    messages = encode(items, message_bytes)
    longest = message_bytes + (len(items) + 1) * frames.HEADER_BYTES
    assert all(len(m) <= longest for m in messages)
    decoder = Decoder([300] * len(items), longest)
    out = [event for message in messages for event in decoder.feed(message)]
    assert decoder.ended
    assert [None if isinstance(e, Missing) else bytes(e.data) for e in out] == items
    assert decoder.payload_bytes == sum(len(i) for i in items if i)
    assert all(e.digest == DIGEST for e in out if isinstance(e, Block))


def test_a_block_of_a_message_s_size_is_one_message() -> None:
    messages = encode([b"x" * 64, b"y" * 32, b"z" * 32, b"w" * 65], 64)
    sizes = [len(message) for message in messages]
    head = frames.HEADER_BYTES
    assert sizes == [64 + head, 64 + 2 * head, 64 + head, 1 + head]


def header(version: int = 1, kind: int = 1, index: int = 0, size: int = 4, hops: int = 0) -> bytes:
    return struct.pack("<BBHII16s", version, kind, hops, index, size, DIGEST)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (header(version=2), "version 2"),
        (header(kind=9), "unknown kind 9"),
        (header(index=2), "block 2 after -1 in an answer to 2 keys"),
        (header(index=1) + b"abcd" + header(index=1), "block 1 after 1"),
        (header(size=0), "0 bytes"),
        (header(size=9), "9 bytes; between 1 and 8"),
        (header(size=0xFFFFFFFF), "4294967295 bytes"),
        (header()[:10], "cut short"),
        (header(kind=3) + b"x", "after the end"),
        (b"x" * 200, "limit is 128"),
    ],
)
def test_what_does_not_fit_is_refused(message: bytes, says: str) -> None:
    decoder = Decoder([8, 8], 128)
    with pytest.raises(FrameError, match=says):
        list(decoder.feed(message))


def test_a_block_that_is_exactly_as_large_as_asked_for_passes() -> None:
    decoder = Decoder([8], 128)
    (block,) = decoder.feed(header(size=8) + b"12345678")
    assert isinstance(block, Block)
    assert bytes(block.data) == b"12345678"
    assert not decoder.ended


def test_memory_is_asked_for_before_it_is_taken_and_what_is_unfinished_is_known() -> None:
    asked: list[tuple[int, int]] = []

    def memory(index: int, size: int) -> memoryview | None:
        asked.append((index, size))
        return frames.from_heap(index, size) if len(asked) < 2 else None

    decoder = Decoder([8, 8], 128, memory)
    (block,) = decoder.feed(header(size=8, hops=3) + b"12345678")
    assert isinstance(block, Block)
    assert block.hops == 3
    assert decoder.unfinished_bytes == 0
    with pytest.raises(NoRoomError):
        list(decoder.feed(header(index=1, size=5)))
    assert asked == [(0, 8), (1, 5)]

    cut = Decoder([8], 128)
    assert list(cut.feed(header(size=8) + b"123")) == []
    assert cut.unfinished_bytes == 8


@settings(max_examples=300, deadline=None)
@given(noise=st.binary(max_size=200), sizes=st.lists(st.integers(1, 64), max_size=4))
def test_noise_never_yields_more_than_was_asked_for(noise: bytes, sizes: list[int]) -> None:
    decoder = Decoder(sizes, 128)
    try:
        for event in decoder.feed(noise):
            assert event.index < len(sizes)
            if isinstance(event, Block):
                assert len(event.data) <= sizes[event.index]
    except FrameError:
        return
    assert len(noise) <= 128


@settings(max_examples=200, deadline=None)
@given(
    items=st.lists(st.one_of(st.none(), st.binary(min_size=1, max_size=300)), max_size=12),
    message_bytes=st.integers(min_value=64, max_value=512),
)
def test_what_a_message_begins_is_known_before_it_is_fed(
    items: list[bytes | None], message_bytes: int
) -> None:
    asked: list[tuple[int, int]] = []

    def memory(index: int, size: int) -> memoryview:
        asked.append((index, size))
        return memoryview(bytearray(size))

    decoder = Decoder(
        [300] * len(items), message_bytes + (2 + len(items)) * frames.HEADER_BYTES, memory
    )
    for message in encode(items, message_bytes):
        asked.clear()
        announced = decoder.announced(message)
        assert asked == [], "it takes nothing"
        list(decoder.feed(message))
        assert asked == announced


@pytest.mark.parametrize("size", [0, 9, 0xFFFFFFFF])
def test_no_memory_is_asked_for_what_was_not_asked_for(size: int) -> None:
    decoder = Decoder([8, 8], 1 << 20)
    message = header(index=0, size=4) + b"abcd" + header(index=1, size=size)
    assert decoder.announced(message) == [(0, 4)]
