"""Laws of version vectors, and of gossip under any order, loss, repetition and forgery."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from gossip.engine import GossipEngine, Receipt
from gossip.events import PeerDown, PeerRestarted, StatementRejected
from gossip.membership import PeerState
from gossip.statement import DOMAIN, Signed, Statement, StatementError, sign, verify
from gossip.version import Version, VersionVector, missing
from moonmesh.v1 import peer_pb2
from tests.support.gossip import CONFIG, KEYS, World, engine, signed

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
    a = engine("a", "b")
    assert a.receive("b", message, 0.0) is Receipt.REJECTED
    # Well signed by the peer, and still nonsense: refused, not raised.
    message.statement.signature = KEYS["b"].sign(DOMAIN + body)
    assert a.receive("b", message, 0.0) is Receipt.REJECTED
    assert set(a.versions) == {"a"}


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 1 << 32))
def test_groups_find_each_other_over_a_bad_network(seed: int) -> None:
    world = World("abcd", seed)
    world.loss, world.late, world.doubled = 0.3, 0.2, 0.2
    world.run(20)
    world.loss = world.late = world.doubled = 0.0
    world.run(6)
    assert world.states() == {PeerState.ALIVE}
    # Nobody is ever thought to be down, restarted or lying: nothing of that has happened.
    kinds = {type(event).__name__ for _, _, event in world.story}
    assert kinds <= {"PeerUp", "PeerSuspect", "LinkChanged"}
    for one in world.engines.values():
        for name, other in world.engines.items():
            assert other.version.seq - one.versions[name].seq <= 2


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 1 << 32))
def test_a_cut_off_group_is_down_for_those_who_have_a_witness_and_comes_back(seed: int) -> None:
    world = World("abc", seed)
    world.loss = 0.1
    world.run(5)
    world.cut = {(x, y) for x in "abc" for y in "abc" if (x == "c") != (y == "c")}
    world.run(20)
    assert world.state("a", "c") is world.state("b", "c") is PeerState.DOWN
    assert world.state("c", "a") is world.state("c", "b") is PeerState.SUSPECT, "it is alone"
    assert world.state("a", "b") is PeerState.ALIVE
    (down,) = world.happened("a", PeerDown)
    assert isinstance(down, PeerDown)
    assert down.witnesses == ("b",)

    world.cut.clear()
    world.start("c", epoch=2)
    world.run(6)
    assert world.states() == {PeerState.ALIVE}
    assert PeerRestarted("c", 2) in world.happened("a", PeerRestarted)
    assert not world.happened("a", StatementRejected)


FIELDS = st.sampled_from(["statement", "yours", "relayed", "versions", "probes", "silent", "have"])
ENTRIES = st.tuples(
    st.sampled_from(["a", "b", "c", "d", "stranger"]), st.integers(0, 9), st.integers(0, 9)
)


@st.composite
def messages(draw: st.DrawFn) -> tuple[str, peer_pb2.HelloRequest | peer_pb2.HelloReply]:
    """A hello of b, c or d: some of it is true, some is of others, some is damaged."""
    pool = [
        signed(group, epoch, seq, nonce, wall_time_ms=wall)
        for group in "abcd"
        for epoch, seq, nonce, wall in draw(
            st.lists(
                st.tuples(
                    st.integers(1, 4), st.integers(1, 5), st.integers(1, 2), st.integers(0, 1)
                ),
                min_size=1,
                max_size=2,
            )
        )
    ]
    hello = peer_pb2.HelloRequest()
    for field in draw(st.lists(FIELDS, max_size=5)):
        one = draw(st.sampled_from(pool))
        name, epoch, seq = draw(ENTRIES)
        if field in ("statement", "yours"):
            getattr(hello, field).CopyFrom(one)
        elif field == "relayed":
            hello.relayed.append(one)
        elif field == "have":
            hello.have_epoch, hello.have_seq, hello.want_versions = epoch, seq, bool(seq % 2)
        else:
            getattr(hello, field).add(group=name, epoch=epoch, seq=seq)
    raw = bytearray(hello.SerializeToString())
    if raw and draw(st.booleans()):
        raw[draw(st.integers(0, len(raw) - 1))] ^= draw(st.integers(1, 255))
    kind = draw(st.sampled_from([peer_pb2.HelloRequest, peer_pb2.HelloReply]))
    try:
        return draw(st.sampled_from("bcd")), kind.FromString(bytes(raw))
    except DecodeError:
        return "b", hello


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(messages(), st.floats(0, 3)), max_size=20))
def test_no_storm_of_messages_breaks_what_always_holds(
    storm: list[tuple[tuple[str, peer_pb2.HelloRequest | peer_pb2.HelloReply], float]],
) -> None:
    a = engine("a", "b", "c", "d")
    now = 0.0
    for (peer, message), pause in storm:
        before = a.versions
        a.receive(peer, message, now)
        for _, hello in a.outbox():
            assert hello.ByteSize() < 8192
        now += pause
        while (at := max(a.next_tick_at(), 0.0)) <= now:
            a.tick(max(at, now - pause))
            a.outbox()
            if a.next_tick_at() <= at:
                break
        a.tick(now)
        after = a.versions
        assert after.dominates(before)
        for group in set(after) - {"a"}:
            # Every entry is one that its group has signed: epochs and seqs of the pool alone.
            assert 1 <= after[group].epoch <= 4
            assert 1 <= after[group].seq <= 5
        for view in a.view(now).peers:
            if view.state is PeerState.DOWN:
                assert view.witnesses, "on one observer's word alone"


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 1 << 32), st.lists(st.booleans(), min_size=2, max_size=6))
def test_a_gateway_is_heard_in_its_terms_alone(seed: int, terms: list[bool]) -> None:
    """Whatever comes in, nothing goes out between two terms, and each term is above the one before."""
    world = World("abc", seed)
    world.loss, world.late, world.doubled = 0.2, 0.1, 0.2
    follower = world.engines["a"] = engine("a", "b", "c", epoch=None)
    said: list[int] = []
    epoch = 1

    def check(one: GossipEngine) -> None:
        if one is follower and not one.view(world.now).speaking:
            assert one.outbox() == []
            assert one.greeting().message is None

    world.check = check
    for leads in terms:
        if leads:
            epoch += 1
            follower.lead(epoch, bytes([epoch]) * 16, world.now)
            said.append(epoch)
        else:
            follower.silence()
        world.run(3)
        assert follower.version.epoch == (said[-1] if said else 0)
    world.loss = world.late = 0.0
    epoch += 1
    follower.lead(epoch, bytes(16), world.now)
    world.run(6)
    assert world.engines["b"].versions["a"].epoch == epoch
    assert world.states() == {PeerState.ALIVE}
    kinds = {type(event).__name__ for _, name, event in world.story if name == "a"}
    assert not kinds & {"OwnVersionAhead", "OwnTwin", "Quarantined"}
