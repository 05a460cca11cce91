"""The serving process's end of the channel: what is passed on to the gateway, and when."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from federation.counters import counters
from federation.peers import relay
from federation.peers.feed import WITHDRAWN_AT_ONCE
from federation.peers.relay import GONE_MAX, HELLOS_WAITING, SAID_MAX
from federation.peers.verdicts import speaker
from federation.timeouts import timeout
from gossip.config import GossipConfig
from local_group.holdings import Held
from local_group.names import name_of
from moonmesh.v1 import peer_pb2, serving_pb2
from tests.support.relay import CONFIG, Ends, Talk, hello, hello_of, open_ends, pass_on
from tests.support.wait import wait_for_async

STRANGER = Ed25519PrivateKey.generate()
HELD = Held(5, b"d" * 16, "", 0, 0, 1.5)


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    async with open_ends() as both:
        yield both


@pytest.fixture
async def talk(ends: Ends) -> AsyncIterator[Talk]:
    talk = Talk(ends)
    yield talk
    await talk.end()


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


async def test_hellos_go_with_the_answer_to_a_ping(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    wan = GossipConfig.wan()
    monkeypatch.setattr(relay, "GATHER_SHARE", 1e6)
    monkeypatch.setattr(relay, "GATHER_PINGS", 1e5)  # by themselves: not while this test runs
    talk = Talk(ends, wan)
    pass_on(talk, hello(1))
    assert await hello_of(talk) == hello(1), "nothing was heard for long: at once"
    await asyncio.sleep(wan.hello_min_gap)
    pass_on(talk, hello(2))
    await talk.say(serving_pb2.ToServing(ping=serving_pb2.Ping(n=1)))
    assert (await talk.next("pong")).pong.n == 1
    assert await hello_of(talk) == hello(2)
    await talk.end()


@pytest.mark.parametrize(
    ("config", "gather"),
    [
        (GossipConfig.wan(), 0.3),
        (GossipConfig.lan(), GossipConfig.lan().hello_min_gap),
        (GossipConfig.test(), GossipConfig.test().hello_min_gap),
    ],
)
async def test_hellos_wait_for_a_part_of_an_interval_at_most(
    ends: Ends, config: GossipConfig, gather: float
) -> None:
    assert gather <= relay.GATHER_SHARE * config.hello_interval
    talk = Talk(ends, config)
    pass_on(talk, hello(1))
    await talk.next("heard")
    began = asyncio.get_running_loop().time()
    pass_on(talk, hello(2))
    assert await hello_of(talk) == hello(2), "without a ping"
    assert asyncio.get_running_loop().time() - began >= gather - 0.01
    await talk.end()


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
