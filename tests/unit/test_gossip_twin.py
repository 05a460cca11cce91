"""One that speaks below its group's past, and whom nobody greets, learns of it from whoever refuses it."""

from __future__ import annotations

from gossip.events import Event, OwnStall, OwnTwin, OwnVersionAhead, StatementRejected
from gossip.version import Version
from moonmesh.v1 import peer_pb2
from tests.support.gossip import CONFIG, engine, signed

INTERVAL = CONFIG.hello_interval
ROUNDS = int(CONFIG.lead_after) * 2 + 2


def refused(rounds: int, *, epoch: int, goes_on: bool) -> list[Event]:
    """What happens at a process in epoch 2 whose hellos are refused, with a statement of that epoch."""
    twin = engine("west", "east", epoch=2, nonce=2)
    happened: list[Event] = []
    now = 0.0
    for number in range(rounds):
        now += INTERVAL
        twin.tick(now)
        seq = 7 + (number if goes_on else 0)
        past = peer_pb2.HelloReply(yours=signed("west", epoch=epoch, seq=seq, nonce=9))
        twin.receive("east", past, now)
        happened += (event for event in twin.events() if not isinstance(event, OwnStall))
    return happened


def test_a_twin_of_one_that_goes_on_is_named() -> None:
    happened = refused(ROUNDS, epoch=3, goes_on=True)
    (twin,) = (event for event in happened if isinstance(event, OwnTwin))
    assert (twin.peer, twin.version.epoch) == ("east", 3)
    assert not any(isinstance(each, OwnVersionAhead) and each.proven for each in happened)


def test_one_whose_past_has_ended_goes_on_above_it() -> None:
    happened = refused(ROUNDS, epoch=3, goes_on=False)
    assert OwnVersionAhead("east", Version(3, 7), proven=True) in happened
    assert not any(isinstance(event, OwnTwin) for event in happened)


def test_of_the_same_epoch_it_is_for_those_to_act_that_are_greeted() -> None:
    assert refused(ROUNDS, epoch=2, goes_on=True) == []
    assert refused(ROUNDS, epoch=1, goes_on=True) == []


def test_what_is_no_statement_of_ours_says_nothing() -> None:
    twin = engine("west", "east", epoch=2, nonce=2)
    forged = signed("west", epoch=3)
    forged.signature = bytes(64)
    for wrong in (peer_pb2.SignedStatement(body=b"\xff"), forged, signed("east", epoch=3)):
        twin.receive("east", peer_pb2.HelloReply(yours=wrong), INTERVAL)
    happened = twin.events()
    assert all(isinstance(event, StatementRejected) for event in happened)
    assert twin.version.epoch == 2
