"""Catalog answers as pages, and pages from a peer checked before they are believed; sans-IO."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from federation.catalog.log import Answer, Position
from federation.errors import PeerError
from moonmesh.v1 import peer_pb2

LOG_ID_BYTES = 16
HASH_BYTES = 8
_N_MAX = 1 << 62


class CatalogError(PeerError):
    """A page does not have the form it must have; the view keeps what it had."""

    code = "MM304"
    failure = "protocol"


def pages(answer: Answer, entries_max: int) -> Iterator[peer_pb2.CatalogPage]:
    """The answer in pages of at most `entries_max` hashes each."""
    added = np.array(answer.added, dtype="<u8")
    removed = np.array(answer.removed, dtype="<u8")
    total = max(len(added) + len(removed), 1)
    for start in range(0, total, entries_max):
        end = start + entries_max
        cut = len(removed)
        yield peer_pb2.CatalogPage(
            position=position_to_wire(answer.position),
            snapshot=answer.snapshot,
            removed=removed[start:end].tobytes(),
            added=added[max(start - cut, 0) : max(end - cut, 0)].tobytes(),
            last=end >= total,
        )


def position_to_wire(position: Position) -> peer_pb2.Position:
    """A position as a message."""
    return peer_pb2.Position(log_id=position.log_id, n=position.n)


def position_from_wire(message: peer_pb2.Position) -> Position:
    """A position from a message.

    Raises:
        CatalogError: if it cannot be one.
    """
    if len(message.log_id) != LOG_ID_BYTES or message.n > _N_MAX:
        raise CatalogError(f"a position with a log id of {len(message.log_id)} bytes")
    return Position(message.log_id, message.n)


class Assembler:
    """Collects the pages of one answer.

    Args:
        blocks_max: hashes believed of one peer and namespace; what exceeds it is left out and counted.
    """

    def __init__(self, blocks_max: int) -> None:
        self._blocks_max = blocks_max
        self._added: list[int] = []
        self._removed: list[int] = []
        self._head: tuple[Position, bool] | None = None
        self.left_out = 0

    def feed(self, page: peer_pb2.CatalogPage) -> Answer | None:
        """Takes a page; the whole answer after the last one.

        Raises:
            CatalogError: if the page does not fit; start anew with a snapshot.
        """
        head = (position_from_wire(page.position), page.snapshot)
        if self._head is not None and head != self._head:
            raise CatalogError("pages of one answer disagree about its position")
        self._head = head
        if page.snapshot and page.removed:
            raise CatalogError("a snapshot that removes")
        if not page.last and not page.added and not page.removed:
            raise CatalogError("an empty page that is not the last")
        self._take(self._removed, page.removed)
        self._take(self._added, page.added)
        if not page.last:
            return None
        return Answer(head[0], head[1], self._added, self._removed)

    def _take(self, into: list[int], packed: bytes) -> None:
        if len(packed) % HASH_BYTES:
            raise CatalogError(f"{len(packed)} bytes of hashes; each has {HASH_BYTES}")
        room = self._blocks_max - len(into)
        hashes = np.frombuffer(packed, dtype="<u8")
        self.left_out += max(0, len(hashes) - room)
        into.extend(hashes[: max(room, 0)].tolist())
