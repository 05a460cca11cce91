"""The gossip engine: states, events and refusals, at times that the test chooses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gossip.config import GossipConfig
from gossip.engine import GossipEngine, Receipt
from gossip.membership import (
    EVENT_OF_STATE,
    TRANSITIONS,
    Heard,
    OwnVersionAhead,
    PeerDown,
    PeerHealthChanged,
    PeerRestarted,
    PeerState,
    PeerSuspect,
    PeerUp,
    StatementRejected,
)
from gossip.statement import Health, Reason, Statement, sign
from gossip.version import Version
from moonmesh.v1 import peer_pb2

CONFIG = GossipConfig(hello_interval=1.0, hello_min_gap=0.1, suspect_after=4.0, down_after=15.0)
KEYS = {
    name: Ed25519PrivateKey.from_private_bytes(name.encode().ljust(32, b"."))
    for name in ("east", "west", "north")
}


def engine(
    name: str, *peers: str, epoch: int = 1, nonce: int = 1, config: GossipConfig = CONFIG
) -> GossipEngine:
    return GossipEngine(
        name,
        "demo",
        KEYS[name],
        {peer: [KEYS[peer].public_key()] for peer in peers},
        epoch=epoch,
        boot_nonce=bytes([nonce]) * 16,
        config=config,
        now=0.0,
    )


def hello(sender: GossipEngine, to: str) -> peer_pb2.HelloRequest:
    """What the sender has for `to`, through the real codec."""
    (message,) = [out.hello for out in sender.outbox() if out.peer == to]
    return peer_pb2.HelloRequest.FromString(message.SerializeToString())


def says(
    name: str = "west", epoch: int = 1, seq: int = 1, nonce: int = 1, **rest: object
) -> peer_pb2.HelloRequest:
    """A hello that `name` could have sent."""
    statement = Statement(
        federation="demo",
        group=name,
        version=Version(epoch, seq),
        boot_nonce=bytes([nonce]) * 16,
        **rest,  # type: ignore[arg-type]
    )
    message = peer_pb2.HelloRequest()
    sign(statement, KEYS[name], CONFIG).write(message.statement)
    return message


def test_two_groups_meet() -> None:
    east, west = engine("east", "west"), engine("west", "east")

    assert west.receive_hello("east", hello(east, "west"), 0.0) is Receipt.ACCEPTED
    assert east.receive_hello("west", west.reply(), 0.0) is Receipt.ACCEPTED

    assert east.events() == [PeerUp("west")]
    assert east.events() == []
    assert east.versions == west.versions
    assert east.peer_state("west", 0.0) is PeerState.ALIVE
    assert repr(east) == "GossipEngine(east 1.1; west: alive)"


def test_an_answer_that_says_nothing_new_is_a_duplicate() -> None:
    east, west = engine("east", "west"), engine("west", "east")
    assert east.receive_hello("west", west.reply(), 0.0) is Receipt.ACCEPTED
    assert east.receive_hello("west", west.reply(), 9.0) is Receipt.DUPLICATE
    # A repetition proves nothing: the peer stays as silent as it was.
    assert east.peer_state("west", 9.0) is PeerState.SUSPECT


def test_each_interval_has_one_statement_and_a_hello_for_each_peer() -> None:
    east = engine("east", "north", "west")
    assert [out.peer for out in east.outbox()] == ["north", "west"]
    east.tick(0.5)
    assert east.outbox() == []
    assert east.next_tick_at() == 1.0
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
    assert [(v.group, v.seq) for v in out.hello.versions] == [("east", 100)]


@pytest.mark.parametrize(
    ("at", "state"),
    [
        (0.0, PeerState.ALIVE),
        (3.999, PeerState.ALIVE),
        (4.0, PeerState.SUSPECT),
        (14.999, PeerState.SUSPECT),
        (15.0, PeerState.DOWN),
    ],
)
def test_silence_is_seen_when_asked_even_before_a_tick(at: float, state: PeerState) -> None:
    east = engine("east", "west")
    east.receive_hello("west", says(), 0.0)
    assert east.peer_state("west", at) is state
    assert east.pullable("west", at) is (state is PeerState.ALIVE)
    assert east.view(at).peers[0].state is state


def test_silence_and_return_are_events_once() -> None:
    east = engine("east", "west")
    assert east.peer_state("west", 0.0) is PeerState.DOWN
    east.receive_hello("west", says(seq=1), 0.0)
    for now in (1.0, 3.9, 4.0, 5.0, 14.9, 15.0, 16.0):
        east.tick(now)
    east.receive_hello("west", says(seq=2), 17.0)
    assert east.events() == [PeerUp("west"), PeerSuspect("west"), PeerDown("west"), PeerUp("west")]


def test_the_transition_table_is_whole_and_only_news_makes_alive() -> None:
    assert set(TRANSITIONS) == {(state, heard) for state in PeerState for heard in Heard}
    assert set(EVENT_OF_STATE) == set(PeerState)
    for (old, heard), new in TRANSITIONS.items():
        if new is PeerState.ALIVE and old is not PeerState.ALIVE:
            assert heard is Heard.NOW
        if heard is Heard.LONG_SILENT:
            assert new is PeerState.DOWN


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        pytest.param(says(epoch=1, seq=99), Reason.OLD_EPOCH, id="an earlier epoch"),
        pytest.param(says(epoch=2, seq=5, wall_time_ms=1), Reason.EQUIVOCATION, id="two at one"),
        pytest.param(says(epoch=2, seq=6, nonce=9), Reason.TWO_SPEAKERS, id="two processes"),
        pytest.param(says("north", epoch=9), Reason.BAD_SIGNATURE, id="another group's"),
        pytest.param(says(epoch=1 << 33), Reason.BEYOND_HEADROOM, id="a wild epoch"),
        pytest.param(says(epoch=3, seq=1 << 49), Reason.BEYOND_HEADROOM, id="a wild seq"),
        pytest.param(peer_pb2.HelloRequest(), Reason.BAD_SIGNATURE, id="empty"),
    ],
)
def test_what_is_refused_moves_nothing(message: peer_pb2.HelloRequest, reason: Reason) -> None:
    east = engine("east", "west", "north")
    east.receive_hello("west", says(epoch=2, seq=5), 0.0)
    east.events()
    before = east.versions

    assert east.receive_hello("west", message, 5.0) is Receipt.REJECTED

    (event,) = east.events()
    assert isinstance(event, StatementRejected)
    assert (event.peer, event.reason) == ("west", reason)
    assert east.versions == before
    assert east.peer_state("west", 5.0) is PeerState.SUSPECT
    west = east.view(5.0).peers[1]
    assert west.rejected == {reason.value: 1}
    assert (west.version, west.heard_ago) == (Version(2, 5), 5.0)


def test_an_older_statement_of_the_epoch_is_no_news() -> None:
    east = engine("east", "west")
    east.receive_hello("west", says(seq=5), 0.0)
    east.events()
    assert east.receive_hello("west", says(seq=4), 9.0) is Receipt.STALE
    assert east.events() == []
    assert east.versions["west"] == (1, 5)
    assert east.view(9.0).peers[0].stale == 1


def test_a_stranger_is_refused_and_remembered_nowhere() -> None:
    east = engine("east", "west")
    assert east.receive_hello("north", says("north"), 0.0) is Receipt.REJECTED
    assert east.events() == [
        StatementRejected("north", Reason.UNKNOWN_PEER, "no such peer in peering.toml")
    ]
    assert "north" not in east.versions
    with pytest.raises(KeyError):
        east.peer_state("north", 0.0)


def test_a_vector_above_the_limit_is_refused() -> None:
    east = engine("east", "west")
    message = says()
    for index in range(CONFIG.max_vector_entries + 1):
        message.versions.add(group=f"g{index}", epoch=1, seq=1)
    assert east.receive_hello("west", message, 0.0) is Receipt.REJECTED
    (event,) = east.events()
    assert isinstance(event, StatementRejected)
    assert event.reason is Reason.TOO_MANY_VERSIONS


def test_a_restart_is_an_event() -> None:
    east = engine("east", "west")
    east.receive_hello("west", says(epoch=1, seq=50, nonce=1), 0.0)
    east.receive_hello("west", says(epoch=2, seq=1, nonce=2), 1.0)
    assert east.events() == [PeerUp("west"), PeerRestarted("west", 2)]
    # A new term of the same process is none.
    east.receive_hello("west", says(epoch=3, seq=1, nonce=2), 2.0)
    assert east.events() == []


def test_health_is_told_at_once_and_steers_pulls() -> None:
    east, west = engine("east", "west"), engine("west", "east")
    east.receive_hello("west", hello(west, "east"), 0.0)
    assert east.pullable("west", 0.0)

    west.set_health(Health.DRAINING, "rolling restart")
    assert west.next_tick_at() == pytest.approx(0.1)
    west.tick(0.1)
    east.receive_hello("west", hello(west, "east"), 0.1)

    assert east.events() == [
        PeerUp("west"),
        PeerHealthChanged("west", Health.DRAINING, "rolling restart"),
    ]
    assert east.peer_state("west", 0.1) is PeerState.ALIVE
    assert not east.pullable("west", 0.1)


def test_health_that_does_not_change_is_no_reason_to_speak() -> None:
    west = engine("west", "east")
    west.set_health(Health.OK, "still fine")
    assert west.next_tick_at() == 1.0


def test_a_one_way_link_shows() -> None:
    east, west = engine("east", "west"), engine("west", "east")
    # West's hellos arrive; east's never do.
    west.tick(1.0)
    east.receive_hello("west", hello(west, "east"), 1.0)
    assert east.view(1.0).peers[0].hears_us is False
    # Now they do: west says so in its next statement.
    west.receive_hello("east", east.reply(), 1.5)
    west.tick(2.0)
    east.receive_hello("west", hello(west, "east"), 2.0)
    assert east.view(2.0).peers[0].hears_us is True


def test_a_group_that_lost_its_epoch_is_told() -> None:
    old_east, west = engine("east", "west", epoch=7), engine("west", "east")
    west.receive_hello("east", hello(old_east, "west"), 0.0)

    east = engine("east", "west", epoch=1, nonce=2)
    assert west.receive_hello("east", hello(east, "west"), 1.0) is Receipt.REJECTED
    east.receive_hello("west", west.reply(), 1.0)
    east.receive_hello("west", west.reply(), 1.1)

    assert east.events() == [OwnVersionAhead("west", Version(7, 1)), PeerUp("west")]
    assert east.version == (1, 1)


def test_what_a_peer_claims_moves_nothing() -> None:
    east = engine("east", "west", "north")
    message = says("west")
    message.versions.add(group="north", epoch=5, seq=5)
    message.versions.add(group="stranger", epoch=1, seq=1)
    east.receive_hello("west", message, 0.0)
    assert set(east.versions) == {"east", "west"}
    # West lacks what east says of itself, and its own statement in the vector it sent.
    assert east.view(0.0).peers[1].lag == 2


def test_events_are_bounded() -> None:
    east = engine("east", "west", config=replace(CONFIG, max_events=8))
    for _ in range(20):
        east.receive_hello("west", peer_pb2.HelloRequest(), 0.0)
    assert len(east.events()) == 8
    assert east.view(0.0).events_dropped == 12


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epoch": 0}, "epoch 0"),
        ({"epoch": (1 << 32) + 1}, "epoch 4294967297"),
        ({"boot_nonce": b"x"}, "16 bytes, not 1"),
        ({"peers": {"east": []}}, "among its own peers"),
        ({"peers": {f"g{i}": [] for i in range(64)}}, "65 groups, and the limit is 64"),
    ],
)
def test_an_engine_that_cannot_be(change: dict[str, object], words: str) -> None:
    arguments: dict[str, object] = {
        "peers": {},
        "epoch": 1,
        "boot_nonce": bytes(16),
        "config": CONFIG,
        "now": 0.0,
    }
    with pytest.raises(ValueError, match=words):
        GossipEngine("east", "demo", KEYS["east"], **{**arguments, **change})  # type: ignore[arg-type]
