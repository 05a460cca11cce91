"""The two ends of a channel, and a relay whose gateway is a test."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from federation.peers.callers import Caller, Callers
from federation.peers.channel import Channel
from federation.peers.feed import WITHDRAWN_AT_ONCE, Replica
from federation.peers.relay import Relay
from federation.timeouts import timeout
from gossip.config import GossipConfig
from gossip.statement import Statement, sign
from gossip.version import Version
from moonmesh.v1 import peer_pb2, serving_pb2

CAP = 16_384
CONFIG = GossipConfig.test()
KEY = Ed25519PrivateKey.generate()


@dataclass
class Ends:
    """Of one channel."""

    gateway: Channel
    serving: Channel
    raw: socket.socket
    """The gateway's end, without framing."""


@asynccontextmanager
async def open_ends() -> AsyncIterator[Ends]:
    """Both, until the end."""
    one, other = socket.socketpair()
    raw = one.dup()
    raw.setblocking(True)
    both = Ends(await Channel.open(one, CAP), await Channel.open(other, CAP), raw)
    try:
        yield both
    finally:
        both.gateway.close()
        both.serving.close()
        raw.close()


def hello(seq: int, key: Ed25519PrivateKey = KEY, group: str = "west") -> peer_pb2.HelloRequest:
    statement = Statement(
        federation="f", group=group, version=Version(1, seq), boot_nonce=b"n" * 16
    )
    message = peer_pb2.HelloRequest()
    sign(statement, key, CONFIG).write(message.statement)
    return message


class Talk:
    """A relay whose gateway is this test."""

    def __init__(self, ends: Ends, config: GossipConfig = CONFIG) -> None:
        self.ends = ends
        self.hushed: list[bool] = []
        self.relay = Relay(
            ends.serving,
            Replica(blocks_max=20 * WITHDRAWN_AT_ONCE, hop_limit=1, on_change=lambda _: None),
            callers=Callers("f", [Caller("west", [KEY.public_key()], frozenset())]),
            config=config,
            report=lambda details: serving_pb2.ServingReport(details_json="{}" if details else ""),
            hushed=lambda: self.hushed.append(True),
        )
        self.tasks = [
            asyncio.create_task(self.relay.listen()),
            asyncio.create_task(self.relay.speak()),
            asyncio.create_task(self.relay.tidy()),
        ]

    async def say(self, message: serving_pb2.ToServing) -> None:
        await self.ends.gateway.send(message)

    async def next(self, which: str) -> serving_pb2.FromServing:
        async with timeout(5):
            message = await self.ends.gateway.receive(serving_pb2.FromServing)
        assert message is not None
        assert message.WhichOneof("what") == which
        return message

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def pass_on(talk: Talk, said: peer_pb2.HelloRequest, peer: str = "west") -> bool:
    return talk.relay.receive(peer, said, said.SerializeToString())


async def hello_of(talk: Talk) -> peer_pb2.HelloRequest:
    """The next one that is passed on, by itself."""
    (heard,) = (await talk.next("heard")).heard.hellos
    return peer_pb2.HelloRequest.FromString(heard.hello)
