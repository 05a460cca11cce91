"""Where in the gateway's staging the blocks of a chain lie, as told to an engine of its host; sans-IO.

    place: block u32 | size u32 | offset u64 | digest 16 B, little-endian

A message is a run of places. `block` is the key's index in the request, and grows strictly. The last
place of an answer has the block `END` and nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from federation.errors import PeerError
from federation.identity import DIGEST_BYTES

_PLACE: Final = struct.Struct(f"<IIQ{DIGEST_BYTES}s")
PLACE_BYTES: Final = _PLACE.size
END: Final = 0xFFFFFFFF


class PlaceError(PeerError):
    """An answer of a gateway that is not in the form of this module, or names what was not asked for."""

    code = "MM318"


class Place(NamedTuple):
    """Where one block lies, in bytes."""

    block: int
    """Index of the key in the request."""
    size: int
    offset: int
    digest: bytes


class PlaceWriter:
    """Packs places into messages.

    Args:
        message_bytes: after which a message is full.
    """

    def __init__(self, message_bytes: int) -> None:
        self._room = message_bytes
        self._begun = bytearray()

    def place(self, place: Place) -> Iterator[bytes]:
        """Adds one; yields the message that is full."""
        self._begun += _PLACE.pack(*place)
        if len(self._begun) >= self._room:
            yield self._take()

    def flush(self) -> Iterator[bytes]:
        """What has not been sent yet."""
        if self._begun:
            yield self._take()

    def end(self) -> bytes:
        """The last message."""
        self._begun += _PLACE.pack(END, 0, 0, bytes(DIGEST_BYTES))
        return self._take()

    def _take(self) -> bytes:
        message, self._begun = bytes(self._begun), bytearray()
        return message


class PlaceReader:
    """Takes an answer apart.

    Args:
        max_sizes: bytes that there is room for, one per key of the request.
    """

    def __init__(self, max_sizes: Sequence[int]) -> None:
        self._max_sizes = max_sizes
        self._last = -1
        self.ended = False

    def feed(self, message: bytes) -> Iterator[Place]:
        """The places of a message.

        Raises:
            PlaceError: at the first thing that does not fit; the answer is of no use after it.
        """
        if len(message) % PLACE_BYTES:
            raise PlaceError(f"{len(message)} bytes are no whole number of places")
        for fields in _PLACE.iter_unpack(message):
            place = Place(*fields)
            if self.ended:
                raise PlaceError("a place after the end of the answer")
            if place.block == END:
                self.ended = True
                continue
            if not self._last < place.block < len(self._max_sizes):
                raise PlaceError(
                    f"block {place.block} after {self._last} in an answer to {len(self._max_sizes)} keys"
                )
            if not 0 < place.size <= self._max_sizes[place.block]:
                raise PlaceError(
                    f"block {place.block} of {place.size} bytes; there is room for "
                    f"{self._max_sizes[place.block]}"
                )
            self._last = place.block
            yield place
