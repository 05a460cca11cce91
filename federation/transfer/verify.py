"""A block as it came from a peer, checked: nothing of one that is not as it should be leaves here."""

from __future__ import annotations

import time
from typing import Protocol

from federation.counters import counters
from federation.identity import block_digest
from federation.limits.errors import DigestError
from federation.limits.guard import Guard
from federation.limits.names import GuardName
from federation.transfer.frames import Block, FrameError


class Sender(Protocol):
    """The peer that sent it."""

    name: str
    guard: Guard


def verify(
    source: Sender, fingerprint: bytes, key: str, block: Block, *, hop_limit: int, unattested: bool
) -> None:
    """Checks a block against what was asked for, and its bytes against its digest.

    Args:
        unattested: one is taken whose writer's digest nobody knows.

    Raises:
        FrameError: it has crossed too many borders, or is unattested and was not asked for as such.
        DigestError: its bytes are not those of its digest.
    """
    if not source.guard.hops(block.hops, time.monotonic()):
        raise FrameError(
            f"block {key!r} has crossed {block.hops + 1} borders of groups; at most {hop_limit} may be",
            where=source.name,
        )
    if not block.attested:
        if not unattested:
            raise FrameError(
                f"block {key!r} is unattested, and such were not asked for", where=source.name
            )
        counters.add("moonmesh_pulled_unattested_total")
    good = block.good
    if good is None:
        good = block_digest(fingerprint, key, block.data) == block.digest
    if not good:
        counters.add("moonmesh_digest_mismatch_total")
        if source.guard.on(GuardName.DIGEST):
            source.guard.refuse(GuardName.DIGEST, time.monotonic())
            raise DigestError(
                f"block {key!r} does not match its digest; nothing of it is kept", where=source.name
            )
