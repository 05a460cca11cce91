"""What `moonmesh namespaces` shows: this group's namespaces beside those that each peer tells, asked now."""

from __future__ import annotations

import asyncio
from typing import Any

from federation.config import GroupFile
from federation.errors import PeerError
from federation.peers.namespaces import as_json, match, read_told, shared_with
from federation.peers.side import PeerSide

ANSWER_SECONDS = 2.0
"""How long all peers, asked at once, may take."""


async def namespaces_document(
    group: GroupFile, side: PeerSide | None, unmatched: int
) -> dict[str, Any]:
    """In JSON's types. A peer that does not answer is in it with the reason.

    Args:
        unmatched: keys that the local Mooncake lists and that are of no namespace.
    """
    peers = [] if side is None else list(side.sessions.links)
    told = await asyncio.gather(*(_peer(group, side, peer) for peer in peers if side is not None))
    return {
        "group": group.name,
        "namespaces": {
            name: {
                "fingerprint": str(namespace.fingerprint()),
                "envelope": namespace.fields(),
                "keys": [pattern.text for pattern in namespace.patterns],
                "unattested": namespace.unattested,
            }
            for name, namespace in group.namespaces.items()
        },
        "unmatched_keys": unmatched,
        "peers": told,
    }


async def _peer(group: GroupFile, side: PeerSide, peer: str) -> dict[str, Any]:
    sharing = side.member.sharing
    ours = shared_with(group, sharing.exports(peer), sharing.imports(peer))
    try:
        reply = await side.sessions.links[peer].namespaces(ANSWER_SECONDS)
        theirs = read_told(reply, peer)
    except PeerError as error:
        return {"peer": peer, "problem": error.what, "namespaces": [], "others": []}
    matches = match(ours, theirs)
    beside = {m.theirs.fingerprint for m in matches if m.theirs is not None}
    return {
        "peer": peer,
        "problem": "",
        "namespaces": as_json(matches, peer),
        "others": sorted(told.name for told in theirs if told.fingerprint not in beside),
    }
