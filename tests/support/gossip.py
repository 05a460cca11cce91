"""Gossip engines in a small world: a clock, links that lose, delay and double, the real codec."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gossip.config import GossipConfig
from gossip.engine import GossipEngine
from gossip.events import Event
from gossip.membership import Link, PeerState
from gossip.statement import Statement, sign
from gossip.version import Version
from gossip.view import PeerView
from moonmesh.v1 import peer_pb2

CONFIG = GossipConfig.wan()
NAMES = ("east", "west", "north", "south", "middle")
KEYS = {
    name: Ed25519PrivateKey.from_private_bytes(name.encode().ljust(32, b"."))
    for name in (*NAMES, *"abcdefgh")
}


def engine(
    name: str,
    *peers: str,
    epoch: int | None = 1,
    nonce: int = 1,
    config: GossipConfig = CONFIG,
    now: float = 0.0,
) -> GossipEngine:
    """One that has just started; without an epoch, it is silent."""
    return GossipEngine(
        name,
        "demo",
        KEYS[name],
        {peer: [KEYS[peer].public_key()] for peer in peers},
        epoch=epoch,
        boot_nonce=bytes([nonce]) * 16,
        config=config,
        rng=random.Random(f"{name} {epoch}"),
        now=now,
    )


def signed(
    name: str, epoch: int = 1, seq: int = 1, nonce: int = 1, **rest: object
) -> peer_pb2.SignedStatement:
    """A statement that `name` could have made."""
    statement = Statement(
        federation="demo",
        group=name,
        version=Version(epoch, seq),
        boot_nonce=bytes([nonce]) * 16,
        **rest,  # type: ignore[arg-type]
    )
    message = peer_pb2.SignedStatement()
    sign(statement, KEYS[name], CONFIG).write(message)
    return message


def says(
    name: str = "west", epoch: int = 1, seq: int = 1, nonce: int = 1, **rest: object
) -> peer_pb2.HelloRequest:
    """A hello that `name` could have sent."""
    return peer_pb2.HelloRequest(statement=signed(name, epoch, seq, nonce, **rest))


def relay(*statements: peer_pb2.SignedStatement, sender: str = "north") -> peer_pb2.HelloRequest:
    """A hello that carries others' statements."""
    message = says(sender)
    message.relayed.extend(statements)
    return message


def of(east: GossipEngine, name: str, now: float = 0.0) -> PeerView:
    """What an engine believes of a peer."""
    (view,) = [peer for peer in east.view(now).peers if peer.name == name]
    return view


class World:
    """Groups in memory.

    Attributes:
        loss, late, doubled: chances of each message; late ones come up to 5 s later.
        cut: directed links (from, to) that carry nothing.
        killed: groups that neither hear nor speak.
        story: what happened, as (time, group, event).
    """

    def __init__(self, names: str, seed: int = 0, config: GossipConfig = CONFIG) -> None:
        self.names, self.config = names, config
        self.random = random.Random(seed)
        self.loss = self.late = self.doubled = 0.0
        self.cut: set[tuple[str, str]] = set()
        self.killed: set[str] = set()
        self.now = 0.0
        self.story: list[tuple[float, str, Event]] = []
        self.check: Callable[[GossipEngine], None] = lambda engine: None
        self._mail: list[tuple[float, int, str, str, bytes, bool]] = []
        self._sent = 0
        self.engines: dict[str, GossipEngine] = {}
        for name in names:
            self.start(name, 1)

    def start(self, name: str, epoch: int) -> None:
        """A new process speaks for a group."""
        self.killed.discard(name)
        self.engines[name] = GossipEngine(
            name,
            "demo",
            KEYS[name],
            {peer: [KEYS[peer].public_key()] for peer in self.names if peer != name},
            epoch=epoch,
            boot_nonce=self.random.randbytes(16),
            config=self.config,
            rng=random.Random(self.random.random()),
            now=self.now,
        )

    def run(self, seconds: float) -> None:
        """Lets time pass."""
        end = self.now + seconds
        while True:
            live = [n for n in self.names if n not in self.killed]
            ticks = min((self.engines[n].next_tick_at() for n in live), default=end)
            post = self._mail[0][0] if self._mail else end
            at = max(self.now + 1e-4, min(ticks, post))
            if at >= end:
                break
            self.now = at
            while self._mail and self._mail[0][0] <= at:
                self._deliver(*heapq.heappop(self._mail)[2:])
            for name in live:
                if self.engines[name].next_tick_at() <= at:
                    self.engines[name].tick(at)
                    self._after(name)
        self.now = end

    def happened(self, name: str, kind: type) -> list[Event]:
        """Events of one kind, as one group saw them."""
        return [event for _, who, event in self.story if who == name and isinstance(event, kind)]

    def state(self, name: str, of: str) -> PeerState:
        return self.engines[name].peer_state(of)

    def link(self, name: str, of: str) -> Link | None:
        (view,) = [p for p in self.engines[name].view(self.now).peers if p.name == of]
        return view.link

    def states(self) -> set[PeerState]:
        """Of all pairs that live."""
        live = [n for n in self.names if n not in self.killed]
        return {self.state(x, y) for x in live for y in live if x != y}

    def _deliver(self, sender: str, to: str, raw: bytes, is_reply: bool) -> None:
        if to in self.killed:
            return
        engine = self.engines[to]
        if is_reply:
            engine.receive(sender, peer_pb2.HelloReply.FromString(raw), self.now)
        else:
            hello = peer_pb2.HelloRequest.FromString(raw)
            engine.receive(sender, hello, self.now)
            self._post(to, sender, engine.reply_to(hello).SerializeToString(), True)
        self._after(to)

    def _after(self, name: str) -> None:
        engine = self.engines[name]
        for peer, hello in engine.outbox():
            self._post(name, peer, hello.SerializeToString(), False)
        self.story += [(self.now, name, event) for event in engine.events()]
        self.check(engine)

    def _post(self, sender: str, to: str, raw: bytes, is_reply: bool) -> None:
        for _ in range(2 if self.random.random() < self.doubled else 1):
            if (sender, to) in self.cut or self.random.random() < self.loss:
                continue
            delay = self.random.uniform(0.001, 0.05)
            if self.random.random() < self.late:
                delay += self.random.uniform(0, 5)
            self._sent += 1
            heapq.heappush(self._mail, (self.now + delay, self._sent, sender, to, raw, is_reply))
