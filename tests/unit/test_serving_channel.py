"""The channel between a gateway and its serving process, and what each end makes of the other."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from federation.config import Limits, load_group
from federation.peers.callers import Caller, Callers
from federation.peers.channel import ChannelError, message_bytes_max
from federation.peers.child import ServingProcess
from federation.peers.feed import Feed
from federation.peers.setup import Setup
from federation.peers.spawn import Spawner
from federation.peers.verdicts import speaker
from federation.trust.credentials import TlsIdentity
from federation.trust.handshakes import RefusalLog
from local_group.holdings import Holdings
from moonmesh.v1 import peer_pb2, serving_pb2
from tests.support.groups import write_group
from tests.support.relay import CAP, Ends, hello, open_ends


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    async with open_ends() as both:
        yield both


async def test_messages_arrive_whole_and_in_order(ends: Ends) -> None:
    for n in range(3):
        await ends.gateway.send(serving_pb2.ToServing(ping=serving_pb2.Ping(n=n)))
    got = [await ends.serving.receive(serving_pb2.ToServing) for _ in range(3)]
    assert [message.ping.n for message in got if message] == [0, 1, 2]


async def test_the_end_of_the_other_side_is_the_end(ends: Ends) -> None:
    ends.raw.shutdown(socket.SHUT_RDWR)
    assert await ends.serving.receive(serving_pb2.ToServing) is None


async def test_a_message_above_the_limit_is_neither_sent_nor_read(ends: Ends) -> None:
    exact = serving_pb2.ToServing()
    exact.verdict.peer = "x"
    exact.verdict.peer = "x" * (1 + CAP - exact.ByteSize() - 2)
    assert exact.ByteSize() == CAP
    await ends.gateway.send(exact)
    assert await ends.serving.receive(serving_pb2.ToServing) == exact
    exact.verdict.peer += "x"
    with pytest.raises(ChannelError, match="is the limit"):
        await ends.gateway.send(exact)
    ends.raw.sendall(struct.pack(">I", CAP + 1))
    with pytest.raises(ChannelError, match="is the limit"):
        await ends.serving.receive(serving_pb2.ToServing)


async def test_bytes_that_are_no_message(ends: Ends) -> None:
    ends.raw.sendall(struct.pack(">I", 3) + b"\xff\xff\xff")
    with pytest.raises(ChannelError, match="no message"):
        await ends.serving.receive(serving_pb2.ToServing)


def test_the_longest_hello_and_the_fullest_page_of_blocks_fit() -> None:
    limits = Limits()
    blocks = serving_pb2.ToServing()
    blocks.blocks.fingerprint = b"f" * 16
    for _ in range(256):
        blocks.blocks.offered.add(
            name=(1 << 64) - 1,
            size=1 << 30,
            digest=b"d" * 16,
            rival=b"r" * 16,
            origin="o" * 31,
            epoch=1 << 32,
            hops=1,
            since=1.0,
        )
    assert blocks.ByteSize() < message_bytes_max(limits)
    assert limits.control_message_bytes_max + 1024 < message_bytes_max(limits)


# The serving process's end


async def test_a_verdict_is_told_when_it_changes_and_to_each_new_process(tmp_path: Path) -> None:
    class Doubt:
        believes = False
        rounds = 0

        def heard(self, peer: str, hello: peer_pb2.HelloRequest) -> bool:
            return self.believes

        def all_heard(self) -> None:
            self.rounds += 1

        def disbelieved(self, peer: str, reason: str, detail: str, count: int) -> None:
            raise AssertionError("nobody said so")

        newest = staticmethod(lambda peer: None)

        def greeting(self) -> peer_pb2.HelloReply:
            return peer_pb2.HelloReply()

    group = load_group(write_group(tmp_path, port_base=7400))
    tls = TlsIdentity("", b"", b"", b"", datetime.now(timezone.utc))
    holdings = Holdings(blocks_max=10, hop_limit=1, on_change=lambda _: None)
    doubt = Doubt()
    process = ServingProcess(
        Setup(group, Callers("f", [Caller("west", [], frozenset())]), tls),
        Spawner(group),
        Feed(holdings, []),
        doubt,
        gone=lambda *_: None,
        lost=lambda: None,
        refusals=RefusalLog(),
        on_problem=lambda what: None,
    )
    heard = serving_pb2.FromServing()
    heard.heard.hellos.add(peer="west", hello=hello(1).SerializeToString())
    process._take(heard)
    refused = serving_pb2.Verdict(peer="west", boot_nonce=speaker(hello(1)))
    assert list(process._verdicts.take()) == [refused]
    process._take(heard)
    assert not list(process._verdicts.take()), "the same again is not told again"
    process._verdicts.restart()
    assert list(process._verdicts.take()) == [refused]
    doubt.believes = True
    process._take(heard)
    refused.believed = True
    assert list(process._verdicts.take()) == [refused]
    assert doubt.rounds == 3
    heard.heard.hellos[0].hello = b"\xff"
    with pytest.raises(ValueError, match="a hello that is none"):
        process._take(heard)
    heard.heard.hellos[0].peer = "nobody"
    with pytest.raises(ValueError, match="no peer"):
        process._take(heard)
    nonsense = serving_pb2.Disbelieved(peer="nobody", reason="bad_signature", count=1)
    with pytest.raises(ValueError, match="no peer"):
        process._take(serving_pb2.FromServing(disbelieved=nonsense))
    assert not list(process._verdicts.take()), "nothing is remembered of nobody"
    await process.close()
