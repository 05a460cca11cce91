"""Statements: what a group says of itself, signed by it.

The signature covers the received bytes. A body is verified before it is parsed and is never
encoded again, so two encoders can never disagree about what was signed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from google.protobuf.message import DecodeError

from gossip.config import GossipConfig
from gossip.version import Version
from moonmesh.v1 import peer_pb2

DOMAIN: Final = b"moonmesh/statement/v1\0"
"""Signed before each body, so that no other signed bytes can be passed off as a statement."""
FORMAT_VERSION: Final = 1
BOOT_NONCE_BYTES: Final = 16
SIGNATURE_BYTES: Final = 64
PUBLIC_KEY_BYTES: Final = 32


class Reason(str, enum.Enum):
    """Why a hello was not believed. The values are stable: they appear in `status` and metrics."""

    UNKNOWN_PEER = "unknown_peer"
    """Not a peer in our peering config."""
    OVERSIZE = "oversize"
    """The body is above the limit."""
    BAD_SIGNATURE = "bad_signature"
    """Not signed by a key that our peering config has for this group."""
    MALFORMED = "malformed"
    """Signed, but not a statement that can be read."""
    UNKNOWN_FORMAT = "unknown_format"
    """A format version that we do not know."""
    OTHER_FEDERATION = "other_federation"
    """For another federation."""
    OTHER_GROUP = "other_group"
    """About another group than the one that its connection was authenticated for."""
    BEYOND_HEADROOM = "beyond_headroom"
    """Epoch or seq above what is believable."""
    OLD_EPOCH = "old_epoch"
    """Of an earlier leader term than we have seen: the group lost its epoch, or it is a replay."""
    TWO_SPEAKERS = "two_speakers"
    """Another process than the one we know speaks in the same epoch."""
    EQUIVOCATION = "equivocation"
    """Another statement than the one we have at the same (epoch, seq)."""
    TOO_MANY_VERSIONS = "too_many_versions"
    """The version vector is above the limit."""


class StatementError(Exception):
    """A hello or statement that is not believed.

    Attributes:
        reason: why, as a stable word.
        detail: why, for people.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class Health(enum.Enum):
    """What a group says of its own state."""

    UNKNOWN = peer_pb2.Health.STATE_UNSPECIFIED
    OK = peer_pb2.Health.OK
    DEGRADED = peer_pb2.Health.DEGRADED
    """Answers, but its Mooncake does not: pulls will fail."""
    DRAINING = peer_pb2.Health.DRAINING
    """Is going away: no new pulls."""


