"""The part of a gateway that knows peers, put together: gossip, links, sessions."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from federation.config import GroupFile
from federation.peering import Membership, PeerConfig
from federation.peers.link import PeerLink
from federation.peers.sessions import Sessions
from federation.trust.handshakes import RefusalLog
from gossip.config import GossipConfig
from gossip.engine import GossipEngine, Receipt
from gossip.statement import Reason
from moonmesh.v1 import peer_pb2

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

    # For the serving process: see `federation.peers.child.Gossip`.

    def heard(self, peer: str, hello: peer_pb2.HelloRequest) -> bool:
        """A hello that the serving process has heard. False: it is not believed."""
        receipt = self.gossip.receive_hello(peer, hello, time.monotonic())
        if receipt is Receipt.REJECTED:
            return False
        self.sessions.note_positions(peer, hello.positions)
        return True

    def disbelieved(self, peer: str, reason: str, detail: str, count: int) -> None:
        """Hellos that the serving process did not believe.

        Raises:
            ValueError: there is no such reason.
        """
        self.gossip.disbelieve(peer, Reason(reason), detail, count)

    def greeting(self) -> peer_pb2.HelloReply:
        """What hellos are answered with."""
        return self.gossip.reply()


def peer_side(
    config: GroupFile,
    member: Membership,
    epoch: int,
    *,
    refusals: RefusalLog,
    on_problem: Callable[[str], None],
    on_tick: Callable[[], None],
) -> PeerSide:
    """Makes the parts; nothing runs yet.

    Args:
        epoch: durable, and never used by another process.
        on_problem: told what an operator has to know.
        on_tick: called when there is a new statement of ours.
    """
    gossip = _gossip(config, member, epoch)
    links = [_link(config, member, gossip, peer) for peer in member.peering.peers]
    sessions = Sessions(
        links,
        gossip,
        member.sharing,
        config.limits,
        refusals=refusals,
        on_problem=on_problem,
        on_tick=on_tick,
    )
    return PeerSide(member, gossip, sessions)


def gossip_config(config: GroupFile) -> GossipConfig:
    """Intervals and limits of gossip in this group."""
    interval = config.limits.hello_interval_ms / 1000
    return GossipConfig(
        hello_interval=interval,
        hello_min_gap=min(0.1, interval),
        suspect_after=SUSPECT_HELLOS * interval,
        down_after=DOWN_HELLOS * interval,
    )


def statement_keys(member: Membership) -> dict[str, Sequence[Ed25519PublicKey]]:
    """The keys that each peer's statements may be signed with."""
    return {peer.name: [key.public for key in peer.keys] for peer in member.peering.peers}


def _gossip(config: GroupFile, member: Membership, epoch: int) -> GossipEngine:
    return GossipEngine(
        config.name,
        member.peering.federation,
        member.credentials.signing_key,
        statement_keys(member),
        epoch=epoch,
        boot_nonce=os.urandom(16),
        config=gossip_config(config),
        now=time.monotonic(),
        wall_time_ms=int(time.time() * 1000),
    )


def _link(
    config: GroupFile, member: Membership, gossip: GossipEngine, peer: PeerConfig
) -> PeerLink:
    def alive(now: float) -> bool:
        return gossip.pullable(peer.name, now)

    def epoch() -> int:
        version = gossip.versions.get(peer.name)
        return version.epoch if version else 0

    return PeerLink(peer, member.credentials, config.limits, alive=alive, epoch=epoch)
