"""Hellos that cost their reader as much as a hello can, each of another kind."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import cycle, islice

from chaos.hostile.names import Greeting
from federation.identity import FINGERPRINT_BYTES
from gossip.config import GossipConfig
from gossip.statement import Signed
from moonmesh.v1 import peer_pb2

LONG_SIGNATURE_BYTES = 64 * 1024
_CONFIG = GossipConfig()


class Greetings:
    """Makes hellos that are not plain.

    Args:
        hello: a fresh and plain one, encoded.
        old: statements that were news once, of any group; at least one.
    """

    def __init__(self, hello: Callable[[], bytes], old: Callable[[], Sequence[Signed]]) -> None:
        self._hello = hello
        self._old = old
        self._positions = _positions(_CONFIG.positions_per_hello)
        self._crowd = self._positions + _positions(1)
        self._stale = b""

    def of(self, kind: Greeting) -> bytes:
        """A hello, encoded."""
        plain = self._hello()
        # What follows an encoded message is read as more of it.
        if kind is Greeting.POSITIONS:
            return plain + self._positions
        if kind is Greeting.CROWD:
            return plain + self._crowd
        if kind is Greeting.STALE:
            self._stale = self._stale or _relayed(self._old())
            return plain + self._stale
        if kind is Greeting.SIGNATURE:
            hello = peer_pb2.HelloRequest.FromString(plain)
            hello.statement.signature = os.urandom(1) * LONG_SIGNATURE_BYTES
            return bytes(hello.SerializeToString())
        return plain


def _positions(count: int) -> bytes:
    """Of logs in namespaces that nobody has."""
    hello = peer_pb2.HelloRequest()
    for _ in range(count):
        hello.positions.add(fingerprint=os.urandom(FINGERPRINT_BYTES), blocks=1)
    return bytes(hello.SerializeToString())


def _relayed(old: Sequence[Signed]) -> bytes:
    """As many as a hello may carry."""
    hello = peer_pb2.HelloRequest()
    for statement in islice(cycle(old), _CONFIG.relay_per_hello):
        statement.write(hello.relayed.add())
    return bytes(hello.SerializeToString())
