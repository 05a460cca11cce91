"""How a hostile peer answers pulls."""

from __future__ import annotations

import asyncio
import os
import struct
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

import numpy as np

from chaos.hostile.names import Answer
from federation.bench.workload import BlockBytes
from federation.identity import Fingerprint, block_digest
from federation.transfer.frames import HEADER_BYTES, Encoder

BLOCK_BYTES = 4096
MESSAGE_BYTES = 1 << 18
DRIP_S = 1.0
LATE_S = {Answer.SLUGGISH: 0.35, Answer.TARDY: 0.1}
"""How long they take for any answer."""
HUGE_BYTES = 1 << 20
"""Where there is room for as much, a block is as large as the room."""
PATCHES = 4
"""A patchy peer lacks one block in so many: too few for a liar."""

Content = Callable[[str], bytes]
"""The bytes that an honest group would hold under a key."""


def honest_block(key: str) -> bytes:
    """The bytes of the plain content: readers compare with these."""
    return (key.encode() * BLOCK_BYTES)[:BLOCK_BYTES]


def load_content(blocks: BlockBytes) -> Content:
    """The content of the blocks of a load: see `chaos.load.keys`."""

    def content(key: str) -> bytes:
        out = np.empty((1, blocks.size), np.uint8)
        blocks.fill([key], out)
        return out.tobytes()

    return content


def _blocks(
    keys: Sequence[str],
    make: Callable[[str], tuple[bytes, bytes]],
    hops: int = 0,
    attested: bool = True,
) -> list[bytes]:
    """Messages with `make(key)`, digest and bytes, for each key."""
    encoder = Encoder(MESSAGE_BYTES)
    messages: list[bytes] = []
    for index, key in enumerate(keys):
        digest, data = make(key)
        messages += encoder.block(index, digest, memoryview(data), hops, attested)
    return [*messages, encoder.end()]


def _flipped(data: bytes) -> bytes:
    return bytes([data[0] ^ 0xFF]) + data[1:]


def _honest(
    fingerprint: Fingerprint, keys: Sequence[str], content: Content, attested: bool = True
) -> list[bytes]:
    def make(key: str) -> tuple[bytes, bytes]:
        data = content(key)
        return block_digest(fingerprint, key, data), data

    return _blocks(keys, make, attested=attested)


def _unattested(fingerprint: Fingerprint, keys: Sequence[str], content: Content) -> list[bytes]:
    return _honest(fingerprint, keys, content, attested=False)


def _wrong_digest(fingerprint: Fingerprint, keys: Sequence[str], content: Content) -> list[bytes]:
    def make(key: str) -> tuple[bytes, bytes]:
        data = content(key)
        return block_digest(fingerprint, key, data + b"!"), data

    return _blocks(keys, make)


def _wrong_bytes(fingerprint: Fingerprint, keys: Sequence[str], content: Content) -> list[bytes]:
    def make(key: str) -> tuple[bytes, bytes]:
        data = content(key)
        return block_digest(fingerprint, key, data), _flipped(data)

    return _blocks(keys, make)


def _poison(fingerprint: Fingerprint, keys: Sequence[str], content: Content) -> list[bytes]:
    def make(key: str) -> tuple[bytes, bytes]:
        data = bytes(byte ^ 0xFF for byte in content(key))
        return block_digest(fingerprint, key, data), data

    return _blocks(keys, make)


def _wrong_length(fingerprint: Fingerprint, keys: Sequence[str], content: Content) -> list[bytes]:
    def make(key: str) -> tuple[bytes, bytes]:
        data = content(key)[:-1]
        return block_digest(fingerprint, key, data), data

    return _blocks(keys, make)


def _wrong_namespace(
    fingerprint: Fingerprint, keys: Sequence[str], content: Content
) -> list[bytes]:
    other = Fingerprint(bytes(byte ^ 0xFF for byte in fingerprint))

    def make(key: str) -> tuple[bytes, bytes]:
        data = content(key)
        return block_digest(other, key, data), data

    return _blocks(keys, make)


def _travelled(fingerprint: Fingerprint, keys: Sequence[str], content: Content) -> list[bytes]:
    def make(key: str) -> tuple[bytes, bytes]:
        data = bytes(byte ^ 0xFF for byte in content(key))
        return block_digest(fingerprint, key, data), data

    return _blocks(keys, make, hops=1)


