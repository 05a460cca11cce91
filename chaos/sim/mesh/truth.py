"""What is true in a world, whatever its gateways believe: bytes of blocks, and who has made which."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from chaos.sim.invariants import Broken
from local_group.names import name_of

PIECE: Final = 64
PIECES_MIN: Final = 4
PIECES_MAX: Final = 32
"""Of a block: 256 to 2,048 bytes."""

Block = tuple[bytes, int]
"""A block of a namespace, by its name."""


@lru_cache(maxsize=8192)
def bytes_of(fingerprint: bytes, key: str) -> bytes:
    """What a block is, in whichever group it is computed: of no other key or namespace."""
    seed = hashlib.blake2b(key.encode(), key=fingerprint).digest()
    return seed * (PIECES_MIN + seed[0] % (PIECES_MAX - PIECES_MIN + 1))


@dataclass
class Deeds:
    """What a group has done.

    Attributes:
        computed: blocks that its engines have computed, and put.
        pulled: blocks that have landed here from peers.
        own: stored keys in its pool whose bytes an engine here has put.
    """

    computed: set[Block] = field(default_factory=set)
    pulled: set[Block] = field(default_factory=set)
    own: dict[str, Block] = field(default_factory=dict)


@dataclass
class Tally:
    """What came of all reads."""

    local: int = 0
    peer: int = 0
    computed: int = 0
    reads: int = 0
    peer_bytes: int = 0
    existed: int = 0
    """Blocks that engines were told exist."""
    unanswered: int = 0
    """Calls to a gateway that was frozen, killed or not there."""


class Truth:
    """Of one world.

    Attributes:
        hostile: groups of which nothing is asked.
    """

    def __init__(self, groups: list[str], hostile: frozenset[str] = frozenset()) -> None:
        self.deeds = {name: Deeds() for name in groups}
        self.hostile = hostile
        self.tally = Tally()

    def put(self, group: str, fingerprint: bytes, key: str, stored: str, *, fresh: bool) -> None:
        """An engine has put what it computed; `fresh`: it was not there."""
        deeds, block = self.deeds[group], (fingerprint, name_of(fingerprint, key))
        deeds.computed.add(block)
        if fresh:
            deeds.own[stored] = block

    def landed(self, group: str, fingerprint: bytes, name: int) -> None:
        """A block of a peer is in staging."""
        self.deeds[group].pulled.add((fingerprint, name))

    def lost(self, group: str, stored: str, removed: bool) -> None:
        """A pool has a key no more."""
        deeds = self.deeds[group]
        block = deeds.own.pop(stored, None)
        if removed and block is not None and block not in deeds.pulled:
            raise Broken("own blocks stay", f"{group} removed {stored}, which it wrote", group)

    def given(self, group: str, fingerprint: bytes, key: str, data: bytes, where: str) -> None:
        """An engine was given a block."""
        if data != bytes_of(fingerprint, key):
            raise Broken("no wrong bytes", f"an engine of {group} was given {key} {where}", group)

    def offered(self, group: str, fingerprint: bytes, name: int, how: str) -> None:
        """A group offers a block, or has sent it."""
        if group not in self.hostile and (fingerprint, name) not in self.deeds[group].computed:
            raise Broken(
                "nothing is passed on", f"{group} {how} a block that is not its own", group
            )
