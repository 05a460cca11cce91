"""A peer with two gateways, over real mTLS in this process: who is greeted, asked, pulled from."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from federation.peers.link import PeerLink
from federation.peers.wire import SilentError
from federation.timeouts import timeout
from moonmesh.v1 import peer_pb2
from tests.support.credentials import Made
from tests.support.wait import wait_for_async
from tests.support.wire import FP, Answers, East, drained, gossip, link_to, pulled, serving

DEAD = "127.0.0.1:1"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("federation"))


@asynccontextmanager
async def linked(
    made: Made, *gateways: East | grpc.GenericRpcHandler | str, **limits: Any
) -> AsyncIterator[PeerLink]:
    """West's link to east, which has these gateways; a text is an address where nobody is."""
    async with AsyncExitStack() as stack:
        addresses = [
            each if isinstance(each, str) else await stack.enter_async_context(serving(each, made))
            for each in gateways
        ]
        yield await stack.enter_async_context(link_to(addresses, made, "west", **limits))


def east(made: Made, *keys: str, speaks: bool = True, **limits: Any) -> East:
    gateway = East(made, **limits)
    gateway.hold(*keys)
    gateway.gossip.tick(time.monotonic(), 1)
    if not speaks:
        gateway.gossip.silence()
    return gateway


def states(link: PeerLink) -> list[str]:
    return [gateway["state"] for gateway in link.status()]


def question(**fields: Any) -> peer_pb2.CatalogRequest:
    return peer_pb2.CatalogRequest(fingerprint=FP, **fields)


def greeting(made: Made) -> peer_pb2.HelloRequest:
    """A hello of west's, as its gossip says it."""
    west = gossip(made, "west", "east")
    west.tick(time.monotonic(), 1)
    ((_, hello),) = west.outbox()
    return hello


async def test_a_hello_goes_to_every_gateway_and_shows_who_speaks(made: Made) -> None:
    leads, follows = east(made, "a"), east(made, speaks=False)
    async with linked(made, follows, leads) as link:
        assert states(link) == ["unknown", "unknown"]
        replies = await Answers(link).to(greeting(made), gateways=2)
        silent, speaks = sorted(replies, key=lambda reply: not reply.silent)
        assert (silent.silent, silent.HasField("statement"), len(silent.positions)) == (
            True,
            False,
            0,
        )
        assert (speaks.silent, speaks.HasField("statement"), len(speaks.positions)) == (
            False,
            True,
            1,
        )
        assert states(link) == ["follows", "leads"]
        assert link.address == link.gateways[1].address
        assert link.guard.status(time.monotonic())["open"] == {}


async def test_a_gateway_that_is_not_there_holds_up_no_answer_of_another(made: Made) -> None:
    leads = east(made)
    async with linked(made, DEAD, leads) as link:
        answers = Answers(link)
        for _ in range(2):  # the second one waits for a connection to the dead one
            (reply,) = await answers.to(greeting(made))
            assert not reply.silent
            await wait_for_async(
                lambda: states(link) == ["unreachable", "leads"], 5, "both to be known"
            )
        assert link.reason == "", "it is reached"
        assert answers.silences == 0, "one of them answers"
        assert not link.full(time.monotonic()), "and the one that speaks can be told more"


async def test_a_gateway_that_hangs_is_late_and_no_other_waits_for_it(made: Made) -> None:
    async def hangs(requests: Any, context: Any) -> None:
        await asyncio.Event().wait()

    handler = grpc.method_handlers_generic_handler(
        "moonmesh.v1.Peer", {"Hello": grpc.stream_stream_rpc_method_handler(hangs)}
    )
    leads = east(made)
    async with linked(made, handler, leads, hello_interval_ms=100) as link:
        answers = Answers(link)
        async with timeout(10):
            while states(link) != ["unreachable", "leads"]:
                (reply,) = await answers.to(greeting(made))
                assert not reply.silent, "only the other one is told more meanwhile"
                await asyncio.sleep(0.1)  # the pace of hellos
        assert answers.silences == 0


