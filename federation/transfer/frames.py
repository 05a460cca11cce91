"""Blocks on the wire: headers and payload in raw messages, sans-IO.

A pull is answered by a stream of messages of at most `message_bytes` payload each. A message is a run
of pieces; a piece is a 28-byte header, or payload of the block whose header came last. Small blocks are
packed many to a message, a large one spans messages; a header is never split. There is no protobuf
around the payload: at 1 MiB messages that would be one more copy of every byte.

    header: version u8 | kind u8 | hops u16 | index u32 | size u32 | digest 16 B, little-endian

`index` is the key's place in the request, and grows strictly within a stream. `hops` says how many
group borders the sender's copy has crossed: 0 for what its own engines wrote.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from federation.errors import PeerError
from federation.identity import DIGEST_BYTES

VERSION = 1
_HEADER = struct.Struct(f"<BBHII{DIGEST_BYTES}s")
HEADER_BYTES = _HEADER.size
NO_DIGEST = bytes(DIGEST_BYTES)


class Kind(enum.IntEnum):
    """What a header announces."""

    BLOCK = 1
    """`size` bytes of payload follow."""
    MISSING = 2
    """The owner does not hold this block now."""
    UNATTESTED = 4
    """As BLOCK, of a block whose writer's digest nobody knows: this one the sender made as it sent it."""
    END = 3
    """Nothing follows: the answer is complete. A stream that ends without it was cut."""


class FrameError(PeerError):
    """The stream is not in the form of this module, or breaks a limit; nothing of the block is kept."""

    code = "MM303"
    failure = "protocol"


class NoRoomError(Exception):
    """The receiver has no memory for the next block: its own limit, and no fault of the sender."""


@dataclass(frozen=True, slots=True)
class Block:
    """A whole block as it arrived. Its digest is what the sender says, not yet checked."""

    index: int
    digest: bytes
    hops: int
    data: memoryview
    attested: bool = True
    """Whether the digest is its writer's."""
    good: bool | None = None
    """Whether its bytes are those of its digest, where another process has looked; None: not yet known."""


@dataclass(frozen=True, slots=True)
class Missing:
    """The owner does not hold the block at `index`."""

    index: int


class Encoder:
    """Packs blocks into messages.

    Args:
        message_bytes: payload that a message is filled up to; its headers exceed it, so that a block of that
            size is one message.
    """

    def __init__(self, message_bytes: int) -> None:
        self._message_bytes = message_bytes
        self._begun = bytearray()
        self._room = message_bytes
        """Payload that this message has room for."""

    def block(
        self, index: int, digest: bytes, data: memoryview, hops: int = 0, attested: bool = True
    ) -> Iterator[bytes]:
        """Adds one block; yields each message that is full.

        The bytes are copied once, into the message (what does not fill one: twice): gRPC keeps a message
        until it is sent, while the buffer `data` is of a lease that ends sooner.
        """
        kind = Kind.BLOCK if attested else Kind.UNATTESTED
        self._begun += _HEADER.pack(VERSION, kind, hops, index, len(data), digest)
        start = 0
        while len(data) - start >= (room := self._room):
            yield self._take(data[start : start + room])
            start += room
        self._begun += data[start:]
        self._room -= len(data) - start

    def missing(self, index: int) -> Iterator[bytes]:
        """Says that the block at `index` is not here."""
        self._begun += _HEADER.pack(VERSION, Kind.MISSING, 0, index, 0, NO_DIGEST)
        if len(self._begun) >= self._message_bytes:
            yield self._take()

    def flush(self) -> Iterator[bytes]:
        """What has not been sent yet, so that a block does not wait for the next."""
        if self._begun:
            yield self._take()

    def end(self) -> bytes:
        """The last message."""
        self._begun += _HEADER.pack(VERSION, Kind.END, 0, 0, 0, NO_DIGEST)
        return self._take()

    def _take(self, rest: bytes | memoryview = b"") -> bytes:
        message = b"".join((self._begun, rest))
        self._begun, self._room = bytearray(), self._message_bytes
        return message


