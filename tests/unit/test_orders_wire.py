"""What a peer that is switched off is answered, over real mTLS; and what becomes of what was under way."""

from __future__ import annotations

import asyncio
import time

import pytest

from federation.errors import PeerError
from federation.limits.errors import ShedError
from federation.limits.orders import AGAIN_SECONDS, SAID, Order
from moonmesh.v1 import peer_pb2
from tests.support.credentials import Made
from tests.support.wait import wait_for_async
from tests.support.wire import FP, Answers, East, drained, linked, plain_hello, pulled


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("federation"))


CATALOG = peer_pb2.CatalogRequest(fingerprint=FP, wait_ms=1000)


@pytest.mark.parametrize("order", [Order.PAUSED, Order.DRAINED, Order.OFF])
async def test_it_is_told_why_nothing_is_served(made: Made, order: Order) -> None:
    east = East(made)
    east.hold("a")
    east.service.ordered({"west": order})
    async with linked(east, made) as link:
        with pytest.raises(ShedError, match=SAID[order]) as caught:
            await pulled(link, "a")
        assert caught.value.retry_after == AGAIN_SECONDS
        with pytest.raises(PeerError, match=SAID[order]):
            await drained(link.catalog(CATALOG, 2.0))
        assert link.guard.breaker(time.monotonic()) == "closed", "it is well, and says so"
    assert east.status()["order"] == order.value
    assert east.status()["refusals"] == {"switch": 2}


async def test_its_hellos_are_answered_with_the_reason_and_nothing_is_planned_on_it(
    made: Made,
) -> None:
    east = East(made)
    hello = peer_pb2.HelloRequest.FromString(plain_hello(made))
    async with linked(east, made) as link:
        answers = Answers(link)
        await answers.to(hello)
        assert link.usable(time.monotonic())
        assert not link.reason
        east.service.ordered({"west": Order.PAUSED})
        (reply,) = await answers.to(hello)
        assert reply.refuses == SAID[Order.PAUSED]
        assert not reply.positions
        assert link.reason == "it refuses: paused by its operator"
        assert not link.usable(time.monotonic())
        east.service.ordered({"west": Order.ON})
        await answers.to(hello)
        assert link.usable(time.monotonic())
        assert not link.reason


async def test_a_serve_that_is_under_way_is_ended(made: Made) -> None:
    east = East(made)
    east.hold("a")
    east.memory.gate.clear()
    async with linked(east, made) as link:
        pull = asyncio.create_task(pulled(link, "a"))
        await wait_for_async(lambda: east.memory.reads == 1, 5, "the pull to be served")
        east.service.ordered({"west": Order.PAUSED, "north": Order.ON})
        with pytest.raises(ShedError, match="paused by its operator"):
            await asyncio.wait_for(pull, 2)
    assert east.status()["open"] == {}
    assert east.status()["memory_bytes"] == 0


async def test_a_serve_that_is_under_way_is_finished_where_it_is_drained(made: Made) -> None:
    east = East(made)
    east.hold("a")
    east.memory.gate.clear()
    async with linked(east, made) as link:
        pull = asyncio.create_task(pulled(link, "a"))
        await wait_for_async(lambda: east.memory.reads == 1, 5, "the pull to be served")
        east.service.ordered({"west": Order.DRAINED})
        east.memory.gate.set()
        assert await pull == 1
        with pytest.raises(ShedError, match="drained by its operator"):
            await pulled(link, "a")


@pytest.mark.parametrize("order", [Order.PAUSED, Order.DRAINED])
async def test_a_question_that_waits_for_news_is_ended(made: Made, order: Order) -> None:
    east = East(made)
    east.hold("a")
    async with linked(east, made) as link:
        (page,) = await drained(link.catalog(CATALOG, 2.0))
        waits = peer_pb2.CatalogRequest(fingerprint=FP, wait_ms=30_000, after=page.position)
        question = asyncio.create_task(drained(link.catalog(waits, 30.0)))
        await wait_for_async(lambda: east.status()["open"], 5, "the question")
        east.service.ordered({"west": order})
        with pytest.raises(ShedError, match="by its operator"):
            await asyncio.wait_for(question, 2)


async def test_another_peer_does_not_notice(made: Made) -> None:
    east = East(made)
    east.hold("a")
    east.service.ordered({"west": Order.PAUSED})
    async with linked(east, made, "north") as link:
        assert await pulled(link, "a") == 1


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("x" * 1000, "it refuses: " + "x" * 120),
        ("\x1b[2J", "it refuses: in words that cannot be shown"),
    ],
)
async def test_what_a_peer_says_of_it_is_short_and_plain(made: Made, said: str, shown: str) -> None:
    async with linked(East(made), made) as link:
        await Answers(link).to(peer_pb2.HelloRequest.FromString(plain_hello(made)))
        link._heard(0, peer_pb2.HelloReply(refuses=said))
        assert link.reason == shown
