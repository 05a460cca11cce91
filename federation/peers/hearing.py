"""What a serving process has heard: as it takes it itself, and as its gateway does."""

from __future__ import annotations

from typing import Protocol

from gossip.statement import Signed
from moonmesh.v1 import peer_pb2


class Gossip(Protocol):
    """What becomes of what it hears, and what it is to answer."""

    def heard(self, peer: str, hello: peer_pb2.HelloRequest) -> bool:
        """A hello of a peer, well signed. False: it is not believed all the same."""

    def newest(self, peer: str) -> Signed | None:
        """The newest statement of a peer that is believed."""

    def all_heard(self) -> None:
        """After the last of several."""

    def disbelieved(self, peer: str, reason: str, detail: str, count: int) -> None:
        """Hellos that are not well signed."""

    def greeting(self) -> peer_pb2.HelloReply:
        """What hellos are answered with."""


class Hellos(Protocol):
    """The part of gossip that faces peers."""

    @property
    def silent(self) -> bool:
        """Whether this gateway does not speak for its group now: another one may."""

    def receive(self, peer: str, hello: peer_pb2.HelloRequest, raw: bytes) -> bool:
        """Takes a hello, as it came too. False: the peer is not believed."""

    def refusal(self, peer: str, hello: peer_pb2.HelloRequest) -> peer_pb2.HelloReply | None:
        """What is said before a hello is refused that is below its group's past; None for nothing."""

    def reply(self, hello: peer_pb2.HelloRequest) -> peer_pb2.HelloReply:
        """This group's own newest statement, where a hello lacks it, or that this gateway is silent; in a
        message that is the caller's."""
