"""The channel between a gateway and its serving process, and what each end makes of the other."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from federation.config import Limits, load_group
from federation.counters import counters
from federation.peers.callers import Caller, Callers
from federation.peers.channel import Channel, ChannelError, message_bytes_max
from federation.peers.child import ServingProcess
from federation.peers.feed import WITHDRAWN_AT_ONCE, Feed, Replica
from federation.peers.relay import GONE_MAX, HELLOS_WAITING, SAID_MAX, Relay
from federation.peers.setup import Setup
from federation.peers.spawn import Spawner
from federation.peers.verdicts import speaker
from federation.timeouts import timeout
from federation.trust.credentials import TlsIdentity
from federation.trust.handshakes import RefusalLog
from gossip.config import GossipConfig
from gossip.statement import Statement, sign
from gossip.version import Version
from local_group.holdings import Held, Holdings
from local_group.names import name_of
from moonmesh.v1 import peer_pb2, serving_pb2
from tests.support.groups import write_group
from tests.support.wait import wait_for_async

CAP = 16_384
CONFIG = GossipConfig.test()
KEY, STRANGER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
HELD = Held(5, b"d" * 16, "", 0, 0, 1.5)


@dataclass
class Ends:
    gateway: Channel
    serving: Channel
    raw: socket.socket
    """The gateway's end, without framing."""


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    one, other = socket.socketpair()
    raw = one.dup()
    raw.setblocking(True)
    both = Ends(await Channel.open(one, CAP), await Channel.open(other, CAP), raw)
    yield both
    both.gateway.close()
    both.serving.close()
    raw.close()


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


def hello(seq: int, key: Ed25519PrivateKey = KEY, group: str = "west") -> peer_pb2.HelloRequest:
    statement = Statement(
        federation="f", group=group, version=Version(1, seq), boot_nonce=b"n" * 16
    )
    message = peer_pb2.HelloRequest()
    sign(statement, key, CONFIG).write(message.statement)
    return message


class Talk:
    """A relay whose gateway is this test."""

    def __init__(self, ends: Ends) -> None:
        self.ends = ends
        self.hushed: list[bool] = []
        self.relay = Relay(
            ends.serving,
            Replica(blocks_max=20 * WITHDRAWN_AT_ONCE, hop_limit=1, on_change=lambda _: None),
            callers=Callers("f", [Caller("west", [KEY.public_key()], frozenset())]),
            config=CONFIG,
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


@pytest.fixture
async def talk(ends: Ends) -> AsyncIterator[Talk]:
    talk = Talk(ends)
    yield talk
    for task in talk.tasks:
        task.cancel()
    await asyncio.gather(*talk.tasks, return_exceptions=True)


def pass_on(talk: Talk, said: peer_pb2.HelloRequest, peer: str = "west") -> bool:
    return talk.relay.receive(peer, said, said.SerializeToString())


async def hello_of(talk: Talk) -> peer_pb2.HelloRequest:
    """The next one that is passed on, by itself."""
    (heard,) = (await talk.next("heard")).heard.hellos
    return peer_pb2.HelloRequest.FromString(heard.hello)


def altered(**statement: bytes) -> peer_pb2.HelloRequest:
    said = hello(1)
    said.statement.MergeFrom(peer_pb2.SignedStatement(**statement))
    return said


@pytest.mark.parametrize("said", [hello(1), hello(1, STRANGER), hello(1, group="east")])
async def test_a_hello_is_passed_on_byte_for_byte_whoever_has_signed_it(
    talk: Talk, said: peer_pb2.HelloRequest
) -> None:
    """The gateway verifies it."""
    assert pass_on(talk, said)
    (heard,) = (await talk.next("heard")).heard.hellos
    assert (heard.peer, heard.hello) == ("west", said.SerializeToString())


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (peer_pb2.HelloRequest(), "bad_signature"),
        (altered(signature=bytes(65)), "bad_signature"),
        (altered(body=bytes(CONFIG.max_statement_bytes + 1)), "oversize"),
    ],
)
async def test_one_that_cannot_be_is_refused_at_once_and_counted(
    talk: Talk, said: peer_pb2.HelloRequest, reason: str
) -> None:
    assert [pass_on(talk, said) for _ in range(3)] == [False] * 3
    told = (await talk.next("disbelieved")).disbelieved
    assert (told.peer, told.reason, told.count) == ("west", reason, 3)
    assert pass_on(talk, hello(2)), "the next one is heard on its own merits"


async def test_a_flood_of_hellos_reaches_the_gateway_as_a_few_and_the_newest(talk: Talk) -> None:
    pass_on(talk, hello(1))
    await talk.next("heard")
    began = asyncio.get_running_loop().time()
    for seq in range(2, 500):
        assert pass_on(talk, hello(seq))
    assert talk.relay.queues["hellos"] == HELLOS_WAITING
    heard = [await hello_of(talk) for _ in range(HELLOS_WAITING)]
    assert heard == [hello(seq) for seq in (*range(2, HELLOS_WAITING + 1), 499)]
    assert asyncio.get_running_loop().time() - began >= CONFIG.hello_min_gap * 4
    assert not talk.relay._heard


async def test_what_the_gateway_made_of_a_hello_is_the_answer_to_the_next(talk: Talk) -> None:
    verdict = serving_pb2.Verdict(peer="west", boot_nonce=speaker(hello(1)))
    verdict.newest.body = b"its past"
    await talk.say(serving_pb2.ToServing(verdict=verdict))
    await wait_for_async(lambda: not pass_on(talk, hello(1)), 5, "the verdict")
    assert await hello_of(talk) == hello(1), "refused, and heard all the same"
    assert talk.relay.refusal("west", hello(1)).yours == verdict.newest  # type: ignore[union-attr]
    verdict.believed = True
    await talk.say(serving_pb2.ToServing(verdict=verdict))
    await wait_for_async(lambda: pass_on(talk, hello(2)), 5, "the verdict")
    assert talk.relay.refusal("west", hello(2)) is None


