"""Catalog answers as pages, and pages from a peer checked before they are believed; sans-IO.

All sizes are checked before memory is taken. Most of it is taken for a snapshot's first page: what its prints
and buckets may need, at most 3 bytes for each of `blocks_max` and 4 KiB, whatever the peer claims. A page
takes 40 bytes more for each of its words while it is read, and changes 8 bytes each, `CHANGES_MAX` at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from federation.catalog import gaps
from federation.catalog.log import CHANGES_MAX, Changes, Position, Whole
from federation.catalog.prints import BITS_MAX, BITS_MIN, BUCKET_BITS_MIN, Prints
from federation.catalog.snapshot import SnapshotBuilder
from federation.catalog.view import News
from federation.errors import PeerError
from moonmesh.v1 import peer_pb2

FORM: Final = 1
"""Of prints on the wire."""
LOG_ID_BYTES: Final = 16
BLOCKS_PER_BUCKET_KEPT: Final = 4
"""A view keeps a bucket for so many blocks that it may keep: what a peer claims takes no more memory."""
_N_MAX = 1 << 62
_NONE = np.empty(0, dtype=np.uint64)


class CatalogError(PeerError):
    """A page does not have the form it must have; the view keeps what it had."""

    code = "MM304"
    failure = "protocol"


def pages(answer: Whole | Changes, entries_max: int) -> Iterator[peer_pb2.CatalogPage]:
    """The answer in pages of at most `entries_max` prints each; each page is made when it is asked for."""
    if isinstance(answer, Whole):
        made = _snapshot_pages(answer, entries_max)
    else:
        made = _change_pages(answer, entries_max)
    before: peer_pb2.CatalogPage | None = None
    for page in made:
        if before is not None:
            yield before
        before = page
    if before is None:
        before = _page(answer)
    before.last = True
    yield before


def _snapshot_pages(answer: Whole, entries_max: int) -> Iterator[peer_pb2.CatalogPage]:
    for piece in answer.hashes.prints(answer.bits):
        for start in range(0, len(piece), entries_max):
            page = _page(answer)
            _write(page.added, piece[start : start + entries_max])
            yield page


def _change_pages(answer: Changes, entries_max: int) -> Iterator[peer_pb2.CatalogPage]:
    cut = len(answer.removed)
    for start in range(0, cut + len(answer.added), entries_max):
        end = start + entries_max
        page = _page(answer)
        _write(page.removed, answer.removed[start:end])
        _write(page.added, answer.added[max(start - cut, 0) : max(end - cut, 0)])
        yield page


def _page(answer: Whole | Changes) -> peer_pb2.CatalogPage:
    whole = isinstance(answer, Whole)
    return peer_pb2.CatalogPage(
        position=position_to_wire(answer.position),
        snapshot=whole,
        form=FORM,
        bits=answer.bits,
        blocks=answer.blocks if isinstance(answer, Whole) else 0,
    )


def _write(into: peer_pb2.Prints, prints: Prints) -> None:
    if len(prints):
        into.base = int(prints[0])
        into.width, into.gaps = gaps.encode(prints, into.base)


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


class _Head(NamedTuple):
    """What all pages of an answer have in common."""

    position: Position
    snapshot: bool
    bits: int
    blocks: int


class Assembler:
    """Collects the pages of one answer.

    Args:
        blocks_max: prints believed of one peer and namespace; what exceeds it is left out and counted.
        bits: of the prints that the view has, in which changes have to come; None if it has none yet.
    """

    def __init__(self, blocks_max: int, bits: int | None) -> None:
        self._blocks_max = blocks_max
        self._bits = bits
        self._head: _Head | None = None
        self._builder: SnapshotBuilder | None = None
        self._claimed = 0
        self._added: list[Prints] = []
        self._removed: list[Prints] = []
        self._room = CHANGES_MAX
        self.left_out = 0

    def feed(self, page: peer_pb2.CatalogPage) -> News | None:
        """Takes a page; the whole answer after the last one, or once there is room for no more of it.

        Raises:
            CatalogError: if the page does not fit; start anew with a snapshot.
        """
        head = self._check(page)
        removed = self._read(page.removed, head.bits)
        added = self._read(page.added, head.bits)
        if not page.last and not len(removed) and not len(added):
            raise CatalogError("an empty page that is not the last")
        if self._builder is not None:
            self._take_snapshot(self._builder, added, len(removed))
        else:
            self._take(self._removed, removed)
            self._take(self._added, added)
        # Behind what there is room for nothing is of use: who claims more blocks than there can be is not
        # listened to for longer than it takes to fill its share.
        full = self._builder is not None and self._builder.is_full
        if not page.last and not full:
            return None
        snapshot = None
        if self._builder is not None:
            self.left_out += self._builder.left_out
            snapshot = self._builder.build()
        return News(head.position, snapshot, _joined(self._added), _joined(self._removed))

    def _check(self, page: peer_pb2.CatalogPage) -> _Head:
        if page.form != FORM:
            raise CatalogError(f"prints in form {page.form}; this version reads form {FORM}")
        head = _Head(position_from_wire(page.position), page.snapshot, page.bits, page.blocks)
        if self._head is not None:
            if head != self._head:
                raise CatalogError("pages of one answer disagree about what they are part of")
            return head
        if not BITS_MIN <= head.bits <= BITS_MAX:
            raise CatalogError(f"prints of {head.bits} bits; they have {BITS_MIN} to {BITS_MAX}")
        if head.snapshot:
            self._builder = SnapshotBuilder(
                head.bits,
                min(head.blocks, self._blocks_max),
                max(1 << BUCKET_BITS_MIN, self._blocks_max // BLOCKS_PER_BUCKET_KEPT),
            )
        elif head.bits != self._bits:
            raise CatalogError(f"changes in prints of {head.bits} bits, not {self._bits}")
        self._head = head
        return head

    def _read(self, packed: peer_pb2.Prints, bits: int) -> Prints:
        if not packed.gaps:
            return _NONE
        try:
            return gaps.decode(packed.gaps, packed.width, packed.base, bits)
        except ValueError as error:
            raise CatalogError(str(error)) from None

    def _take_snapshot(self, builder: SnapshotBuilder, added: Prints, removed: int) -> None:
        assert self._head is not None
        if removed:
            raise CatalogError("a snapshot that removes")
        self._claimed += len(added)
        if self._claimed > self._head.blocks:
            raise CatalogError(f"more than the {self._head.blocks} blocks of the snapshot")
        try:
            builder.take(added)
        except ValueError as error:
            raise CatalogError(str(error)) from None

    def _take(self, into: list[Prints], prints: Prints) -> None:
        if not len(prints):
            return
        if into and prints[0] <= into[-1][-1]:
            raise CatalogError("prints that are not above those before")
        self._room -= len(prints)
        if self._room < 0:
            raise CatalogError(f"more than {CHANGES_MAX} changes in one answer")
        into.append(prints)


def _joined(parts: list[Prints]) -> Prints:
    return parts[0] if len(parts) == 1 else np.concatenate(list(chain([_NONE], parts)))