def _patchy(fingerprint: Fingerprint, keys: Sequence[str], content: Content) -> list[bytes]:
    encoder = Encoder(MESSAGE_BYTES)
    messages: list[bytes] = []
    for index, key in enumerate(keys):
        if zlib.crc32(key.encode()) % PATCHES:
            data = content(key)
            digest = block_digest(fingerprint, key, data)
            messages += encoder.block(index, digest, memoryview(data))
        else:
            messages += encoder.missing(index)
    return [*messages, encoder.end()]


def _wrong_size(fingerprint: Fingerprint, keys: Sequence[str], content: Content) -> list[bytes]:
    return [struct.pack("<BBHII16s", 1, 1, 0, 0, 1 << 30, bytes(16)) + bytes(1000)]


def _oversized(fingerprint: Fingerprint, keys: Sequence[str], content: Content) -> list[bytes]:
    return [bytes(16 * 1024 * 1024)]


def _garbage(fingerprint: Fingerprint, keys: Sequence[str], content: Content) -> list[bytes]:
    return [os.urandom(1000)]


def _cut(fingerprint: Fingerprint, keys: Sequence[str], content: Content) -> list[bytes]:
    whole = _honest(fingerprint, keys[:1], content)[0]
    return [whole[: len(whole) // 2]]


def _nothing(fingerprint: Fingerprint, keys: Sequence[str], content: Content) -> list[bytes]:
    encoder = Encoder(MESSAGE_BYTES)
    return [m for index in range(len(keys)) for m in encoder.missing(index)] + [encoder.end()]


MESSAGES: Mapping[Answer, Callable[[Fingerprint, Sequence[str], Content], list[bytes]]] = {
    Answer.HONEST: _honest,
    Answer.WRONG_DIGEST: _wrong_digest,
    Answer.WRONG_BYTES: _wrong_bytes,
    Answer.POISON: _poison,
    Answer.WRONG_SIZE: _wrong_size,
    Answer.WRONG_LENGTH: _wrong_length,
    Answer.WRONG_NAMESPACE: _wrong_namespace,
    Answer.OVERSIZED_MESSAGE: _oversized,
    Answer.GARBAGE: _garbage,
    Answer.CUT: _cut,
    Answer.NOTHING: _nothing,
    Answer.PATCHY: _patchy,
    Answer.TRAVELLED: _travelled,
    Answer.UNATTESTED: _unattested,
}
"""The answers that are sent as fast as they are taken."""


def _huge(
    fingerprint: Fingerprint, keys: Sequence[str], content: Content, room: Sequence[int]
) -> Iterator[bytes]:
    encoder = Encoder(MESSAGE_BYTES)
    for index, key in enumerate(keys):
        data = content(key)
        if index < len(room) and room[index] >= HUGE_BYTES:
            data = data.ljust(room[index], b"\0")
        yield from encoder.block(index, block_digest(fingerprint, key, data), memoryview(data))
    yield encoder.end()


async def answer(
    how: Answer,
    fingerprint: Fingerprint,
    keys: Sequence[str],
    content: Content,
    room: Sequence[int] = (),
) -> AsyncIterator[bytes]:
    """The messages of one answer.

    Args:
        room: bytes that the asker has for each key; none: unknown.
    """
    if how in MESSAGES:
        for message in MESSAGES[how](fingerprint, keys, content):
            yield message
        return
    if how in LATE_S:
        await asyncio.sleep(LATE_S[how])
        for message in _honest(fingerprint, keys, content):
            yield message
        return
    if how is Answer.HUGE:
        for message in _huge(fingerprint, keys, content, room):
            yield message
        return
    if how is Answer.STALL:
        await asyncio.Event().wait()
    (whole, *_) = _honest(fingerprint, keys[:1], content)
    if how is Answer.STALL_MIDWAY:
        yield whole[: len(whole) // 2]
        await asyncio.Event().wait()
    yield whole[:HEADER_BYTES]
    for place in range(HEADER_BYTES, len(whole)):
        await asyncio.sleep(DRIP_S)
        yield whole[place : place + 1]
