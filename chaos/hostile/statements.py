"""What a hostile peer says of itself in hellos: the truth, the past, or two things at once."""

from __future__ import annotations

import os
import random
import time
from collections import deque

from federation.peering import Peering
from federation.trust.credentials import Credentials
from gossip.config import GossipConfig
from gossip.engine import GossipEngine
from gossip.statement import Signed, Statement, sign
from gossip.version import Version
from moonmesh.v1 import peer_pb2

KEPT = 16


class Speaker:
    """Makes the statements.

    Args:
        epoch: higher than at the last start.

    Attributes:
        how: `honest`; `replay`: also its own earlier statements, and those that it has heard of others;
            `equivocate`: two bodies at each (epoch, seq).
    """

    def __init__(self, peering: Peering, credentials: Credentials, epoch: int) -> None:
        self.how = "honest"
        self._peering = peering
        self._credentials = credentials
        self._epoch = epoch
        self._nonce = os.urandom(16)
        self._gossip = GossipEngine(
            peering.own.group,
            peering.federation,
            credentials.signing_key,
            {p.name: [key.public for key in p.keys] for p in peering.peers},
            epoch=epoch,
            boot_nonce=self._nonce,
            config=GossipConfig.of_interval(0.2),
            rng=random.Random(epoch),
            now=time.monotonic(),
        )
        self._said: deque[Signed] = deque(maxlen=KEPT)
        self._heard: deque[Signed] = deque(maxlen=KEPT)
        self._turn = 0
        self._replies = 0
        self._base = 0
        self._random = random.Random(epoch)

    def heard(self, raw: bytes) -> None:
        """A hello of a peer arrived. It is noted: who says that it hears nobody is asked for nothing."""
        hello = peer_pb2.HelloRequest.FromString(raw)
        sender = peer_pb2.Statement.FromString(hello.statement.body).group
        self._gossip.receive(sender, hello, time.monotonic())
        self._heard.append(Signed.read(hello.statement))

    def reply(self) -> peer_pb2.HelloReply:
        """What it says now, to whoever asks."""
        self._gossip.tick(time.monotonic(), int(time.time() * 1000))
        reply = peer_pb2.HelloReply()
        reply.CopyFrom(self._gossip.greeting().message or reply)
        if self.how == "equivocate":
            self._other().write(reply.statement)
        elif self.how == "replay" and self._replayed():
            self._random.choice(self._replayed()).write(reply.statement)
        else:
            self._said.append(Signed.read(reply.statement))
        self._replies += 1
        return reply

    def _replayed(self) -> list[Signed]:
        """What the next reply may repeat: nothing, its own, others', in turn.

        In turn, and not by chance: a short run has all of them. In threes: two groups that greet alternately
        both hear all of them.
        """
        heard = self._heard or self._said
        return [[], list(self._said), list(heard)][self._replies % 3]

    def _other(self) -> Signed:
        """A signed statement that differs from the last one, mostly at the same place in time."""
        self._turn += 1
        if not self._base:
            self._base = self._gossip.version.seq + 1
        statement = Statement(
            federation=self._peering.federation,
            group=self._peering.own.group,
            version=Version(self._epoch, self._base + self._turn // 16),
            boot_nonce=self._nonce,
            wall_time_ms=self._turn,
        )
        return sign(statement, self._credentials.signing_key, GossipConfig())

    def hello(self) -> bytes:
        """The same as a request."""
        return bytes(peer_pb2.HelloRequest(statement=self.reply().statement).SerializeToString())

    def old(self) -> list[Signed]:
        """What others have said, where they have; or else what it has said itself."""
        return list(self._heard or self._said)
