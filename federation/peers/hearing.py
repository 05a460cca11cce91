"""What a serving process has heard, as its gateway takes it."""

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
