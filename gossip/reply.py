"""What hellos are answered with: it is made in one process and may be said by another."""

from __future__ import annotations

from gossip.membership import NO_VERSION
from gossip.statement import Signed
from moonmesh.v1 import peer_pb2


class Greeting:
    """A group's newest statement, for peers that lack it.

    Args:
        message: with the statement; None for a gateway that does not speak for its group.
    """

    def __init__(self, message: peer_pb2.HelloReply | None) -> None:
        self.message = message
        self._version = NO_VERSION
        if message is not None:
            self._version = Signed.read(message.statement).said().version

    def reply_to(self, hello: peer_pb2.HelloRequest) -> peer_pb2.HelloReply:
        """The answer, which is the caller's own: empty where the hello shows that it has the newest."""
        if self.message is None:
            return peer_pb2.HelloReply(silent=True)
        reply = peer_pb2.HelloReply()
        if self._version > (hello.have_epoch, hello.have_seq):
            reply.CopyFrom(self.message)
        return reply