@dataclass(frozen=True, slots=True)
class Signed:
    """A statement as it travels: bytes and their signature."""

    body: bytes
    signature: bytes

    @classmethod
    def read(cls, message: peer_pb2.SignedStatement) -> Signed:
        """From the wire; nothing is checked yet."""
        return cls(message.body, message.signature)

    def write(self, message: peer_pb2.SignedStatement) -> None:
        """To the wire, byte for byte."""
        message.body = self.body
        message.signature = self.signature


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What a group says of itself (see `Statement` in peer.proto)."""

    federation: str
    group: str
    version: Version
    boot_nonce: bytes
    wall_time_ms: int = 0
    """Milliseconds since 1970, for people: no decision hangs on it."""
    health: Health = Health.OK
    health_reason: str = ""
    heard_from: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """The body that is signed."""
        return peer_pb2.Statement(
            version=FORMAT_VERSION,
            federation=self.federation,
            group=self.group,
            epoch=self.version.epoch,
            seq=self.version.seq,
            boot_nonce=self.boot_nonce,
            wall_time_ms=self.wall_time_ms,
            health=peer_pb2.Health(state=self.health.value, reason=self.health_reason),
            heard_from=self.heard_from,
        ).SerializeToString(deterministic=True)


def sign(statement: Statement, key: Ed25519PrivateKey, config: GossipConfig) -> Signed:
    """The statement, encoded once and signed.

    Raises:
        StatementError: OVERSIZE, if no receiver would take it.
    """
    body = statement.encode()
    _check_size(body, config)
    return Signed(body, key.sign(DOMAIN + body))


def verify(
    signed: Signed,
    *,
    group: str,
    federation: str,
    keys: Iterable[Ed25519PublicKey],
    config: GossipConfig,
) -> Statement:
    """The statement, if it is one of `group` in `federation`, signed by one of `keys`.

    Several keys are for the time while a group changes its key.

    Raises:
        StatementError: says what is wrong; the body was not looked into before its signature held.
    """
    _check_size(signed.body, config)
    if not any(_signed_by(key, signed) for key in keys):
        raise StatementError(
            Reason.BAD_SIGNATURE, f"not signed by the key that peering.toml has for {group}"
        )
    message = peer_pb2.Statement()
    try:
        message.ParseFromString(signed.body)
    except DecodeError:
        raise StatementError(Reason.MALFORMED, "the body is not a statement") from None
    if message.version != FORMAT_VERSION:
        raise StatementError(
            Reason.UNKNOWN_FORMAT,
            f"statement format {message.version}, and this gateway knows {FORMAT_VERSION} alone",
        )
    if message.federation != federation:
        raise StatementError(
            Reason.OTHER_FEDERATION,
            f"it is of federation {message.federation[:64]!r}, not {federation!r}",
        )
    if message.group != group:
        raise StatementError(
            Reason.OTHER_GROUP, f"it speaks of group {message.group[:64]!r}, not {group!r}"
        )
    return _read(message, config)


def read_hello(
    message: peer_pb2.HelloRequest | peer_pb2.HelloReply,
    *,
    group: str,
    federation: str,
    keys: Iterable[Ed25519PublicKey],
    config: GossipConfig,
) -> tuple[Signed, Statement]:
    """What a hello says, as far as it can be checked without knowing what was said before.

    Raises:
        StatementError: says what is wrong.
    """
    if len(message.versions) > config.max_vector_entries:
        raise StatementError(
            Reason.TOO_MANY_VERSIONS,
            f"{len(message.versions)} versions, and the limit is {config.max_vector_entries}",
        )
    signed = Signed.read(message.statement)
    return signed, verify(signed, group=group, federation=federation, keys=keys, config=config)


def _check_size(body: bytes, config: GossipConfig) -> None:
    if len(body) > config.max_statement_bytes:
        raise StatementError(
            Reason.OVERSIZE, f"{len(body)} bytes, and the limit is {config.max_statement_bytes}"
        )


def _signed_by(key: Ed25519PublicKey, signed: Signed) -> bool:
    try:
        key.verify(signed.signature, DOMAIN + signed.body)
    except InvalidSignature:
        return False
    return True


def _read(message: peer_pb2.Statement, config: GossipConfig) -> Statement:
    if len(message.boot_nonce) != BOOT_NONCE_BYTES:
        raise StatementError(
            Reason.MALFORMED,
            f"a boot nonce of {len(message.boot_nonce)} bytes, not {BOOT_NONCE_BYTES}",
        )
    if not 1 <= message.epoch <= config.max_epoch:
        raise StatementError(
            Reason.BEYOND_HEADROOM, f"epoch {message.epoch} is not in 1..{config.max_epoch}"
        )
    if not 1 <= message.seq <= config.max_seq:
        raise StatementError(
            Reason.BEYOND_HEADROOM, f"seq {message.seq} is not in 1..{config.max_seq}"
        )
    if len(message.heard_from) > config.max_groups:
        raise StatementError(
            Reason.MALFORMED,
            f"heard_from has {len(message.heard_from)} groups; the limit is {config.max_groups}",
        )
    try:
        health = Health(message.health.state)
    except ValueError:
        # A state of a later release: it is alive, and more than that is not known.
        health = Health.UNKNOWN
    return Statement(
        federation=message.federation,
        group=message.group,
        version=Version(message.epoch, message.seq),
        boot_nonce=message.boot_nonce,
        wall_time_ms=message.wall_time_ms,
        health=health,
        health_reason=printable(message.health.reason, config.max_reason_chars),
        heard_from=tuple(message.heard_from),
    )


def printable(text: str, limit: int) -> str:
    """Text of a peer as it may be shown: no control characters, at most `limit` of them."""
    return "".join(c if c.isprintable() else "?" for c in text[:limit])
