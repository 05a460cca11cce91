"""Statements: signed bytes, verified as received, and every reason for which one is refused."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gossip.config import GossipConfig
from gossip.statement import (
    DOMAIN,
    REASON_CHARS_MAX,
    Allowance,
    Health,
    Load,
    Reason,
    Signed,
    Statement,
    StatementError,
    printable,
    sign,
    verify,
)
from gossip.version import Version
from moonmesh.v1 import peer_pb2

CONFIG = GossipConfig.test()
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
STATEMENT = Statement(
    federation="demo",
    group="east",
    version=Version(3, 7),
    boot_nonce=bytes(range(16)),
    wall_time_ms=1_700_000_000_000,
    health=Health.DEGRADED,
    health_reason="the master does not answer",
    not_heard_from=("north", "west"),
    not_heard_more=1,
    load=Load(2, 1000),
    limits=Allowance(5000, 4),
)

# What is on the wire for STATEMENT and KEY. If this changes, gateways of two releases no longer
# understand each other: then the format's version must change too.
GOLDEN_BODY = bytes.fromhex(
    "0801120464656d6f1a0465617374200328073210000102030405060708090a0b0c0d0e0f3880d095ffbc31421e"
    "0802121a746865206d617374657220646f6573206e6f7420616e7377657252056e6f7274685204776573745801"
    "6205080210e8076a050888271004"
)


def believe(signed: Signed, config: GossipConfig = CONFIG) -> Statement:
    return verify(signed, group="east", federation="demo", keys=[KEY.public_key()], config=config)


def signed_message(**changes: object) -> Signed:
    """A well-signed body with some fields changed below what `Statement` would let through."""
    message = peer_pb2.Statement()
    message.ParseFromString(STATEMENT.encode())
    for name, value in changes.items():
        if isinstance(value, list):
            del getattr(message, name)[:]
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)
    return signed_bytes(message.SerializeToString())


def signed_bytes(body: bytes) -> Signed:
    return Signed(body, KEY.sign(DOMAIN + body))


def test_the_bytes_are_those_of_the_format() -> None:
    assert STATEMENT.encode() == GOLDEN_BODY
    assert believe(Signed(GOLDEN_BODY, KEY.sign(b"moonmesh/statement/v1\0" + GOLDEN_BODY)))


def test_what_was_signed_is_what_is_read() -> None:
    assert believe(sign(STATEMENT, KEY, CONFIG)) == STATEMENT


def test_the_received_bytes_count_not_their_meaning() -> None:
    # An unknown field survives, since nothing is encoded again; the same meaning in other bytes fails.
    longer = GOLDEN_BODY + b"\xf8\x07\x01"
    assert believe(signed_bytes(longer)) == STATEMENT
    with pytest.raises(StatementError) as caught:
        believe(Signed(longer, KEY.sign(DOMAIN + GOLDEN_BODY)))
    assert caught.value.reason is Reason.BAD_SIGNATURE


def test_a_second_key_is_believed_while_a_group_changes_its_key() -> None:
    old = Ed25519PrivateKey.generate()
    keys = [old.public_key(), KEY.public_key()]
    signed = sign(STATEMENT, KEY, CONFIG)
    assert verify(signed, group="east", federation="demo", keys=keys, config=CONFIG) == STATEMENT


class CountingKey:
    """A public key that knows how often it was used."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key.public_key()
        self.used = 0

    def verify(self, signature: bytes, data: bytes) -> None:
        self.used += 1
        self._key.verify(signature, data)


def test_the_same_bytes_are_verified_once_for_a_key() -> None:
    key = CountingKey(KEY)
    message = peer_pb2.SignedStatement()
    sign(replace(STATEMENT, wall_time_ms=77), KEY, CONFIG).write(message)

    def take(key: CountingKey, group: str = "east") -> None:
        verify(Signed.read(message), group=group, federation="demo", keys=[key], config=CONFIG)

    for _ in range(3):
        take(key)
    assert key.used == 1
    with pytest.raises(StatementError, match="speaks of group"):
        take(key, "west")
    other = CountingKey(Ed25519PrivateKey.generate())
    with pytest.raises(StatementError, match="not signed"):
        take(other)
    assert (key.used, other.used) == (1, 1), "what one key has signed, another has not"
    message.signature = bytes(64)
    for _ in range(2):
        with pytest.raises(StatementError, match="not signed"):
            take(key)
    assert key.used == 3, "nothing is remembered of what does not hold"


