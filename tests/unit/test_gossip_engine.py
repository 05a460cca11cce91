"""The gossip engine: what it believes, refuses and tells, at times that the test chooses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gossip.engine import GossipEngine, Receipt
from gossip.events import (
    OwnStall,
    OwnTwin,
    OwnVersionAhead,
    PeerHealthChanged,
    PeerRestarted,
    PeerUp,
    StatementRejected,
)
from gossip.membership import TRANSITIONS, Input, PeerState, ProtocolError, transition
from gossip.statement import Allowance, Health, Load, Reason
from gossip.version import Version
from moonmesh.v1 import peer_pb2
from tests.support.gossip import CONFIG, KEYS, engine, of, says, signed


def hello(sender: GossipEngine, to: str) -> peer_pb2.HelloRequest:
    """What the sender has for `to`, through the real codec."""
    (message,) = [out.hello for out in sender.outbox() if out.peer == to]
    return peer_pb2.HelloRequest.FromString(message.SerializeToString())


def test_two_groups_meet() -> None:
    east, west = engine("east", "west"), engine("west", "east")
    said = hello(east, "west")
    assert west.receive("east", said, 0.0) is Receipt.ACCEPTED
    assert east.receive("west", west.reply_to(said), 0.0) is Receipt.ACCEPTED

    assert east.events() == [PeerUp("west")]
    assert east.events() == []
    assert east.versions == west.versions
    assert east.peer_state("west") is PeerState.ALIVE
    assert repr(east) == "GossipEngine(east 1.1; west: alive)"


def test_an_answer_says_nothing_that_is_known() -> None:
    east, west = engine("east", "west"), engine("west", "east")
    east.receive("west", hello(west, "east"), 0.0)
    east.tick(1.0)
    said = hello(east, "west")
    assert (said.have_epoch, said.have_seq) == (1, 1)
    assert west.reply_to(said) == peer_pb2.HelloReply()
    assert east.receive("west", peer_pb2.HelloReply(), 1.0) is Receipt.NOTHING
    west.receive("east", said, 1.0)
    assert of(west, "east").version == (1, 2)
    assert of(west, "east").has_ours == (1, 1)


def test_each_interval_has_one_statement_and_a_hello_for_each_peer() -> None:
    east = engine("east", "north", "west")
    assert [out.peer for out in east.outbox()] == ["north", "west"]
    east.tick(0.5)
    assert east.outbox() == []
    east.tick(1.0)
    first, second = east.outbox()
    assert first.hello.statement == second.hello.statement
    assert first.hello is not second.hello
    assert east.version == (1, 2)


def test_hellos_that_nobody_fetches_do_not_pile_up() -> None:
    east = engine("east", "west")
    for second in range(1, 100):
        east.tick(float(second))
    (out,) = east.outbox()
    assert out.hello.ByteSize() < 250


def test_what_a_busy_peer_is_to_be_told_waits() -> None:
    east = engine("east", "north", "west")
    assert [out.peer for out in east.outbox({"west"})] == ["north"]
    assert [out.peer for out in east.outbox()] == ["west"]


def test_a_peer_is_told_something_once_in_hello_min_gap_at_most() -> None:
    east = engine("east", "north", "west")
    east.outbox()
    east.receive("north", says("north"), 0.01)
    asked = says("west")
    asked.probes.add(group="north")
    east.receive("west", asked, 0.02)
    assert east.outbox() == []
    east.tick(0.02)
    assert east.outbox() == []
    assert east.next_tick_at() == CONFIG.hello_min_gap
    east.tick(CONFIG.hello_min_gap)
    (out,) = east.outbox()
    assert out.peer == "west"
    assert list(out.hello.relayed) == [signed("north")], "byte for byte"


def test_the_table_has_no_way_past_suspicion_and_none_back_without_news() -> None:
    for (old, happened), new in TRANSITIONS.items():
        if new is PeerState.ALIVE and old is not PeerState.ALIVE:
            assert happened is Input.HEARD
        if new is PeerState.DOWN and old is not PeerState.DOWN:
            assert (old, happened) == (PeerState.SUSPECT, Input.GONE)
    for state in PeerState:
        assert transition(state, Input.HEARD) is PeerState.ALIVE
    with pytest.raises(ProtocolError, match="GONE in state ALIVE"):
        transition(PeerState.ALIVE, Input.GONE)


def test_an_older_statement_of_the_epoch_is_no_news() -> None:
    east = engine("east", "west")
    east.receive("west", says(seq=5), 0.0)
    east.events()
    assert east.receive("west", says(seq=4), 2.0) is Receipt.STALE
    assert east.receive("west", says(seq=5), 2.0) is Receipt.DUPLICATE
    assert east.events() == []
    assert east.versions["west"] == (1, 5)
    assert of(east, "west", 2.0).stale == 1
    assert of(east, "west", 2.0).heard_ago == 2.0, "a repetition proves nothing"


def test_a_stranger_is_refused_and_remembered_nowhere() -> None:
    east = engine("east", "west")
    assert east.receive("north", says("north"), 0.0) is Receipt.REJECTED
    assert east.events() == [
        StatementRejected("north", Reason.UNKNOWN_PEER, "no such peer in peering.toml")
    ]
    assert "north" not in east.versions
    for question in (east.peer_state, east.version_of, east.release):
        with pytest.raises(KeyError):
            question("north")


def test_a_vector_above_the_limit_is_refused() -> None:
    east = engine("east", "west", config=replace(CONFIG, max_groups=4, max_vector_entries=4))
    message = says()
    for index in range(5):
        message.versions.add(group=f"g{index}", epoch=1, seq=1)
    east.receive("west", message, 0.0)
    rejected = [e for e in east.events() if isinstance(e, StatementRejected)]
    assert [e.reason for e in rejected] == [Reason.TOO_MANY_VERSIONS]


def test_push_pull_gives_and_takes() -> None:
    east, west = (engine(n, *{"east", "west", "north", "south"} - {n}) for n in ("east", "west"))
    east.receive("north", says("north"), 0.0)
    west.receive("south", says("south"), 0.0)
    east.receive("west", says("west"), 0.0)
    for one in (east, west):
        one.outbox()
    east.tick(at := CONFIG.push_pull_interval)
    asked = hello(east, "west")
    assert asked.want_versions
    west.receive("east", asked, at)
    answer = hello(west, "east")
    assert [s == signed("south") for s in answer.relayed] == [True]
    assert answer.versions
    assert not answer.want_versions, "or two would ask each other for ever"
    east.receive("west", answer, at)
    east.tick(at + 0.2)
    assert signed("north") in hello(east, "west").relayed


def test_a_restart_is_an_event() -> None:
    east = engine("east", "west")
    east.receive("west", says(epoch=1, seq=50, nonce=1), 0.0)
    east.receive("west", says(epoch=2, seq=1, nonce=2), 1.0)
    assert east.events() == [PeerUp("west"), PeerRestarted("west", 2)]
    # A new term of the same process is none.
    east.receive("west", says(epoch=3, seq=1, nonce=2), 2.0)
    assert east.events() == []


def test_health_is_told_at_once_and_steers_pulls() -> None:
    east, west = engine("east", "west"), engine("west", "east")
    east.receive("west", hello(west, "east"), 0.0)
    assert east.pullable("west", 0.0)
    west.tick(0.05)
    west.set_load(Load(3, 1000), Allowance(streams=4))
    west.set_health(Health.OK, "still fine")
    assert west.next_tick_at() > CONFIG.hello_min_gap, "no change, no reason to speak"

    west.set_health(Health.DRAINING, "rolling restart")
    assert west.next_tick_at() == pytest.approx(CONFIG.hello_min_gap)
    west.tick(0.1)
    east.receive("west", hello(west, "east"), 0.1)

    assert east.events() == [
        PeerUp("west"),
        PeerHealthChanged("west", Health.DRAINING, "rolling restart"),
    ]
    assert of(east, "west").load == (3, 1000)
    assert of(east, "west").limits == (0, 4)
    assert east.peer_state("west") is PeerState.ALIVE
    assert not east.pullable("west", 0.1)


def test_a_stall_of_our_own_is_not_held_against_peers() -> None:
    east = engine("east", "west", "north")
    for name in ("west", "north"):
        east.receive(name, says(name), 0.0)
    east.tick(0.1)
    east.events()
    east.tick(60.0)
    (event,) = east.events()
    assert isinstance(event, OwnStall)
    assert event.score == 1
    assert east.peer_state("west") is PeerState.ALIVE
    assert east.view(60.0).health_score == 1
    assert east.view(60.0).stalls == 1


# Our own past


def lost_disk() -> tuple[GossipEngine, GossipEngine]:
    """West remembers east in epoch 7; east has begun again at 1, and has just been told so."""
    old, west = engine("east", "west", epoch=7), engine("west", "east")
    west.receive("east", hello(old, "west"), 0.0)
    west.outbox()
    east = engine("east", "west", epoch=1, nonce=2)
    assert west.receive("east", hello(east, "west"), 1.0) is Receipt.REJECTED
    west.tick(1.0)
    told = hello(west, "east")
    assert told.HasField("yours")
    east.receive("west", told, 1.0)
    return east, west


def test_a_group_that_lost_its_epoch_goes_on_above_it() -> None:
    east, west = lost_disk()
    assert OwnVersionAhead("west", Version(7, 1)) in east.events(), "nobody may be speaking there"
    east.tick(1.0 + CONFIG.lead_after - 0.1)
    assert not [e for e in east.events() if isinstance(e, OwnVersionAhead)]
    east.tick(1.0 + CONFIG.lead_after)
    assert OwnVersionAhead("west", Version(7, 1), proven=True) in east.events()
    with pytest.raises(ValueError, match="epoch 1 is not in 2"):
        east.lead(1, bytes(16), 7.0)
    east.lead(8, bytes([3]) * 16, 7.0)
    assert west.receive("east", hello(east, "west"), 7.0) is Receipt.ACCEPTED
    east.tick(30.0)
    assert not [e for e in east.events() if isinstance(e, (OwnVersionAhead, OwnTwin))]


def test_a_twin_is_left_alone() -> None:
    east, _ = lost_disk()
    for second in range(2, 40):
        told = says("west", seq=second)
        told.yours.CopyFrom(signed("east", 7, second))
        east.receive("west", told, float(second))
        east.tick(float(second))
    events = east.events()
    assert [type(e) for e in events].count(OwnTwin) == 1
    assert not [e for e in events if isinstance(e, OwnVersionAhead) and e.proven]


def test_another_process_in_our_epoch_makes_us_leave_it_at_once() -> None:
    east = engine("east", "west", epoch=3, nonce=2)
    told = says("west")
    told.yours.CopyFrom(signed("east", 3, 1, nonce=9))
    east.receive("west", told, 20.0)
    east.tick(20.0)
    assert OwnVersionAhead("west", Version(3, 1), proven=True) in east.events()


def test_claims_and_forgeries_of_our_past_prove_nothing() -> None:
    east = engine("east", "west")
    told = says("west")
    told.have_epoch, told.have_seq = 9, 9
    told.yours.CopyFrom(signed("east", 9, 9))
    told.yours.signature = bytes(64)
    east.receive("west", told, 0.0)
    for second in range(1, 20):
        east.tick(float(second))
    ahead = [e for e in east.events() if isinstance(e, OwnVersionAhead)]
    assert ahead == [OwnVersionAhead("west", Version(9, 9))]
    assert east.version.epoch == 1


def test_a_follower_listens_and_says_nothing() -> None:
    east = engine("east", "west")
    east.silence()
    east.receive("west", says(), 0.0)
    east.tick(1.0)
    assert east.outbox() == []
    assert east.reply_to(peer_pb2.HelloRequest()) == peer_pb2.HelloReply(silent=True)
    assert east.peer_state("west") is PeerState.ALIVE
    assert not east.view(1.0).speaking
    east.lead(2, bytes(16), 2.0)
    assert hello(east, "west").HasField("statement")
    assert east.version == (2, 1)


def test_a_gateway_without_a_term_is_silent_from_its_start() -> None:
    east = engine("east", "west", "north", epoch=None)
    assert east.version == (0, 0)
    assert dict(east.versions) == {}
    assert east.receive("west", says(), 0.0) is Receipt.ACCEPTED
    for second in range(20):
        east.tick(float(second))
        assert east.outbox() == []
        assert east.reply_to(peer_pb2.HelloRequest()) == peer_pb2.HelloReply(silent=True)
    assert not east.view(20.0).speaking
    east.lead(4, bytes(16), 20.0)
    assert hello(east, "west").HasField("statement")
    assert dict(east.versions) == {"east": (4, 1), "west": (1, 1)}


def test_what_another_gateway_says_for_the_group_is_no_surprise_to_a_silent_one() -> None:
    """The leader's statements come back from peers. They are neither a lost past nor a twin."""
    east = engine("east", "west")
    east.silence()
    for second in range(1, 40):
        told = says(seq=second)
        told.have_epoch, told.have_seq = 2, second
        told.yours.CopyFrom(signed("east", 2, second, nonce=7))
        east.receive("west", told, float(second))
        east.tick(float(second))
    assert [e for e in east.events() if isinstance(e, (OwnVersionAhead, OwnTwin))] == []
    east.lead(3, bytes(16), 40.0)
    east.tick(41.0)
    assert east.version.epoch == 3
    assert [e for e in east.events() if isinstance(e, (OwnVersionAhead, OwnTwin))] == []


def test_events_are_bounded() -> None:
    east = engine("east", "west", config=replace(CONFIG, max_events=8))
    for _ in range(19):
        east.receive("west", peer_pb2.HelloRequest(), 0.0)
    assert len(east.events()) == 8
    assert east.view(0.0).events_dropped == 12, "19 refusals and a quarantine"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epoch": 0}, "epoch 0"),
        ({"epoch": (1 << 32) + 1}, "epoch 4294967297"),
        ({"boot_nonce": b"x"}, "16 bytes, not 1"),
        ({"peers": {"east": []}}, "among its own peers"),
        ({"peers": {f"g{i}": [] for i in range(2048)}}, "2049 groups, and the limit is 2048"),
    ],
)
def test_an_engine_that_cannot_be(change: dict[str, object], words: str) -> None:
    arguments: dict[str, object] = {
        "peers": {},
        "epoch": 1,
        "boot_nonce": bytes(16),
        "config": CONFIG,
        "rng": None,
        "now": 0.0,
    }
    with pytest.raises(ValueError, match=words):
        GossipEngine("east", "demo", KEYS["east"], **{**arguments, **change})  # type: ignore[arg-type]
