"""Laws of version vectors, and of gossip under any order, loss, repetition and forgery."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from gossip.config import GossipConfig
from gossip.engine import GossipEngine, Receipt
from gossip.events import PeerDown, PeerRestarted
from gossip.membership import Link, PeerState
from gossip.statement import Signed, Statement, StatementError, sign, verify
from gossip.version import Version, VersionVector, missing
from moonmesh.v1 import peer_pb2

CONFIG = GossipConfig.wan()

versions = st.builds(Version, st.integers(1, 5), st.integers(1, 5))
vectors = st.dictionaries(st.sampled_from("abcde"), versions).map(VersionVector)


@given(vectors, vectors, vectors)
def test_merge_is_commutative_associative_idempotent(
    x: VersionVector, y: VersionVector, z: VersionVector
) -> None:
    assert x.merge(y) == y.merge(x)
    assert x.merge(y).merge(z) == x.merge(y.merge(z))
    assert x.merge(x) == x
    assert hash(x.merge(y)) == hash(y.merge(x))


@given(vectors, vectors)
def test_merge_is_the_least_vector_above_both(x: VersionVector, y: VersionVector) -> None:
    both = x.merge(y)
    assert both.dominates(x)
    assert both.dominates(y)
    assert all(both[group] in (x.get(group), y.get(group)) for group in both)


@given(vectors, st.lists(st.tuples(st.sampled_from("abcde"), versions), max_size=20))
def test_no_entry_ever_goes_back(start: VersionVector, news: list[tuple[str, Version]]) -> None:
    vector = start
    for group, version in news:
        after = vector.advance(group, version)
        assert after.dominates(vector)
        assert after[group] >= version
        vector = after


@given(vectors, vectors)
def test_sending_what_is_missing_makes_equal(x: VersionVector, y: VersionVector) -> None:
    for group in missing(x, y):
        y = y.advance(group, x[group])
    assert y.dominates(x)
    assert missing(x, y) == ()


@given(
    st.builds(
        Statement,
        federation=st.just("demo"),
        group=st.just("a"),
        version=versions,
        boot_nonce=st.binary(min_size=16, max_size=16),
        wall_time_ms=st.integers(0, (1 << 64) - 1),
        not_heard_from=st.lists(st.text(max_size=40), max_size=16).map(tuple),
    ),
    st.data(),
)
def test_any_changed_byte_is_refused(statement: Statement, data: st.DataObject) -> None:
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))

    def believe(signed: Signed) -> Statement:
        keys = [key.public_key()]
        return verify(signed, group="a", federation="demo", keys=keys, config=CONFIG)

    signed = sign(statement, key, CONFIG)
    assert believe(signed) == statement
    raw = bytearray(signed.body + signed.signature)
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(StatementError):
        believe(Signed(bytes(raw[:-64]), bytes(raw[-64:])))


@given(st.binary(max_size=300), st.binary(max_size=80))
def test_any_bytes_are_answered_with_a_refusal(body: bytes, signature: bytes) -> None:
    message = peer_pb2.HelloRequest()
    message.statement.body, message.statement.signature = body, signature
    world = World("ab", seed=0)
    engine = world.engines["a"]
    assert engine.receive("b", message, 0.0) is Receipt.REJECTED
    # Well signed by the peer, and still nonsense: refused, not raised.
    world.sign(message, "b", body)
    assert engine.receive("b", message, 0.0) is Receipt.REJECTED
    assert set(engine.versions) == {"a"}


@dataclass
class World:
    """Groups in memory: messages go through the real codec, and may be lost, late or doubled."""

    names: str
    seed: int
    loss: float = 0.0
    late: float = 0.0
    doubled: float = 0.0
    cut: set[tuple[str, str]] = field(default_factory=set)
    """Directed links (from, to) that carry nothing."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.keys = {
            name: Ed25519PrivateKey.from_private_bytes(self.random.randbytes(32))
            for name in self.names
        }
        self.now = 0.0
        self.mail: list[tuple[float, int, str, str, bytes, bool]] = []
        self.sent = 0
        self.heard: list[tuple[str, object]] = []
        self.engines = {name: self.start(name, epoch=1) for name in self.names}

    def start(self, name: str, epoch: int) -> GossipEngine:
        return GossipEngine(
            name,
            "demo",
            self.keys[name],
            {peer: [self.keys[peer].public_key()] for peer in self.names if peer != name},
            epoch=epoch,
            boot_nonce=self.random.randbytes(16),
            config=CONFIG,
            rng=self.random,
            now=self.now,
        )

    def sign(self, message: peer_pb2.HelloRequest, name: str, body: bytes) -> None:
        message.statement.body = body
        message.statement.signature = self.keys[name].sign(b"moonmesh/statement/v1\0" + body)

    def post(self, sender: str, to: str, raw: bytes, is_reply: bool) -> None:
        for _ in range(2 if self.random.random() < self.doubled else 1):
            if (sender, to) in self.cut or self.random.random() < self.loss:
                continue
            delay = self.random.uniform(0.001, 0.05)
            if self.random.random() < self.late:
                delay += self.random.uniform(0, 5)
            self.sent += 1
            self.mail.append((self.now + delay, self.sent, sender, to, raw, is_reply))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = round(self.now + 0.1, 6)
            for name, engine in self.engines.items():
                before = engine.versions
                engine.tick(self.now)
                for peer, hello in engine.outbox():
                    self.post(name, peer, hello.SerializeToString(), False)
                due = sorted(m for m in self.mail if m[0] <= self.now and m[3] == name)
                self.mail = [m for m in self.mail if m not in due]
                for _, _, sender, _, raw, is_reply in due:
                    kind = peer_pb2.HelloReply if is_reply else peer_pb2.HelloRequest
                    engine.receive(sender, kind.FromString(raw), self.now)
                    if not is_reply:
                        self.post(name, sender, engine.reply().SerializeToString(), True)
                assert engine.versions.dominates(before), f"an entry of {name} went back"
                self.heard += [(name, event) for event in engine.events()]

    def states(self) -> set[PeerState]:
        return {
            engine.peer_state(peer, self.now)
            for name, engine in self.engines.items()
            for peer in self.names
            if peer != name
        }


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1 << 32))
def test_groups_find_each_other_over_a_bad_network(seed: int) -> None:
    world = World("abcd", seed, loss=0.3, late=0.2, doubled=0.2)
    world.run(20)
    world.loss = world.late = world.doubled = 0.0
    world.run(6)
    assert world.states() == {PeerState.ALIVE}
    # Nobody is ever thought to be down, restarted or lying: nothing of that has happened.
    assert {type(event).__name__ for _, event in world.heard} <= {"PeerUp", "PeerSuspect"}
    for engine in world.engines.values():
        for name, other in world.engines.items():
            assert other.version.seq - engine.versions[name].seq <= 2


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1 << 32))
def test_a_cut_off_group_is_down_and_comes_back(seed: int) -> None:
    world = World("abc", seed, loss=0.1)
    world.run(5)
    world.cut = {(x, y) for x in "abc" for y in "abc" if (x == "c") != (y == "c")}
    world.run(20)
    assert world.engines["a"].peer_state("c", world.now) is PeerState.DOWN
    assert world.engines["c"].peer_state("a", world.now) is PeerState.DOWN
    assert world.engines["a"].peer_state("b", world.now) is PeerState.ALIVE
    assert ("a", PeerDown("c")) in world.heard

    world.cut.clear()
    world.engines["c"] = world.start("c", epoch=2)
    world.run(6)
    assert world.states() == {PeerState.ALIVE}
    assert ("a", PeerRestarted("c", 2)) in world.heard
    assert not [e for _, e in world.heard if type(e).__name__ == "StatementRejected"]


def test_a_one_way_link_shows_on_the_side_that_hears() -> None:
    world = World("ab", seed=1, cut={("a", "b")})
    world.run(10)
    (view,) = world.engines["a"].view(world.now).peers
    assert (view.state, view.hears_us) == (PeerState.ALIVE, False)
    assert world.engines["b"].peer_state("a", world.now) is PeerState.DOWN
