"""Hellos on streams that stay open, over real mTLS in this process: what ends one, and what piles up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from federation.peers.asking import ANEW_INTERVALS, ASKED, STALE_S
from federation.peers.link import PeerLink
from federation.peers.wire import HELLO_METHOD
from federation.timeouts import timeout
from moonmesh.v1 import peer_pb2
from tests.support.credentials import Made
from tests.support.wait import wait_for_async
from tests.support.wire import Answers, East, gossip, linked

INTERVAL_MS = 50
ANSWER = peer_pb2.HelloReply().SerializeToString()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("federation"))


def handler(hellos: Callable[..., Any]) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(
        "moonmesh.v1.Peer", {"Hello": grpc.stream_stream_rpc_method_handler(hellos)}
    )


def hello(made: Made, own: str = "west") -> peer_pb2.HelloRequest:
    peer = gossip(made, own, "east")
    peer.tick(time.monotonic(), 1)
    ((_, said),) = peer.outbox()
    said.have_epoch, said.have_seq = 9, 9  # it has all there is of east
    return said


async def greet_until(link: PeerLink, said: peer_pb2.HelloRequest, done: Callable[[], bool]) -> int:
    """Greets once an interval; how often."""
    times = 0
    async with timeout(10):
        while not done():
            link.greet(said)
            times += 1
            await asyncio.sleep(INTERVAL_MS / 1000)
    return times


async def test_many_hellos_are_one_call_and_few_answers(made: Made) -> None:
    east = East(made)
    heard = 0

    def receive(peer: str, said: peer_pb2.HelloRequest, raw: bytes) -> bool:
        nonlocal heard
        heard += 1
        return True

    east.service._hellos.receive = receive  # type: ignore[method-assign]
    async with linked(east, made, hello_interval_ms=INTERVAL_MS) as link:
        answers = Answers(link)
        times = await greet_until(link, hello(made), lambda: heard >= 20)
        assert times <= 22
        assert 2 <= len(answers.replies) <= 6, "the first, and every fifth"
        assert east.status()["open"] == {"hello": 1}
        assert answers.silences == 0
        before = len(answers.replies)
        east.hold("a")  # a log has moved, which is news
        link.greet(hello(made))
        await wait_for_async(lambda: len(answers.replies) > before, 5, "the answer")
        assert answers.replies[-1].positions[0].blocks == 1
        east.gossip.silence()
        await greet_until(link, hello(made), lambda: answers.replies[-1].silent)
        assert link.status()[0]["state"] == "follows"


async def test_who_does_not_read_is_told_the_newest_and_nothing_piles_up(made: Made) -> None:
    reads, read = asyncio.Event(), list[peer_pb2.HelloRequest]()

    async def lazy(hellos: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        await reads.wait()
        async for raw in hellos:
            read.append(peer_pb2.HelloRequest.FromString(raw))
            yield ANSWER

    # Of 100 KB each, so that there is soon no room.
    said = peer_pb2.HelloRequest(statement=peer_pb2.SignedStatement(body=bytes(100_000)))
    async with linked(
        handler(lazy), made, hello_interval_ms=60_000, peer_hellos_per_s=10_000
    ) as link:
        answers = Answers(link)
        for seq in range(1, 1001):
            said.have_seq = seq
            link.greet(said)
            await asyncio.sleep(0)
        assert link.full(time.monotonic()), "so what there is to be told is kept"
        room = asyncio.Event()
        link.on_room = room.set
        reads.set()
        await wait_for_async(lambda: bool(read) and read[-1].have_seq == 1000, 5, "the newest")
        assert len(read) < 900, "what was older is not said"
        await asyncio.wait_for(room.wait(), 5)
        assert not link.full(time.monotonic())
        await wait_for_async(lambda: len(answers.replies) == len(read), 5, "the answers")


@pytest.mark.parametrize("hushed", [True, False])
async def test_a_hello_that_has_waited_too_long_is_not_said(made: Made, hushed: bool) -> None:
    """Its group may have another speaker by now."""
    read = list[peer_pb2.HelloRequest]()

    async def hears(hellos: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for raw in hellos:
            read.append(peer_pb2.HelloRequest.FromString(raw))
            yield ANSWER

    async with linked(handler(hears), made, hello_interval_ms=INTERVAL_MS) as link:
        answers = Answers(link)
        link.greet(peer_pb2.HelloRequest(have_seq=1))
        if hushed:
            link.hush()
        else:
            time.sleep(STALE_S + 0.1)  # noqa: ASYNC251 - frozen before it could be said
        channel = link.gateways[0].control
        channel.get_state(try_to_connect=True)
        await wait_for_async(
            lambda: channel.get_state() is grpc.ChannelConnectivity.READY, 5, "the connection"
        )
        assert read == []
        await answers.to(peer_pb2.HelloRequest(have_seq=2))
        assert [said.have_seq for said in read] == [2]


async def test_a_stream_without_answers_is_given_up_for_another(made: Made) -> None:
    streams = 0

    async def hangs(hellos: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        nonlocal streams
        streams += 1
        if streams == 3:
            async for _ in hellos:
                yield ANSWER
        await asyncio.Event().wait()

    async with linked(handler(hangs), made, hello_interval_ms=INTERVAL_MS) as link:
        answers = Answers(link)
        times = await greet_until(link, hello(made), lambda: bool(answers.replies))
        assert times >= 2 * (ANEW_INTERVALS - 1), "not after each hello"
        assert answers.silences >= 2 * (ANEW_INTERVALS - 3), "but late from the second on"
        assert link.guard.status(time.monotonic())["failures"].keys() == {"timeout"}
        assert link.guard.breaker(time.monotonic()) == "closed", "hellos prove nothing"


async def test_who_answers_what_it_was_not_asked_is_hung_up_on(made: Made) -> None:
    async def talks(hellos: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        while True:
            yield ANSWER

    async with linked(handler(talks), made, hello_interval_ms=60_000) as link:
        answers = Answers(link)
        link.greet(hello(made))
        await wait_for_async(lambda: answers.silences == 1, 5, "the end of it")
        assert len(answers.replies) == 1
        assert link.guard.status(time.monotonic())["failures"] == {"protocol": 1}


@pytest.mark.parametrize("answer", [b"\xff", ANSWER + bytes(2 << 20)])
async def test_an_answer_that_cannot_be_ends_the_stream(made: Made, answer: bytes) -> None:
    async def answers_so(hellos: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for _ in hellos:
            yield answer

    async with linked(handler(answers_so), made, hello_interval_ms=60_000) as link:
        answers = Answers(link)
        link.greet(hello(made))
        await wait_for_async(lambda: answers.silences == 1, 5, "the end of it")
        assert answers.replies == []


async def test_a_connection_whose_time_is_over_is_left_without_a_hello_lost(made: Made) -> None:
    east = East(made, peer_connection_ms=1000, pull_timeout_ms=60_000)
    heard: list[int] = []

    def receive(peer: str, said: peer_pb2.HelloRequest, raw: bytes) -> bool:
        heard.append(said.have_seq)
        return True

    east.service._hellos.receive = receive  # type: ignore[method-assign]
    async with linked(east, made, hello_interval_ms=INTERVAL_MS) as link:
        answers, said, opened = Answers(link), hello(made), set[object]()
        seq = 9
        async with timeout(20):
            while len(opened) < 3:
                seq += 1
                said.have_seq = seq
                link.greet(said)
                opened.add(link.gateways[0].greeter._stream)
                await wait_for_async(lambda seq=seq: heard[-1:] == [seq], 5, f"hello {seq}")  # type: ignore[misc]
                await asyncio.sleep(INTERVAL_MS / 1000)
        assert answers.silences == 0


async def test_a_process_that_is_to_end_ends_the_streams_and_the_next_hello_finds_its_successor(
    made: Made,
) -> None:
    east = East(made)
    async with linked(east, made, hello_interval_ms=INTERVAL_MS) as link:
        answers = Answers(link)
        await answers.to(hello(made))
        east.service.leave()
        await wait_for_async(lambda: east.status()["open"] == {}, 5, "the end of the stream")
        east.service._leaving = False
        await answers.to(hello(made))
        assert answers.silences == 0


async def test_of_more_streams_of_hellos_than_a_peer_may_have_the_oldest_is_ended(
    made: Made,
) -> None:
    east = East(made, peer_hello_streams=2)
    said = hello(made).SerializeToString()
    async with linked(east, made) as link, linked(east, made, "north") as north:
        await Answers(north).to(hello(made, "north"))
        calls = []
        for _ in range(3):
            call = link.gateways[0].control.stream_stream(HELLO_METHOD)(timeout=30)
            await call.write(said)
            assert await call.read() is not grpc.aio.EOF
            calls.append(call)
        assert await calls[0].read() is grpc.aio.EOF, "in order, and not by an error"
        await wait_for_async(lambda: east.status()["open"] == {"hello": 2}, 5, "its place")
        for call in calls[1:]:
            await call.write(said + ASKED)
            assert await call.read() is not grpc.aio.EOF
        assert east.status("north")["open"] == {"hello": 1}, "another peer has its own"
        east.service.leave()
        for call in calls[1:]:
            assert await call.read() is grpc.aio.EOF
    assert east.status()["open"] == {}