async def test_with_no_answer_of_any_it_is_told_for_each_hello(made: Made) -> None:
    async with linked(made, DEAD, "127.0.0.1:2") as link:
        answers = Answers(link)
        link.greet(greeting(made))
        await wait_for_async(lambda: answers.silences == 1, 5, "both to fail")
        assert states(link) == ["unreachable", "unreachable"]
        assert link.guard.status(time.monotonic())["failures"] == {"unreachable": 1}


async def test_a_catalog_is_asked_of_the_one_that_speaks_and_a_refusal_is_no_fault(
    made: Made,
) -> None:
    leads, follows = east(made, "a"), east(made, "b", speaks=False)
    async with linked(made, follows, leads) as link:
        (page,) = await drained(link.catalog(question(), 5.0))
        assert page.position.log_id == b"l" * 16
        assert states(link) == ["follows", "leads"], "learned without a hello"
        leads.gossip.silence()
        with pytest.raises(SilentError, match="ask another gateway of the group"):
            await drained(link.catalog(question(), 5.0))
        with pytest.raises(SilentError, match="none of its gateways speaks"):
            await drained(link.catalog(question(), 5.0))
        now = time.monotonic()
        assert link.guard.breaker(now) == "closed"
        assert set(link.guard.status(now)["failures"]) == {"ours"}
        assert link.usable(now), "pulls go on"


async def test_a_question_that_waits_is_refused_once_its_gateway_is_silent(made: Made) -> None:
    leads = east(made, "a", catalog_wait_ms=60_000)
    log = leads.offers.log(FP)
    assert log is not None
    after = peer_pb2.Position(log_id=log.position.log_id, n=log.position.n)
    async with linked(made, leads) as link:
        waiting = asyncio.create_task(
            drained(link.catalog(question(after=after, wait_ms=60_000), 60.0))
        )
        await wait_for_async(lambda: leads.status()["open"] == {"catalog": 1}, 5, "the question")
        leads.gossip.silence()
        leads.service.wake()
        with pytest.raises(SilentError):
            await asyncio.wait_for(waiting, 5)


async def test_a_question_to_one_that_hangs_is_ended_when_another_one_speaks(made: Made) -> None:
    asked = asyncio.Event()

    async def hangs(raw: bytes, context: Any) -> AsyncIterator[bytes]:
        asked.set()
        await asyncio.Event().wait()
        yield b""

    handler = grpc.method_handlers_generic_handler(
        "moonmesh.v1.Peer", {"Catalog": grpc.unary_stream_rpc_method_handler(hangs)}
    )
    leads = east(made, "a")
    async with linked(made, handler, leads) as link:
        waiting = asyncio.create_task(drained(link.catalog(question(), 60.0)))
        await asyncio.wait_for(asked.wait(), 5)
        await Answers(link).to(greeting(made))
        await asyncio.wait({waiting}, timeout=5)
        assert waiting.cancelled(), "as sessions know it: to be asked anew"
        assert len(await drained(link.catalog(question(), 5.0))) == 1
        assert link.guard.status(time.monotonic())["open"] == {}


async def test_pulls_go_to_the_one_that_speaks_else_to_one_that_can_be_reached(made: Made) -> None:
    leads, follows = east(made, "a"), east(made, "a", speaks=False)
    async with linked(made, DEAD, follows, leads) as link:
        await Answers(link).to(greeting(made))
        assert await pulled(link, "a") == 1
        assert (leads.memory.reads, follows.memory.reads) == (1, 0)
    async with linked(made, DEAD, follows) as link:
        assert await pulled(link, "a") == 1, "tried elsewhere within the pull"
        assert follows.memory.reads == 1
        assert states(link)[0] == "unreachable"
        assert link.guard.status(time.monotonic())["failures"] == {}


async def test_another_term_makes_the_others_be_asked_first(made: Made) -> None:
    old, new = east(made, "a"), east(made, "a")
    async with linked(made, old, new) as link:
        await drained(link.catalog(question(), 5.0))
        assert states(link) == ["leads", "unknown"]
        link.back()
        await drained(link.catalog(question(), 5.0))
        assert states(link) == ["unknown", "leads"]
