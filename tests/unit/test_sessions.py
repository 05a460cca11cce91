"""A peer that is heard anew: nothing waits for a back-off that was made for what it was before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Container, Iterator
from typing import Any

import pytest

from federation.config import Limits
from federation.counters import counters
from federation.errors import PeerError
from federation.limits.names import Failure
from federation.peering import Sharing
from federation.peers.sessions import Sessions
from federation.peers.side import PeerSide
from federation.trust.handshakes import RefusalLog
from gossip.events import (
    Event,
    OwnTwin,
    OwnVersionAhead,
    PeerRestarted,
    PeerSuspect,
    PeerUp,
    Quarantined,
)
from gossip.statement import Reason
from gossip.version import Version
from local_group.process_errors import CoordinationError
from moonmesh.v1 import peer_pb2
from tests.support.links import FP, HELLO, FakeLink
from tests.support.wait import wait_for_async


class FakeGossip:
    def __init__(self) -> None:
        self.happened: list[Event] = []
        self.mail: dict[str, peer_pb2.HelloRequest] = {}
        self.led: list[int] = []
        self.received: list[object] = []
        self.silenced = False

    def events(self) -> list[Event]:
        events, self.happened = self.happened, []
        return events

    def receive(self, peer: str, reply: object, now: float) -> None:
        self.received.append(reply)

    def outbox(self, busy: Container[str]) -> list[tuple[str, peer_pb2.HelloRequest]]:
        if self.silenced:
            return []
        waiting = {p: hello for p, hello in self.mail.items() if p not in busy}
        for peer in waiting:
            del self.mail[peer]
        return list(waiting.items())

    def next_tick_at(self) -> float:
        return float("inf")

    def silence(self) -> None:
        self.silenced = True

    def lead(self, epoch: int, *_: object) -> None:
        self.led.append(epoch)


class Bench:
    def __init__(self, **limits: Any) -> None:
        self.link, self.gossip = FakeLink("east"), FakeGossip()
        self.link.hangs = True
        self.problems: list[str] = []
        self.disk_fails = False
        self.leads = True
        self.sessions = Sessions(
            [self.link],  # type: ignore[list-item]
            self.gossip,  # type: ignore[arg-type]
            Sharing({}, {"east": frozenset({FP})}),
            Limits(**limits),
            terms=self,
            refusals=RefusalLog(),
            on_problem=self.problems.append,
        )

    def valid(self) -> bool:
        return self.leads

    async def above(self, epoch: int) -> int:
        if self.disk_fails:
            raise CoordinationError("the disk is full")
        return epoch + 1

    def hear(self, *events: Event) -> None:
        """A hello of the peer came in, and these are what gossip makes of it."""
        self.gossip.happened += events
        self.sessions.answer()


@pytest.mark.parametrize("event", [PeerUp("east"), PeerRestarted("east", 2)])
async def test_a_question_that_hangs_is_asked_anew_at_once(event: Event) -> None:
    bench = Bench()
    bench.sessions.subscriptions.touch(FP)
    await wait_for_async(lambda: len(bench.link.questions) == 1, 5, "the first question")
    bench.hear(event)
    await wait_for_async(lambda: len(bench.link.questions) == 2, 1, "the next question")
    assert bench.link.backs == 1, "and the breaker is told"
    await bench.sessions.close()


async def test_a_question_that_failed_does_not_wait_for_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("federation.peers.subscriptions.RETRY_SECONDS", (60.0, 60.0))
    bench = Bench()
    bench.link.error = PeerError("nobody there")
    bench.sessions.subscriptions.touch(FP)
    await wait_for_async(lambda: len(bench.link.questions) == 1, 5, "the first question")
    bench.link.error = None
    bench.hear(PeerUp("east"))
    await wait_for_async(lambda: len(bench.link.questions) == 2, 1, "the next question")
    await bench.sessions.close()


async def test_a_peer_that_bounces_is_taken_seriously_once_in_a_while() -> None:
    bench = Bench(peer_breaker_open_ms=60_000)
    bench.sessions.subscriptions.touch(FP)
    for epoch in range(100):
        bench.hear(PeerRestarted("east", epoch))
        await asyncio.sleep(0)
    assert bench.link.backs == 1
    assert len(bench.link.questions) <= 2
    await bench.sessions.close()


async def test_what_else_happens_to_a_peer_changes_nothing() -> None:
    bench = Bench()
    bench.hear(PeerSuspect("east"))
    assert bench.link.backs == 0


async def test_close_ends_a_question_under_way() -> None:
    bench = Bench()
    bench.sessions.subscriptions.touch(FP)
    await wait_for_async(lambda: len(bench.link.questions) == 1, 5, "the first question")
    began = time.monotonic()
    await bench.sessions.close()
    assert time.monotonic() - began < 1
    assert not list(bench.sessions.subscriptions.views())


async def test_what_a_peer_that_does_not_read_is_to_be_told_waits_for_room() -> None:
    bench = Bench()
    bench.link.is_full = True
    for _ in range(2):
        bench.gossip.mail["east"] = peer_pb2.HelloRequest()
        bench.sessions.answer()
    assert (bench.link.said, len(bench.gossip.mail)) == ([], 1)
    bench.link.is_full = False
    bench.link.on_room()
    assert (len(bench.link.said), bench.gossip.mail) == (1, {})
    await bench.sessions.close()


async def test_answers_go_to_gossip_and_the_first_after_silence_is_a_return() -> None:
    bench = Bench()
    reply = peer_pb2.HelloReply()
    bench.link.on_answer(reply)
    assert (bench.gossip.received, bench.link.backs) == ([reply], 0)
    before = counters.snapshot().get("moonmesh_hello_errors_total", 0)
    bench.link.on_silence()
    bench.gossip.mail["east"] = peer_pb2.HelloRequest()
    bench.link.guard.unanswered(HELLO, Failure.SHED, time.monotonic(), retry_after=60.0)
    bench.sessions.answer()  # and it is left alone: that is no answer either
    assert counters.snapshot()["moonmesh_hello_errors_total"] - before == 2
    for _ in range(2):
        bench.link.on_answer(reply)
    assert bench.link.backs == 1
    await bench.sessions.close()


async def test_a_lost_epoch_is_replaced_by_one_above_it() -> None:
    bench = Bench()
    bench.hear(OwnVersionAhead("east", Version(7, 9)))
    assert bench.sessions._raising is None, "a claim proves nothing"
    bench.disk_fails = True
    bench.hear(OwnVersionAhead("east", Version(7, 9), proven=True))
    await wait_for_async(lambda: bool(bench.problems), 5, "the problem")
    assert "the disk is full" in bench.problems.pop()
    bench.disk_fails = False
    bench.hear(OwnVersionAhead("east", Version(7, 9), proven=True))
    await wait_for_async(lambda: bench.gossip.led == [8], 5, "the new epoch")
    await wait_for_async(lambda: bool(bench.problems), 5, "the word on it")
    assert "goes on in epoch 8" in bench.problems[0]
    await bench.sessions.close()


async def test_what_an_operator_has_to_know_is_a_problem() -> None:
    bench = Bench()
    bench.hear(Quarantined("east", Reason.EQUIVOCATION, "two at 1.2"))
    bench.hear(OwnTwin("east", Version(3, 4)))
    first, second = bench.problems
    assert "peer east is in quarantine (equivocation)" in first
    assert "two at 1.2" not in first, "in which a peer can write what it wants"
    assert "another process speaks for this group, in epoch 3" in second


async def test_positions_beyond_what_there_can_be_are_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("federation.peers.subscriptions.POSITIONS_MAX", 2)
    bench = Bench()
    read: list[int] = []

    def positions() -> Iterator[peer_pb2.NamespacePosition]:
        for n in range(5):
            read.append(n)
            yield peer_pb2.NamespacePosition()

    bench.sessions.note_positions("east", positions())
    assert read == [0, 1]
    await bench.sessions.close()


async def test_who_does_not_lead_any_more_is_silent_before_it_says_anything() -> None:
    bench = Bench()
    for leads in (True, False, False):
        bench.leads = leads
        bench.gossip.silenced = False
        bench.gossip.mail["east"] = peer_pb2.HelloRequest()
        bench.sessions.answer()
        assert bench.gossip.silenced != leads
    assert bench.link.hushes == 1, "what waits for room is not said either"
    await bench.sessions.close()


async def test_a_thawed_gateway_answers_no_hello_for_its_group() -> None:
    """Its term was over before anything could tell it so."""
    bench = Bench()
    said = peer_pb2.HelloReply(statement=peer_pb2.SignedStatement(body=b"of the term that was"))

    class Greeting:
        @property
        def message(self) -> peer_pb2.HelloReply | None:
            return None if bench.gossip.silenced else said

    bench.gossip.greeting = Greeting  # type: ignore[attr-defined]
    side = PeerSide(None, bench.gossip, bench.sessions, None)  # type: ignore[arg-type]
    assert side.greeting() == said
    bench.leads = False
    assert side.greeting() == peer_pb2.HelloReply(silent=True)


async def test_what_is_heard_while_it_closes_is_not_answered() -> None:
    bench = Bench()
    await bench.sessions.close()
    bench.gossip.mail["east"] = peer_pb2.HelloRequest()
    bench.sessions.answer()
    assert "east" in bench.gossip.mail, "its connections are closed: nothing can be sent"