def from_heap(index: int, size: int) -> memoryview | None:
    """Memory of its own for each block."""
    return memoryview(bytearray(size))


class Decoder:
    """Takes a stream of messages apart. Everything is checked before memory is asked for.

    Args:
        max_sizes: bytes that may arrive for each key of the request.
        message_bytes_max: the longest message that is looked at.
        memory: gives the memory for each block, by its index and size; None where there is none.
    """

    def __init__(
        self,
        max_sizes: Sequence[int],
        message_bytes_max: int,
        memory: Callable[[int, int], memoryview | None] = from_heap,
    ) -> None:
        self._max_sizes = max_sizes
        self._memory = memory
        self._message_bytes_max = message_bytes_max
        self._last_index = -1
        self._block: Block | None = None
        self._filled = 0
        self.ended = False
        self.payload_bytes = 0
        """Payload seen so far, in bytes."""

    def feed(self, message: bytes) -> Iterator[Block | Missing]:
        """Yields each block that `message` completes, and each key that is missing.

        Raises:
            FrameError: on the first thing that does not fit; the stream is of no use after it.
            NoRoomError: if there is no memory; likewise.
        """
        if len(message) > self._message_bytes_max:
            raise FrameError(
                f"a message of {len(message)} bytes; the limit is {self._message_bytes_max}"
            )
        view = memoryview(message)
        at = 0
        while at < len(view):
            if self.ended:
                raise FrameError("bytes after the end of the answer")
            if self._block is None:
                found = self._header(view, at)
                at += HEADER_BYTES
                if isinstance(found, Missing):
                    yield found
                    continue
                if found is None:
                    continue
                self._block, self._filled = found, 0
            take = min(len(self._block.data) - self._filled, len(view) - at)
            self._block.data[self._filled : self._filled + take] = view[at : at + take]
            self._filled += take
            self.payload_bytes += take
            at += take
            if self._filled == len(self._block.data):
                done, self._block = self._block, None
                yield done

    def announced(self, message: bytes) -> list[tuple[int, int]]:
        """The blocks that begin in `message`, index and size, before it is fed, which
        needs memory for them.
        As far as they make sense: what does not, `feed` finds."""
        found, at = [], 0
        if self._block is not None:
            at = len(self._block.data) - self._filled
        while at + HEADER_BYTES <= len(message):
            _, kind, _, index, size, _ = _HEADER.unpack_from(message, at)
            at += HEADER_BYTES
            if kind in (Kind.BLOCK, Kind.UNATTESTED):
                if not (index < len(self._max_sizes) and 0 < size <= self._max_sizes[index]):
                    break
                found.append((index, size))
                at += size
        return found

    @property
    def unfinished_bytes(self) -> int:
        """Memory taken for a block that has not arrived whole."""
        return 0 if self._block is None else len(self._block.data)

    def _header(self, view: memoryview, at: int) -> Block | Missing | None:
        if len(view) - at < HEADER_BYTES:
            raise FrameError(f"a header cut short: {len(view) - at} of {HEADER_BYTES} bytes")
        version, kind, hops, index, size, digest = _HEADER.unpack_from(view, at)
        if version != VERSION:
            raise FrameError(f"a header of version {version}; this side speaks {VERSION}")
        if kind == Kind.END:
            self.ended = True
            return None
        if not self._last_index < index < len(self._max_sizes):
            raise FrameError(
                f"block {index} after {self._last_index} in an answer to {len(self._max_sizes)} keys"
            )
        self._last_index = index
        if kind == Kind.MISSING:
            return Missing(index)
        if kind not in (Kind.BLOCK, Kind.UNATTESTED):
            raise FrameError(f"a header of unknown kind {kind}")
        if not 0 < size <= self._max_sizes[index]:
            raise FrameError(
                f"block {index} of {size} bytes; between 1 and {self._max_sizes[index]} were asked for"
            )
        data = self._memory(index, size)
        if data is None:
            raise NoRoomError
        return Block(index, digest, hops, data, kind == Kind.BLOCK)