async def test_nobody_is_served_before_blocks_and_greeting_are_here(talk: Talk) -> None:
    waiting = asyncio.create_task(talk.relay.may_serve())
    await talk.say(serving_pb2.ToServing(snapshot_begin=serving_pb2.SnapshotBegin()))
    await talk.say(serving_pb2.ToServing(snapshot_end=serving_pb2.SnapshotEnd()))
    await talk.say(serving_pb2.ToServing(ping=serving_pb2.Ping(n=1, report=True)))
    pong = (await talk.next("pong")).pong
    assert (pong.n, pong.HasField("report")) == (1, True)
    assert not waiting.done()
    greeting = peer_pb2.HelloReply()
    greeting.statement.CopyFrom(hello(3, group="east").statement)
    await talk.say(serving_pb2.ToServing(greeting=greeting))
    async with timeout(5):
        await waiting
    asked = peer_pb2.HelloRequest(have_epoch=1, have_seq=2)
    reply = talk.relay.reply(asked)
    assert reply == greeting
    reply.positions.add()
    assert talk.relay.reply(asked) == greeting, "a reply is its caller's own"
    asked.have_seq = 3
    assert talk.relay.reply(asked) == peer_pb2.HelloReply(), "it has that already"
    assert not talk.hushed
    silent = peer_pb2.HelloReply(silent=True)
    for _ in range(2):
        await talk.say(serving_pb2.ToServing(greeting=silent))
    asked.have_epoch = 0
    await wait_for_async(lambda: talk.relay.silent, 5, "silence")
    assert talk.relay.reply(asked) == silent
    await talk.say(serving_pb2.ToServing(greeting=greeting))
    await wait_for_async(lambda: not talk.relay.silent, 5, "another term")
    assert talk.hushed == [True], "told once for each silence"


async def test_nothing_is_said_for_a_gateway_that_is_frozen(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("federation.peers.relay.QUIET_S", 0.1)
    talk.tasks.append(asyncio.create_task(talk.relay.watch()))
    greeting = peer_pb2.HelloReply()
    greeting.statement.CopyFrom(hello(3, group="east").statement)
    await talk.say(serving_pb2.ToServing(greeting=greeting))
    asked = peer_pb2.HelloRequest()
    await wait_for_async(lambda: talk.relay.reply(asked) == greeting, 5, "its greeting")
    await wait_for_async(lambda: talk.hushed, 5, "its silence to be noticed")
    assert talk.relay.silent
    assert talk.relay.reply(asked) == peer_pb2.HelloReply(silent=True)
    await talk.say(serving_pb2.ToServing(ping=serving_pb2.Ping(n=1)))
    await wait_for_async(lambda: talk.relay.reply(asked) == greeting, 5, "the gateway to be back")


async def test_pings_are_answered_while_much_is_withdrawn(talk: Talk) -> None:
    held = talk.relay._replica.holdings
    for i in range(20 * WITHDRAWN_AT_ONCE):
        held.restore(b"f" * 16, f"k{i}", HELD)
    await talk.say(serving_pb2.ToServing(snapshot_begin=serving_pb2.SnapshotBegin()))
    await talk.say(serving_pb2.ToServing(snapshot_end=serving_pb2.SnapshotEnd()))
    await talk.say(serving_pb2.ToServing(ping=serving_pb2.Ping(n=1)))
    await talk.next("pong")
    assert len(held) > 0, "the answer did not wait for the end of it"
    await wait_for_async(lambda: len(held) == 0, 10, "all to be withdrawn")


async def test_blocks_that_are_gone_are_told_with_their_since(talk: Talk) -> None:
    for i in range(300):
        talk.relay.gone(b"f" * 16, f"k{i}", HELD, changed=i % 2 == 0)
    told: dict[int, tuple[float, bool]] = {}
    while len(told) < 300:
        gone = (await talk.next("gone")).gone
        assert gone.fingerprint == b"f" * 16
        told |= {block.name: (block.since, block.changed) for block in gone.blocks}
    assert told == {name_of(b"f" * 16, f"k{i}"): (1.5, i % 2 == 0) for i in range(300)}


async def test_of_what_is_said_before_all_else_one_of_each_kind_waits(ends: Ends) -> None:
    talk = Talk(ends)
    for task in talk.tasks:
        task.cancel()
    for n in range(100):
        talk.relay.lost()
        pong = serving_pb2.Pong(n=n)
        talk.relay.say(serving_pb2.FromServing(pong=pong))
    assert talk.relay.queues == {"gone_blocks": 0, "said": 2, "hellos": 0}
    assert talk.relay._urgent[-1].pong.n == 99
    kinds = serving_pb2.FromServing.DESCRIPTOR.oneofs_by_name["what"].fields
    assert len(kinds) <= SAID_MAX


async def test_withdrawals_that_wait_are_bounded(ends: Ends) -> None:
    talk = Talk(ends)
    for task in talk.tasks:
        task.cancel()
    before = counters.snapshot().get("moonmesh_withdrawals_untold_total", 0)
    for i in range(GONE_MAX + 2):
        talk.relay.gone(b"f" * 16, f"k{i}", HELD, changed=i % 2 == 0)
    assert len(talk.relay._gone) == GONE_MAX
    assert counters.snapshot()["moonmesh_withdrawals_untold_total"] == before + 2


async def test_a_gateway_that_is_gone_ends_the_relay(talk: Talk) -> None:
    talk.ends.raw.shutdown(socket.SHUT_RDWR)
    async with timeout(5):
        await talk.tasks[0]


# The gateway's view


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
