"""What is not believed: what it costs its sender, and what ends that."""

from __future__ import annotations

import pytest

from gossip.engine import Receipt
from gossip.events import Quarantined, Released, StatementRejected
from gossip.membership import PeerState
from gossip.statement import Reason
from gossip.version import Version
from moonmesh.v1 import peer_pb2
from tests.support.gossip import CONFIG, engine, of, relay, says, signed


@pytest.mark.parametrize(
    ("message", "reason", "held"),
    [
        pytest.param(says(epoch=1, seq=99), Reason.OLD_EPOCH, False, id="an earlier epoch"),
        pytest.param(
            says(epoch=2, seq=5, wall_time_ms=1), Reason.EQUIVOCATION, True, id="two at one"
        ),
        pytest.param(says(epoch=2, seq=6, nonce=9), Reason.TWO_SPEAKERS, True, id="two processes"),
        pytest.param(says("north", epoch=9), Reason.BAD_SIGNATURE, True, id="another group's"),
        pytest.param(says(epoch=1 << 33), Reason.BEYOND_HEADROOM, True, id="a wild epoch"),
        pytest.param(says(epoch=3, seq=1 << 49), Reason.BEYOND_HEADROOM, True, id="a wild seq"),
        pytest.param(peer_pb2.HelloRequest(), Reason.BAD_SIGNATURE, True, id="empty"),
        pytest.param(
            says(not_heard_from=("x",) * 17), Reason.MALFORMED, False, id="too many names"
        ),
    ],
)
def test_what_is_refused_moves_nothing(
    message: peer_pb2.HelloRequest, reason: Reason, held: bool
) -> None:
    east = engine("east", "west", "north")
    east.receive("west", says(epoch=2, seq=5), 0.0)
    east.events()
    before = east.versions

    assert east.receive("west", message, 2.0) is Receipt.REJECTED

    event, *more = east.events()
    assert isinstance(event, StatementRejected)
    assert (event.peer, event.reason) == ("west", reason)
    assert [type(other) for other in more] == [Quarantined] * held
    assert east.versions == before
    west = of(east, "west", 2.0)
    assert west.rejected == {reason.value: 1}
    assert (west.version, west.heard_ago) == (Version(2, 5), 2.0)
    assert (west.quarantine is not None) is held
    assert east.pullable("west", 2.0) is not held


HEALERS = {
    "direct": lambda east: east.receive("west", says(seq=9), 1.0),
    "relayed": lambda east: east.receive("north", relay(signed("west", seq=9)), 1.0),
    "next epoch": lambda east: east.receive("west", says(epoch=2, nonce=2), 1.0),
    "next epoch, relayed": lambda east: east.receive(
        "north", relay(signed("west", 2, nonce=2)), 1.0
    ),
    "operator": lambda east: east.release("west"),
}


@pytest.mark.parametrize(
    ("wrong", "healers"),
    [
        (says(seq=1 << 49), {"direct", "next epoch", "operator"}),
        (says("north"), {"direct", "next epoch", "operator"}),
        (says(wall_time_ms=1), {"next epoch", "next epoch, relayed", "operator"}),
        (says(nonce=3), {"next epoch", "next epoch, relayed", "operator"}),
    ],
    ids=["headroom", "signature", "equivocation", "two speakers"],
)
@pytest.mark.parametrize("healer", HEALERS)
def test_what_ends_a_quarantine(
    wrong: peer_pb2.HelloRequest, healers: set[str], healer: str
) -> None:
    east = engine("east", "west", "north")
    east.receive("west", says(), 0.0)
    east.receive("west", wrong, 0.5)
    east.events()
    HEALERS[healer](east)
    assert (of(east, "west").quarantine is None) is (healer in healers)
    assert any(isinstance(e, Released) for e in east.events()) is (healer in healers)
    assert east.release("west") is None or healer not in healers


def test_equivocation_is_seen_by_relay_too_and_held_against_its_origin_alone() -> None:
    east = engine("east", "west", "north")
    east.receive("west", says(seq=4), 0.0)
    east.receive("north", relay(signed("west", seq=4, wall_time_ms=1)), 0.1)
    held = of(east, "west").quarantine
    assert held is not None
    assert held.reason is Reason.EQUIVOCATION
    assert of(east, "north").quarantine is None
    # Nothing of it goes on through us.
    asked = says("north", seq=2)
    asked.want_versions = True
    east.receive("north", asked, 1.0)
    east.tick(1.0)
    assert not [out for out in east.outbox() if out.hello.relayed]


def test_a_relay_proves_itself_or_moves_nothing() -> None:
    east = engine("east", "west", "north")
    forged = signed("west", seq=7)
    forged.signature = signed("west", seq=8).signature
    receipt = east.receive("north", relay(forged, signed("south")), 0.0)
    assert receipt is Receipt.ACCEPTED, "its own statement is good"
    assert "west" not in east.versions
    assert of(east, "north").rejected == {"bad_signature": 1}
    assert of(east, "north").quarantine is None, "a key may be changing"
    east.receive("north", relay(signed("west", seq=7)), 0.1)
    assert east.versions["west"] == (1, 7)
    assert of(east, "west").state is PeerState.UNHEARD, "it may be as old as north's memory"


def test_bad_relays_cost_a_few_verifications_at_most() -> None:
    east = engine("east", "west", "north")
    bad = []
    for seq in range(1, 60):
        bad.append(signed("west", seq=seq))
        bad[-1].signature = bytes(64)
    east.receive("north", relay(*bad, signed("west", seq=99)), 0.0)
    assert of(east, "north").rejected == {"bad_signature": CONFIG.max_bad_relayed}
    assert "west" not in east.versions
