"""The peer in memory that tests have is what a real link over mTLS is, to who goes by it."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing

import pytest

from federation.errors import PeerError
from federation.limits.errors import ShedError
from federation.limits.names import Failure, Kind
from federation.limits.ticket import Cost, Ticket
from federation.peers.link import PeerLink
from federation.peers.wire import UnreachableError
from federation.timeouts import timeout
from federation.transfer.frames import Block, Decoder, Missing
from moonmesh.v1 import peer_pb2
from tests.support.credentials import Made
from tests.support.links import FP, HELLO, FakeLink
from tests.support.wait import wait_for_async
from tests.support.wire import MIB, East, gossip, link_to, serving

DEAD = "127.0.0.1:1"
BREAKER_FAILURES = 5
INTERVAL_S = 0.1


class Peer:
    """A link, and what makes its peer do something."""

    def __init__(self, link: FakeLink | PeerLink, hold: Callable[..., None]) -> None:
        self.link = link
        self.hold = hold
        self.replies: list[peer_pb2.HelloReply] = []
        self.silences = 0
        link.on_answer = self.replies.append
        link.on_silence = self._silence

    def _silence(self) -> None:
        self.silences += 1

    async def catalog(self, after: peer_pb2.Position | None = None) -> list[peer_pb2.CatalogPage]:
        request = peer_pb2.CatalogRequest(fingerprint=FP, after=after, wait_ms=20_000)
        async with aclosing(self.link.catalog(request, 30.0)) as pages:
            return [page async for page in pages]

    async def pull(self, *keys: str) -> list[tuple[int, bool]]:
        """Of each key: its place, and whether it came."""
        ticket = self.link.guard.admit(Cost(), time.monotonic())
        assert isinstance(ticket, Ticket)
        decoder, found = Decoder([MIB] * len(keys), 2 * MIB), []
        request = peer_pb2.PullRequest(fingerprint=FP, keys=keys)
        try:
            async with aclosing(self.link.pull(request, 5.0)) as messages:
                async for message in messages:
                    assert isinstance(message, bytes)
                    for event in decoder.feed(message):
                        assert isinstance(event, (Block, Missing))
                        found.append((event.index, isinstance(event, Block)))
        finally:
            ticket.done(time.monotonic())
        assert decoder.ended
        return found

    def open_breaker(self) -> None:
        for _ in range(BREAKER_FAILURES):
            self.link.guard.note(Failure.ERROR, time.monotonic())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("federation"))


def hello(made: Made) -> peer_pb2.HelloRequest:
    """One that asks for an answer, as gossip says it."""
    west = gossip(made, "west", "east")
    west.tick(time.monotonic(), 1)
    ((_, said),) = west.outbox()
    said.answer = True
    return said


@pytest.fixture(params=["fake", "real"])
async def peer(request: pytest.FixtureRequest, made: Made) -> AsyncIterator[Peer]:
    """One that is well, and answers."""
    if request.param == "fake":
        fake = FakeLink("east")
        fake.reply = peer_pb2.HelloReply()
        yield Peer(fake, fake.hold)
        return
    east = East(made)
    east.gossip.tick(time.monotonic(), 1)

    def hold(*keys: str) -> None:
        east.hold(*keys)
        east.service.wake()

    async with serving(east, made) as address, link_to(address, made, "west") as link:
        yield Peer(link, hold)


@pytest.fixture(params=["fake", "real"])
async def gone(request: pytest.FixtureRequest, made: Made) -> AsyncIterator[Peer]:
    """One whose address nobody listens at."""
    async with AsyncExitStack() as stack:
        if request.param == "fake":
            link: FakeLink | PeerLink
            link = fake = FakeLink("east")
            fake.error = UnreachableError("nobody there")
        else:
            link = await stack.enter_async_context(
                link_to(DEAD, made, "west", hello_interval_ms=int(1000 * INTERVAL_S))
            )
        yield Peer(link, lambda *keys: None)


def test_what_the_fake_offers_the_real_one_offers_alike() -> None:
    """Beside what makes it do something."""
    for name, real in inspect.getmembers(PeerLink, callable):
        fake = getattr(FakeLink, name, None)
        if not name.startswith("_") and fake is not None:
            assert parameters(fake) == parameters(real), name
            assert inspect.isasyncgenfunction(fake) == inspect.isasyncgenfunction(real), name
            assert inspect.iscoroutinefunction(fake) == inspect.iscoroutinefunction(real), name


def parameters(method: Callable[..., object]) -> list[tuple[str, object, object]]:
    found = inspect.signature(method).parameters.values()
    return [(each.name, each.kind, each.default) for each in found]


async def test_a_hello_is_said_at_once_and_its_answer_told(peer: Peer, made: Made) -> None:
    peer.link.greet(hello(made))
    assert peer.replies == [], "not from within"
    await wait_for_async(lambda: len(peer.replies) == 1, 5, "the answer")
    assert not peer.replies[0].silent
    assert peer.silences == 0
    assert not peer.link.full(time.monotonic())


async def test_of_hellos_to_nobody_each_is_told_at_most_once(gone: Peer, made: Made) -> None:
    """The first one soon; a later one waits for a connection, and is told of with one after it."""
    said = 0
    async with timeout(10):
        while gone.silences < 2:
            gone.link.greet(hello(made))
            said += 1
            await asyncio.sleep(INTERVAL_S)  # the pace of hellos
    assert gone.silences <= said
    assert gone.replies == []


async def test_who_asked_to_be_left_alone_is_said_nothing(peer: Peer, made: Made) -> None:
    peer.link.guard.unanswered(HELLO, Failure.SHED, time.monotonic(), retry_after=5.0)
    with pytest.raises(ShedError) as caught:
        peer.link.greet(hello(made))
    assert 0 < caught.value.retry_after <= 5.0
    assert peer.replies == []


async def test_a_catalog_comes_whole_and_then_what_is_new_when_it_is(peer: Peer) -> None:
    peer.hold("a", "b")
    pages = await peer.catalog()
    assert [page.snapshot for page in pages] == [True]
    assert (pages[-1].last, pages[-1].blocks) == (True, 2)
    waiting = asyncio.create_task(peer.catalog(pages[-1].position))
    done, _ = await asyncio.wait({waiting}, timeout=0.3)
    assert not done, "there is nothing new"
    peer.hold("c")
    (page,) = await asyncio.wait_for(waiting, 5)
    assert (page.snapshot, page.last) == (False, True)
    assert page.position.n > pages[-1].position.n
    assert page.position.log_id == pages[-1].position.log_id


async def test_a_question_to_nobody_ends_with_an_error_of_the_peer(gone: Peer) -> None:
    with pytest.raises(PeerError) as caught:
        await gone.catalog()
    assert Failure(caught.value.failure) is Failure.UNREACHABLE
    with pytest.raises(PeerError):
        await gone.pull("a")


async def test_a_peer_that_fails_is_not_asked_and_not_planned_on(peer: Peer) -> None:
    assert peer.link.usable(time.monotonic())
    peer.open_breaker()
    assert not peer.link.usable(time.monotonic())
    with pytest.raises(ShedError) as caught:
        await peer.catalog()
    assert caught.value.retry_after > 0


async def test_blocks_come_in_order_and_what_is_missing_is_said(peer: Peer) -> None:
    peer.hold("a", "c")
    assert await peer.pull("a", "b", "c") == [(0, True), (1, False), (2, True)]


async def test_what_went_wrong_is_said_until_a_pull_ends_well(peer: Peer, made: Made) -> None:
    peer.link.greet(hello(made))
    await wait_for_async(lambda: len(peer.replies) == 1, 5, "the answer")
    assert peer.link.reason == ""
    before = peer.link.guard.status(time.monotonic())["failures"]
    peer.link.blame(PeerError("its catalog promises what it does not have"))
    assert peer.link.reason == "its catalog promises what it does not have"
    assert peer.link.guard.status(time.monotonic())["failures"] == before, "said, not counted"
    peer.link.absolve()
    assert peer.link.reason == ""
    peer.link.failed(PeerError("its answer cannot be"))
    assert peer.link.reason == "its answer cannot be"
    counted = peer.link.guard.status(time.monotonic())["failures"]
    assert counted == {**before, Failure.ERROR.value: 1}, "and counted"
    assert peer.link.guard.ready(Kind.PULL, time.monotonic())
