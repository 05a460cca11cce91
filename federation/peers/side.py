"""The part of a gateway that knows peers, put together: gossip, links, sessions."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from federation.config import GroupFile
from federation.limits.guard import Guard
from federation.limits.guards import Guards
from federation.peering import Membership, PeerConfig
from federation.peers.callers import Callers
from federation.peers.gossip_config import gossip_config
from federation.peers.link import PeerLink
from federation.peers.sessions import Sessions, Terms
from federation.trust.handshakes import RefusalLog
from gossip.engine import GossipEngine, Receipt
from gossip.membership import PeerState
from gossip.statement import Reason, Signed
from moonmesh.v1 import peer_pb2


@dataclass(frozen=True)
class PeerSide:
    """What a group that is in a federation has more than one that runs alone."""

    member: Membership
    gossip: GossipEngine
    sessions: Sessions
    guards: Guards

    # For the serving process: see `federation.peers.hearing.Gossip`.

    def heard(self, peer: str, hello: peer_pb2.HelloRequest) -> bool:
        """A hello that the serving process has heard. False: it is not believed."""
        receipt = self.gossip.receive(peer, hello, time.monotonic())
        believed = receipt is not Receipt.REJECTED
        if believed and hello.positions:
            self.sessions.note_positions(peer, hello.positions)
        return believed

    def all_heard(self) -> None:
        """There are no more of them now: what they ask for is said."""
        self.sessions.answer()

    def disbelieved(self, peer: str, reason: str, detail: str, count: int) -> None:
        """Hellos that the serving process did not believe.

        Raises:
            ValueError: there is no such reason.
        """
        self.gossip.disbelieve(peer, Reason(reason), detail, count)

    def newest(self, peer: str) -> Signed | None:
        """The newest statement of a peer that is believed."""
        return self.gossip.signed_of(peer)

    def greeting(self) -> peer_pb2.HelloReply:
        """What hellos are answered with; that it is silent, while another gateway speaks for the group."""
        self.sessions.hush()
        return self.gossip.greeting().message or peer_pb2.HelloReply(silent=True)

    def reached(self) -> list[str]:
        """Peers that are heard now, and that answer our hellos: one may hear those who dial it alone."""
        peers = self.gossip.view(time.monotonic()).peers
        heard = [peer.name for peer in peers if peer.state is PeerState.ALIVE]
        return [name for name in heard if name not in self.sessions.unanswered]

    # For the command line

    def release(self, peer: str) -> str:
        """Takes a peer out of gossip's quarantine; what it was in it for, "" if it was not.

        Raises:
            KeyError: if there is no such peer.
        """
        reason = self.gossip.release(peer)
        self.sessions.answer()
        return "" if reason is None else reason.value


def peer_side(
    config: GroupFile,
    member: Membership,
    epoch: int | None,
    *,
    terms: Terms,
    guards: Guards,
    refusals: RefusalLog,
    on_problem: Callable[[str], None],
    on_tick: Callable[[], None],
) -> PeerSide:
    """Makes the parts; nothing runs yet.

    Args:
        epoch: durable, and never used by another process; None while this gateway does not lead.
        terms: whether it may be spoken in it, and where another one comes from.
        guards: of all peers, with the memory that they share.
        on_problem: told what an operator has to know.
        on_tick: called when there is a new statement of ours, or none any more.
    """
    gossip = _gossip(config, member, epoch)
    links = [
        _link(config, member, gossip, peer, guards[peer.name].outgoing)
        for peer in member.peering.peers
    ]
    sessions = Sessions(
        links,
        gossip,
        member.sharing,
        config.limits,
        terms=terms,
        refusals=refusals,
        on_problem=on_problem,
        on_tick=on_tick,
        unattested=config.unattested,
    )
    return PeerSide(member, gossip, sessions, guards)


def _gossip(config: GroupFile, member: Membership, epoch: int | None) -> GossipEngine:
    return GossipEngine(
        config.name,
        member.peering.federation,
        member.credentials.signing_key,
        {name: caller.keys for name, caller in Callers.of(member).items()},
        epoch=epoch,
        boot_nonce=os.urandom(16),
        config=gossip_config(config.limits),
        rng=random.Random(),
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
        return gossip.version_of(peer.name).epoch

    return PeerLink(peer, member.credentials, config.limits, guard=guard, alive=alive, epoch=epoch)
