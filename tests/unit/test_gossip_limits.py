"""What one hello carries, and what is read of one, at its limits."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gossip.config import GossipConfig
from gossip.engine import GossipEngine
from gossip.hello import check_parts
from gossip.mail import Mail
from gossip.membership import PeerState
from gossip.rumours import Rumours
from gossip.statement import Reason, Signed, StatementError
from moonmesh.v1 import peer_pb2
from tests.support.gossip import CONFIG, KEYS, NAMES, engine, says, signed

OTHERS = [name for name in NAMES if name != "east"]


def knowing_all(config: GossipConfig) -> tuple[list[peer_pb2.HelloRequest], int]:
    """What east sends to a peer that asks for everything, hello by hello; and bytes of one body."""
    east = engine("east", *OTHERS, config=config)
    for name in OTHERS:
        east.receive(name, says(name), 0.0)
    east.outbox()
    asked = says("west", seq=2)
    asked.want_versions = True
    east.receive("west", asked, 0.5)
    sent, now = [], 0.5
    while now < 0.95:
        sent += [out.hello for out in east.outbox() if out.peer == "west"]
        now += config.hello_min_gap
        east.tick(now)
    return sent, len(signed("north").body)


def test_what_does_not_fit_one_hello_goes_into_the_next() -> None:
    sent, _ = knowing_all(replace(CONFIG, relay_per_hello=2))
    assert [len(hello.relayed) for hello in sent] == [2, 1]


@pytest.mark.parametrize(("bodies", "each"), [(1, [1, 1, 1]), (2, [2, 1]), (3, [3])])
def test_bytes_of_relayed_statements_are_bounded(bodies: int, each: list[int]) -> None:
    _, size = knowing_all(CONFIG)
    longest = size + 1  # "middle" has a letter more than "north"
    sent, _ = knowing_all(replace(CONFIG, relay_bytes_per_hello=bodies * longest))
    assert [len(hello.relayed) for hello in sent] == each


def test_one_statement_always_fits() -> None:
    sent, _ = knowing_all(replace(CONFIG, relay_bytes_per_hello=1))
    assert [len(hello.relayed) for hello in sent] == [1, 1, 1]


def test_no_more_is_read_of_a_hello_than_one_may_carry() -> None:
    east = engine("east", *OTHERS, config=replace(CONFIG, relay_per_hello=2, probes_per_hello=2))
    message = says("west")
    message.relayed.extend(signed(name) for name in ("north", "south", "middle"))
    for name in ("north", "south", "middle"):
        message.probes.add(group=name, epoch=9, seq=9)
    east.receive("west", message, 0.0)
    assert set(east.versions) == {"east", "west", "north", "south"}
    assert east._exchange.probes.open.keys() == {"north", "south"}


def test_probes_of_one_hello_are_bounded_and_the_rest_follows() -> None:
    east = engine("east", *OTHERS)
    mail = Mail(east._entries, {}, replace(CONFIG, probes_per_hello=2))
    draft = mail.to("west")
    draft.probes.update(dict.fromkeys(["north", "south", "middle"]))
    (first,) = mail.take(1.0, ())
    assert mail.take(1.0, ()) == []
    (second,) = mail.take(1.0 + CONFIG.hello_min_gap, ())
    assert [len(out.hello.probes) for out in (first, second)] == [2, 1]


def test_witnesses_are_bounded_and_each_counts_once() -> None:
    east = engine("east", *OTHERS)
    for name in OTHERS:
        east.receive(name, says(name), 0.0)
    for tenth in range(1, 70):
        for name in ("west", "north", "middle"):
            east.receive(name, says(name, seq=1 + tenth), tenth / 10)
        east.tick(tenth / 10)
    assert east.peer_state("south") is PeerState.SUSPECT
    for _ in range(3):
        for name in ("west", "north", "middle"):
            answer = says(name, seq=70)
            answer.silent.add(group="south", epoch=1, seq=1)
            answer.silent.add(group=name, epoch=1, seq=70)
            east.receive(name, answer, 7.0)
    (south,) = [p for p in east.view(7.0).peers if p.name == "south"]
    assert south.witnesses == ("west", "north", "middle")
    assert south.state is PeerState.SUSPECT, "witnesses alone do not make it DOWN before its time"


def test_a_witness_that_has_heard_less_or_more_is_none() -> None:
    east = engine("east", "west", "north")
    for name in ("west", "north"):
        east.receive(name, says(name, seq=5), 0.0)
    for tenth in range(1, 130):
        east.receive("north", says("north", seq=5 + tenth), tenth / 10)
        east.tick(tenth / 10)
    for seq in (4, 6):
        answer = says("north", seq=200 + seq)
        answer.silent.add(group="west", epoch=1, seq=seq)
        east.receive("north", answer, 13.0)
    assert east.peer_state("west") is PeerState.SUSPECT
    answer = says("north", seq=300)
    answer.silent.add(group="west", epoch=1, seq=5)
    east.receive("north", answer, 13.0)
    assert east.peer_state("west") is PeerState.DOWN


def test_a_rumour_is_told_a_number_of_times_and_the_newest_goes_first() -> None:
    config = replace(CONFIG, rumour_extra=1, relay_per_hello=2)
    east = engine("east", *OTHERS, config=config)
    for name in OTHERS:
        east.receive(name, says(name), 0.0)
    rumours = Rumours(5, config)
    for name in ("north", "west", "south", "north"):
        rumours.add(name)
    told = []
    while batch := rumours.batch(east._entries, 2):
        assert len(batch) <= 2
        told += [entry.name for entry in batch]
    assert told == ["north", "south"] * 2 + ["west"] * 2, "ceil(log2(5)) + 1 = 4 copies, 2 a round"
    assert len(rumours) == 0


class Counting:
    """A key that counts what it verifies."""

    def __init__(self, name: str) -> None:
        self.key = KEYS[name].public_key()
        self.verified = 0

    def verify(self, signature: bytes, data: bytes) -> None:
        self.verified += 1
        self.key.verify(signature, data)


def test_the_past_of_a_group_is_no_work_however_often_it_is_relayed() -> None:
    key = Counting("north")
    east = GossipEngine(
        "east",
        "demo",
        KEYS["east"],
        {"west": [KEYS["west"].public_key()], "north": [key]},
        epoch=1,
        boot_nonce=bytes(16),
        config=CONFIG,
        rng=random.Random(1),
        now=0.0,
    )
    east.receive("north", says("north", epoch=2, seq=500), 0.0)
    assert key.verified == 1
    flood = says("west")
    flood.relayed.extend(signed("north", epoch=2, seq=seq) for seq in range(1, 129))
    flood.relayed.extend(signed("north", epoch=1, seq=seq) for seq in range(1, 129))
    east.receive("west", flood, 0.1)
    assert key.verified == 1
    two = says("west", seq=2)
    two.relayed.append(signed("north", epoch=2, seq=1, nonce=9))
    east.receive("west", two, 0.2)
    assert key.verified == 2, "that two processes speak is worth it"


@pytest.mark.parametrize("part", ["relayed", "positions", "probes", "silent"])
def test_a_hello_with_more_than_is_ever_sent_is_refused_unread(part: str) -> None:
    limits = {
        "relayed": CONFIG.relay_per_hello,
        "positions": CONFIG.positions_per_hello,
        "probes": CONFIG.probes_per_hello,
        "silent": CONFIG.probes_per_hello,
    }
    hello = says("west")
    many = getattr(hello, part)
    for _ in range(limits[part]):
        many.add()
    check_parts(hello, CONFIG)
    many.add()
    with pytest.raises(StatementError, match=f"limit is {limits[part]}") as caught:
        check_parts(hello, CONFIG)
    assert caught.value.reason is Reason.OVERSIZE


def test_what_is_longer_than_a_signature_is_not_kept() -> None:
    message = signed("west")
    assert Signed.read(message) is Signed.read(message)
    message.signature += b"x"
    assert Signed.read(message) is not Signed.read(message)
