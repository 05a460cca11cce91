"""The part of a gateway that knows peers, put together: gossip, links, sessions, and what it serves."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from federation.catalog.offers import Offers
from federation.config import GroupFile
from federation.limits.guard import Guard
from federation.limits.guards import Guards
from federation.peering import Membership, PeerConfig
from federation.peers.link import PeerLink
from federation.peers.service import PeerService
from federation.peers.sessions import Sessions
from federation.transfer.server import BlockServer
from federation.trust.handshakes import RefusalLog
from gossip.config import GossipConfig
from gossip.engine import GossipEngine

SUSPECT_HELLOS = 4
"""Hello intervals without a word from a peer until nothing is routed to it."""
DOWN_HELLOS = 15
"""... and until it is called DOWN."""


@dataclass(frozen=True)
class PeerSide:
    """What a group that is in a federation has more than one that runs alone."""

    member: Membership
    gossip: GossipEngine
    sessions: Sessions
    service: PeerService
    guards: Guards


def peer_side(
    config: GroupFile,
    member: Membership,
    epoch: int,
    *,
    offers: Offers,
    blocks: BlockServer,
    guards: Guards,
    refusals: RefusalLog,
    on_problem: Callable[[str], None],
) -> PeerSide:
    """Makes the parts; nothing runs yet.

    Args:
        epoch: durable, and never used by another process.
        guards: of all peers, with the memory that they share.
        on_problem: told what an operator has to know.
    """
    gossip = _gossip(config, member, epoch)
    links = [
        _link(config, member, gossip, peer, guards[peer.name].outgoing)
        for peer in member.peering.peers
    ]
    sessions = Sessions(
        links, gossip, member.sharing, config.limits, refusals=refusals, on_problem=on_problem
    )
    service = PeerService(
        credentials=member.credentials,
        peering=member.peering,
        sharing=member.sharing,
        gossip=gossip,
        sessions=sessions,
        offers=offers,
        blocks=blocks,
        limits=config.limits,
        guards=guards,
        refusals=refusals,
    )
    return PeerSide(member, gossip, sessions, service, guards)


def _gossip(config: GroupFile, member: Membership, epoch: int) -> GossipEngine:
    interval = config.limits.hello_interval_ms / 1000
    return GossipEngine(
        config.name,
        member.peering.federation,
        member.credentials.signing_key,
        {peer.name: [key.public for key in peer.keys] for peer in member.peering.peers},
        epoch=epoch,
        boot_nonce=os.urandom(16),
        config=GossipConfig(
            hello_interval=interval,
            hello_min_gap=min(0.1, interval),
            suspect_after=SUSPECT_HELLOS * interval,
            down_after=DOWN_HELLOS * interval,
        ),
        now=time.monotonic(),
        wall_time_ms=int(time.time() * 1000),
    )


def _link(
    config: GroupFile,
    member: Membership,
    gossip: GossipEngine,
    peer: PeerConfig,
    guard: Guard,
) -> PeerLink:
    def alive(now: float) -> bool:
        return gossip.pullable(peer.name, now)

    def epoch() -> int:
        version = gossip.versions.get(peer.name)
        return version.epoch if version else 0

    return PeerLink(peer, member.credentials, config.limits, guard=guard, alive=alive, epoch=epoch)
