"""What a leader's pages change in a follower's holdings; sans-IO.

A leader's content is believed, being of the same group; that it keeps to sizes is checked all the same.
Its snapshot takes nothing away. What it does not name may be what this gateway's engines wrote a moment
ago, or what an earlier leader was told and this one was not: it is told to the leader. What is gone from
Mooncake listings find, here as there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from federation.config import Limits
from federation.counters import counters
from federation.identity import DIGEST_BYTES
from federation.peers.feed import BLOCKS_PER_MESSAGE, Unnamed, read_held
from local_group.holdings import CHANGED, OWN, UNKNOWN, Holdings
from local_group.journal import Entry
from local_group.ledger import entry_of
from moonmesh.v1 import group_pb2, serving_pb2

PAGE_BLOCKS_MAX = 16 * BLOCKS_PER_MESSAGE
"""Blocks of one page that are looked at; a leader of this release sends `BLOCKS_PER_MESSAGE`."""
ORIGIN_BYTES_MAX = 31
"""Of a group's name."""
HOPS_MAX = 0xFFFF
EPOCH_MAX = (1 << 63) - 1


@dataclass
class Step:
    """What is to be done for one page, in this order."""

    gone: list[tuple[bytes, int]] = field(default_factory=list)
    """Blocks to withdraw: fingerprint, name."""
    news: list[tuple[Entry, bytes | None]] = field(default_factory=list)
    """Blocks to hold, with the rival digest of each."""


class Copying:
    """One stream of a leader, from its snapshot on.

    Args:
        holdings: of this gateway; looked at, and changed by the caller, by each `Step` in its order.
        untold: whether a block waits to be told to the leader: then ours is the later word on it.
        namespaces: fingerprints; of others nothing is taken.
    """

    def __init__(
        self,
        holdings: Holdings,
        untold: Callable[[tuple[bytes, int]], bool],
        namespaces: Collection[bytes],
        limits: Limits,
    ) -> None:
        self._holdings = holdings
        self._untold = untold
        self._namespaces = frozenset(namespaces)
        self._limits = limits
        self._unnamed = Unnamed(holdings, ())
        self.complete = False
        """A whole snapshot is here."""
        self.listed = False
        """Mooncake was listed since: what it has lost is in nobody's holdings."""
        self.blocks = 0
        """Blocks that were told of, as often as they were."""

    def take(self, page: group_pb2.FollowPage) -> Step:
        """What a page asks for."""
        which = page.WhichOneof("what")
        step = Step()
        if which == "snapshot_begin":
            self.complete = self.listed = False
            self._unnamed = Unnamed(self._holdings, self._namespaces)
        elif which == "snapshot_end":
            self._unnamed.end()
            self.complete = True
        elif which == "blocks" and page.blocks.fingerprint in self._namespaces:
            self._blocks(page.blocks, step)
        return step

    def wrote(self, entries: Iterable[Entry]) -> None:
        """Engines here have written these, and the leader is told of them anyway."""
        if not self.complete:
            for entry in entries:
                self._unnamed.skip(entry.fingerprint, entry.name)

    def lacking(self, count: int) -> list[Entry]:
        """Up to `count` own blocks that the snapshot did not name, each once; for the leader to be told.

        Empty before the snapshot is whole and Mooncake was `listed`, and when all have been given.
        """
        entries: list[Entry] = []
        while self.complete and self.listed and len(entries) < count:
            unnamed = self._unnamed.pop()
            if unnamed is None:
                break
            held = self._holdings.get(*unnamed)
            if held is not None and held.attested and held.origin == OWN:
                entries.append(entry_of(*unnamed, held))
        return entries

    def _blocks(self, blocks: serving_pb2.OfferedBlocks, step: Step) -> None:
        fingerprint = blocks.fingerprint
        if blocks.HasField("through"):
            self._unnamed.page(blocks)
        for name in blocks.withdrawn[:PAGE_BLOCKS_MAX]:
            self._unnamed.spare(fingerprint, name)
            if not self._untold((fingerprint, name)):
                step.gone.append((fingerprint, name))
        self.blocks += len(blocks.offered)
        for block in blocks.offered[:PAGE_BLOCKS_MAX]:
            if not self._plausible(block):
                counters.add("moonmesh_follow_implausible_total")
                continue
            self._unnamed.spare(fingerprint, block.name)
            self._block(fingerprint, block, step)

    def _block(self, fingerprint: bytes, block: serving_pb2.OfferedBlock, step: Step) -> None:
        told = read_held(block)
        held = self._holdings.get(fingerprint, block.name)
        attested_here = held is not None and held.attested and held.origin == OWN
        if attested_here and not told.attested and told.origin != CHANGED:
            self._unnamed.add(
                fingerprint, block.name
            )  # the leader does not know what it should contain
        if not told.attested and told.origin == OWN:
            return  # a listing found it there, and finds it here
        if held is not None:
            if held[:5] == told[:5] and held.rival == told.rival:
                return
            if held.origin == CHANGED or (told.origin == UNKNOWN and held.attested):
                return  # more is known here
            if held.origin not in (OWN, UNKNOWN) and told.origin == OWN:
                return  # pulled here: that it came from a peer is known for sure
            if held.digest != told.digest and self._untold((fingerprint, block.name)):
                return
        step.news.append((entry_of(fingerprint, block.name, told), told.rival))

    def _plausible(self, block: serving_pb2.OfferedBlock) -> bool:
        own = block.origin == OWN
        attested = len(block.digest) == DIGEST_BYTES
        return (
            (0 < block.size <= self._limits.block_bytes_max) == attested
            and (attested or (not block.digest and block.origin in (OWN, UNKNOWN, CHANGED)))
            and len(block.rival) in (0, DIGEST_BYTES)
            and len(block.origin.encode()) <= ORIGIN_BYTES_MAX
            and (block.hops == 0 if own else 0 < block.hops <= HOPS_MAX)
            and block.epoch <= EPOCH_MAX
        )
