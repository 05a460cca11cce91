"""Hostile groups: they have a valid key and certificate of their own, and say what they like.

A guise changes what an honest engine says. It can sign as its own group alone: the keys of others are
what it has not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Final

from chaos.sim.process import Process
from gossip.statement import DOMAIN, Signer
from moonmesh.v1 import peer_pb2

KEPT: Final = 64
"""Statements that it remembers, to say them again."""
FLOOD: Final = 20
"""Hellos that it sends instead of one, at times."""
FLOOD_SHARE: Final = 0.1
MANY: Final = 5000
"""Items in a list that is far too long."""

Message = peer_pb2.HelloRequest | peer_pb2.HelloReply
Habit = Callable[["Guise", str, peer_pb2.HelloRequest], "peer_pb2.HelloRequest | None"]


class Guise:
    """What a hostile process says instead of what its engine says.

    Args:
        habits: names in `HABITS`.
        random: of this guise alone.
        signer: of its own group.
        groups: all names.
    """

    def __init__(
        self,
        habits: tuple[str, ...],
        random: Random,
        process: Process,
        signer: Signer,
        groups: list[str],
    ) -> None:
        self.random = random
        self.process = process
        self.groups = groups
        self.others = [name for name in groups if name != process.group]
        self.said: deque[bytes] = deque(maxlen=KEPT)
        self.seen: deque[tuple[str, bytes]] = deque(maxlen=KEPT)
        self._signer = signer
        self._habits = [HABITS[name] for name in habits]
        self._floods = "flood" in habits

    # For the world

    def hellos(self, peer: str, hello: peer_pb2.HelloRequest) -> list[bytes]:
        """What goes to the peer instead of `hello`: nothing, or one or more messages."""
        if hello.statement.body:
            self.said.append(hello.statement.SerializeToString())
        out: list[bytes] = []
        for _ in range(FLOOD if self._floods and self.often(FLOOD_SHARE) else 1):
            changed: peer_pb2.HelloRequest | None = peer_pb2.HelloRequest()
            assert changed is not None
            changed.CopyFrom(hello)
            for habit in self._habits:
                changed = None if changed is None else habit(self, peer, changed)
            if changed is not None:
                out.append(changed.SerializeToString())
        return out

    def heard(self, message: peer_pb2.HelloRequest) -> None:
        """It keeps what others say."""
        body = peer_pb2.Statement.FromString(message.statement.body)
        self.seen.append((body.group, message.statement.SerializeToString()))

    def change_reply(self, peer: str, reply: peer_pb2.HelloReply) -> None:
        """Its answers are as its hellos: a reply has a statement alone."""
        hello = peer_pb2.HelloRequest()
        hello.statement.CopyFrom(reply.statement)
        for habit in self._habits:
            changed = habit(self, peer, hello)
            if changed is None:
                reply.Clear()
                return
            hello = changed
        if hello.statement.body:
            reply.statement.CopyFrom(hello.statement)

    # For habits

    def sign(self, body: peer_pb2.Statement, into: peer_pb2.SignedStatement) -> None:
        """Well signed, as its own group."""
        into.body = body.SerializeToString()
        into.signature = self._signer.sign(DOMAIN + into.body)

    def often(self, share: float) -> bool:
        return self.random.random() < share


def _own(hello: peer_pb2.HelloRequest) -> peer_pb2.Statement:
    return peer_pb2.Statement.FromString(hello.statement.body)


def _equivocate(guise: Guise, peer: str, hello: peer_pb2.HelloRequest) -> peer_pb2.HelloRequest:
    if hello.statement.body and guise.groups.index(peer) % 2:
        body = _own(hello)
        body.wall_time_ms = max(0, body.wall_time_ms - 1)
        guise.sign(body, hello.statement)
    return hello


def _replay(guise: Guise, peer: str, hello: peer_pb2.HelloRequest) -> peer_pb2.HelloRequest:
    if guise.said and guise.often(0.5):
        hello.statement.ParseFromString(guise.random.choice(guise.said))
    if guise.seen and guise.often(0.5):
        hello.relayed.add().ParseFromString(guise.random.choice(guise.seen)[1])
    return hello


def _wild(guise: Guise, peer: str, hello: peer_pb2.HelloRequest) -> peer_pb2.HelloRequest:
    if hello.statement.body and guise.often(0.2):
        body = _own(hello)
        which = guise.random.randrange(4)
        if which == 0:
            body.epoch = (1 << 64) - 1
        elif which == 1:
            body.seq = (1 << 63) + guise.random.randrange(1000)
        elif which == 2:
            body.epoch = guise.process.engine.version.epoch + guise.random.randrange(1, 1000)
        else:
            body.epoch = body.seq = 0
        guise.sign(body, hello.statement)
    return hello


def _impersonate(guise: Guise, peer: str, hello: peer_pb2.HelloRequest) -> peer_pb2.HelloRequest:
    if guise.often(0.3) and guise.seen:
        _, raw = guise.random.choice(guise.seen)
        hello.statement.ParseFromString(raw)
        if guise.often(0.5):
            body = _own(hello)
            body.epoch = min(body.epoch + 1, (1 << 64) - 1)
            guise.sign(body, hello.statement)
    return hello


def _forge(guise: Guise, peer: str, hello: peer_pb2.HelloRequest) -> peer_pb2.HelloRequest:
    if not guise.often(0.3):
        return hello
    for _, raw in list(guise.seen)[-4:]:
        relayed = hello.relayed.add()
        relayed.ParseFromString(raw)
        if guise.often(0.5):
            flipped = bytearray(relayed.body)
            flipped[guise.random.randrange(len(flipped))] ^= 1 << guise.random.randrange(8)
            relayed.body = bytes(flipped)
        else:
            body = peer_pb2.Statement.FromString(relayed.body)
            body.seq = min(body.seq + guise.random.randrange(1, 100), (1 << 64) - 1)
            guise.sign(body, relayed)
    return hello


def _oversize(guise: Guise, peer: str, hello: peer_pb2.HelloRequest) -> peer_pb2.HelloRequest:
    if not guise.often(0.02):
        return hello
    which = guise.random.randrange(4)
    if which == 3:
        if hello.statement.body:
            body = _own(hello)
            body.health.reason = "x" * 20_000
            guise.sign(body, hello.statement)
        return hello
    hello.MergeFromString(_far_too_much()[which])
    return hello


@cache
def _far_too_much() -> tuple[bytes, ...]:
    """Lists that are too long: of versions, of probes and answers to them, of relayed statements."""
    versions, probes, relayed = (peer_pb2.HelloRequest() for _ in range(3))
    for number in range(MANY):
        name = f"g{number}"
        versions.versions.add(group=name, epoch=1, seq=1)
        probes.probes.add(group=name, epoch=1, seq=1)
        probes.silent.add(group=name, epoch=1, seq=1)
        body = peer_pb2.Statement(version=1, federation="sim", group=name, epoch=1, seq=1)
        relayed.relayed.add(body=body.SerializeToString(), signature=bytes(64))
    return tuple(message.SerializeToString() for message in (versions, probes, relayed))


def _silent(guise: Guise, peer: str, hello: peer_pb2.HelloRequest) -> peer_pb2.HelloRequest | None:
    """Speaks to half of the groups alone."""
    return None if guise.groups.index(peer) % 2 else hello


def _lie(guise: Guise, peer: str, hello: peer_pb2.HelloRequest) -> peer_pb2.HelloRequest:
    """Says that everybody is silent, asks about everybody, has everything, hears nobody."""
    if not guise.often(0.15):  # each such hello makes its receiver ask others
        return hello
    for name in guise.random.sample(guise.others, min(4, len(guise.others))):
        hello.silent.add(group=name)
        hello.probes.add(group=name, epoch=1 << 31, seq=1 << 40)
        hello.versions.add(group=name, epoch=1 << 31, seq=1 << 40)
    hello.have_epoch, hello.have_seq = 1 << 31, 1 << 40
    hello.want_versions = True
    hello.yours.body, hello.yours.signature = b"\x08\x01", bytes(64)
    if hello.statement.body and guise.often(0.5):
        body = _own(hello)
        body.not_heard_from.extend(guise.others)
        body.seq = min(body.seq + 1000, (1 << 64) - 1)
        guise.sign(body, hello.statement)
    return hello


def _flood(guise: Guise, peer: str, hello: peer_pb2.HelloRequest) -> peer_pb2.HelloRequest:
    """Many for one: see `Guise.hellos`."""
    return hello


HABITS: Final[dict[str, Habit]] = {
    "equivocates": _equivocate,
    "flood": _flood,
    "forges": _forge,
    "impersonates": _impersonate,
    "lies": _lie,
    "oversize": _oversize,
    "replays": _replay,
    "silent": _silent,
    "wild epochs": _wild,
}
"""What a hostile group may do, by name."""