@pytest.mark.parametrize(
    ("signed", "reason", "words"),
    [
        pytest.param(
            Signed(GOLDEN_BODY, Ed25519PrivateKey.generate().sign(DOMAIN + GOLDEN_BODY)),
            Reason.BAD_SIGNATURE,
            "not signed by the key that peering.toml has for east",
            id="another key",
        ),
        pytest.param(
            Signed(GOLDEN_BODY, KEY.sign(GOLDEN_BODY)),
            Reason.BAD_SIGNATURE,
            "not signed",
            id="signed without the domain tag",
        ),
        pytest.param(Signed(GOLDEN_BODY, b""), Reason.BAD_SIGNATURE, "not signed", id="unsigned"),
        pytest.param(
            signed_bytes(bytes(16 * 1024 + 1)),
            Reason.OVERSIZE,
            "16385 bytes, and the limit is 16384",
            id="too large",
        ),
        pytest.param(
            signed_bytes(b"\xff\xff"), Reason.MALFORMED, "not a statement", id="no message"
        ),
        pytest.param(
            signed_message(version=2), Reason.UNKNOWN_FORMAT, "format 2", id="a later format"
        ),
        pytest.param(signed_bytes(b""), Reason.UNKNOWN_FORMAT, "format 0", id="empty"),
        pytest.param(
            signed_message(federation="other"),
            Reason.OTHER_FEDERATION,
            "it is of federation 'other', not 'demo'",
            id="another federation",
        ),
        pytest.param(
            signed_message(group="west"),
            Reason.OTHER_GROUP,
            "it speaks of group 'west', not 'east'",
            id="another group",
        ),
        pytest.param(
            signed_message(boot_nonce=b"short"), Reason.MALFORMED, "5 bytes, not 16", id="nonce"
        ),
        pytest.param(signed_message(epoch=0), Reason.BEYOND_HEADROOM, "epoch 0", id="epoch 0"),
        pytest.param(signed_message(seq=0), Reason.BEYOND_HEADROOM, "seq 0", id="seq 0"),
        pytest.param(
            signed_message(epoch=(1 << 32) + 1), Reason.BEYOND_HEADROOM, "epoch", id="wild epoch"
        ),
        pytest.param(
            signed_message(seq=(1 << 64) - 1), Reason.BEYOND_HEADROOM, "seq", id="wild seq"
        ),
        pytest.param(
            signed_message(not_heard_from=[f"g{i}" for i in range(17)]),
            Reason.MALFORMED,
            "17 groups; the limit is 16",
            id="too many not heard from",
        ),
    ],
)
def test_refused(signed: Signed, reason: Reason, words: str) -> None:
    with pytest.raises(StatementError, match=words) as caught:
        believe(signed)
    assert caught.value.reason is reason


def test_the_limits_themselves_are_believed() -> None:
    top = replace(STATEMENT, version=Version(CONFIG.max_epoch, CONFIG.max_seq))
    assert believe(sign(top, KEY, CONFIG)).version == (1 << 32, 1 << 48)


def test_nobody_signs_what_nobody_would_take() -> None:
    with pytest.raises(StatementError) as caught:
        sign(replace(STATEMENT, health_reason="x" * 20_000), KEY, CONFIG)
    assert caught.value.reason is Reason.OVERSIZE


def test_a_health_of_a_later_release_is_unknown_not_fatal() -> None:
    message = peer_pb2.Statement()
    message.ParseFromString(GOLDEN_BODY)
    message.health.state = 77  # type: ignore[assignment]
    assert believe(signed_bytes(message.SerializeToString())).health is Health.UNKNOWN


def test_a_peers_words_cannot_play_with_a_terminal() -> None:
    evil = replace(STATEMENT, health_reason="\x1b[2Jok\n" + "x" * 400)
    shown = believe(sign(evil, KEY, CONFIG)).health_reason
    assert shown.startswith("?[2Jok?x")
    assert len(shown) == REASON_CHARS_MAX
    assert printable("plain", 3) == "pla"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hello_min_gap": 2.0}, "hello_min_gap"),
        ({"suspect_floor": 0.5}, "hello_interval < suspect_floor"),
        ({"suspect_ceiling": 2.0}, "suspect_floor <= suspect_ceiling"),
        ({"down_after": 1.0}, "suspect_ceiling < down_after"),
        ({"ask_after": 1.0}, "1 < ask_after < direct_after"),
        ({"direct_after": 1.1}, "1 < ask_after < direct_after"),
        ({"phi": 16.0}, "phi"),
        ({"lead_after": 0.0}, "times"),
        ({"max_seq": 1 << 64}, "64 bits"),
        ({"max_groups": 5000}, "max_vector_entries"),
        ({"max_events": 0}, "above 0"),
    ],
)
def test_a_config_that_contradicts_itself(change: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(GossipConfig.wan(), **change)  # type: ignore[arg-type]


def test_presets_differ_in_time_alone() -> None:
    lan, wan, test = GossipConfig.lan(), GossipConfig.wan(), GossipConfig.test()
    assert test.down_after < lan.down_after < wan.down_after
    assert lan.max_statement_bytes == wan.max_statement_bytes == test.max_statement_bytes == 16384
