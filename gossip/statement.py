"""Statements: what a group says of itself, signed by it.

The signature covers the received bytes. Nothing that a body says is believed before its signature
holds, and it is never encoded again, so two encoders can never disagree about what was signed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from cryptography.exceptions import InvalidSignature
from google.protobuf.message import DecodeError

from gossip.config import GossipConfig
from gossip.ed25519 import SIGNATURE_BYTES
from gossip.version import Version
from moonmesh.v1 import peer_pb2

DOMAIN: Final = b"moonmesh/statement/v1\0"
"""Signed before each body, so that no other signed bytes can be passed off as a statement."""
FORMAT_VERSION: Final = 1
BOOT_NONCE_BYTES: Final = 16
PUBLIC_KEY_BYTES: Final = 32
REASON_CHARS_MAX: Final = 256
"""Characters of a health reason that are kept."""
READ_MAX: Final = 4096
"""Statements that are kept with what they say; one comes several times, by several ways."""
READ_BYTES_MAX: Final = 1024
"""Bytes of a body above which it is read anew each time, so that peers cannot fill our memory."""


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


class Signer(Protocol):
    """A group's private key: `Ed25519PrivateKey`, or what a simulation has for it."""

    def sign(self, data: bytes, /) -> bytes:
        """The signature, of 64 bytes."""

    def public_key(self) -> Verifier:
        """The public half."""


class Verifier(Protocol):
    """A group's public key: `gossip.ed25519.PublicKey`, or what a simulation has for it."""

    def verify(self, signature: bytes, data: bytes, /) -> None:
        """Raises `cryptography.exceptions.InvalidSignature` unless the signature is the key's."""


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


class Load(NamedTuple):
    """How busy a group is with serving its peers."""

    pulls: int = 0
    """Open now."""
    bytes_per_second: int = 0


class Allowance(NamedTuple):
    """What one peer may take from a group; 0: it does not say."""

    bytes_per_second: int = 0
    streams: int = 0


UNTOLD: Final = Load()
UNLIMITED: Final = Allowance()


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
    not_heard_from: tuple[str, ...] = ()
    """Peers that it does not hear directly: the first few."""
    not_heard_more: int = 0
    """How many more there are."""
    load: Load = UNTOLD
    limits: Allowance = UNLIMITED
    format: int = FORMAT_VERSION

    def encode(self) -> bytes:
        """The body that is signed."""
        message = peer_pb2.Statement(
            version=self.format,
            federation=self.federation,
            group=self.group,
            epoch=self.version.epoch,
            seq=self.version.seq,
            boot_nonce=self.boot_nonce,
            wall_time_ms=self.wall_time_ms,
            health=peer_pb2.Health(state=self.health.value, reason=self.health_reason),
            not_heard_from=self.not_heard_from,
            not_heard_more=self.not_heard_more,
        )
        if any(self.load):
            message.load.pulls, message.load.bytes_per_second = self.load
        if any(self.limits):
            message.limits.bytes_per_second, message.limits.streams = self.limits
        return message.SerializeToString(deterministic=True)

    def hears(self, group: str) -> bool | None:
        """Whether it hears a group directly; None: it has no room to say."""
        if not self.not_heard_from:
            return True
        if group in self.not_heard_from:
            return False
        return None if self.not_heard_more else True


class Signed:
    """A statement as it travels: bytes and their signature. Immutable."""

    __slots__ = ("_said", "_signer", "body", "signature")

    def __init__(self, body: bytes, signature: bytes) -> None:
        self.body = body
        self.signature = signature
        self._said: Statement | StatementError | None = None
        self._signer: Verifier | None = None

    def __repr__(self) -> str:
        return f"Signed({self.body!r}, {self.signature!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Signed):
            return NotImplemented
        return self.body == other.body and self.signature == other.signature

    def __hash__(self) -> int:
        return hash((self.body, self.signature))

    @classmethod
    def read(cls, message: peer_pb2.SignedStatement) -> Signed:
        """From the wire; nothing is checked yet."""
        return cls.of(message.body, message.signature)

    @classmethod
    def of(cls, body: bytes, signature: bytes) -> Signed:
        """The same one for the same bytes, as far as such are kept; nothing is checked yet."""
        if len(body) <= READ_BYTES_MAX and len(signature) <= SIGNATURE_BYTES:
            return _interned(body, signature)
        return cls(body, signature)

    def is_signed_by(self, key: Verifier) -> bool:
        """Whether the signature is the key's.

        Found out once: the same bytes come by several ways, and a verification is most of what gossip
        costs. The key is the object itself, and a body is never changed, so it stays true.
        """
        if self._signer is key:
            return True
        try:
            key.verify(self.signature, DOMAIN + self.body)
        except InvalidSignature:
            return False
        self._signer = key
        return True

    @property
    def mark(self) -> int:
        """32 bits of the signature: two statements at one (epoch, seq) that differ rarely share them."""
        return int.from_bytes(self.signature[:4], "little")

    def write(self, message: peer_pb2.SignedStatement) -> None:
        """To the wire, byte for byte."""
        message.body = self.body
        message.signature = self.signature

    def said(self) -> Statement:
        """What the body says, believed or not.

        Raises:
            StatementError: MALFORMED, if it cannot be read.
        """
        said = self._said
        if said is None:
            try:
                said = _parse(self.body)
            except StatementError as error:
                said = error
            self._said = said
        if isinstance(said, StatementError):
            raise StatementError(said.reason, said.detail)
        return said


# Of one process, not of one engine: in a simulation, a thousand engines share what they hear.
_interned = lru_cache(maxsize=READ_MAX)(Signed)


def sign(statement: Statement, key: Signer, config: GossipConfig) -> Signed:
    """The statement, encoded once and signed.

    Raises:
        StatementError: OVERSIZE, if no receiver would take it.
    """
    body = statement.encode()
    check_size(body, config)
    return Signed(body, key.sign(DOMAIN + body))


def verify(
    signed: Signed,
    *,
    group: str,
    federation: str,
    keys: Iterable[Verifier],
    config: GossipConfig,
) -> Statement:
    """The statement, if it is one of `group` in `federation`, signed by one of `keys`.

    Several keys are for the time while a group changes its key.

    Raises:
        StatementError: says what is wrong; a signature that does not hold comes before all else.
    """
    check_size(signed.body, config)
    for key in keys:
        if signed.is_signed_by(key):
            break
    else:
        raise StatementError(
            Reason.BAD_SIGNATURE, f"not signed by the key that peering.toml has for {group}"
        )
    said = signed.said()
    if said.format != FORMAT_VERSION:
        raise StatementError(
            Reason.UNKNOWN_FORMAT,
            f"statement format {said.format}, and this gateway knows {FORMAT_VERSION} alone",
        )
    if said.federation != federation:
        raise StatementError(
            Reason.OTHER_FEDERATION,
            f"it is of federation {said.federation[:64]!r}, not {federation!r}",
        )
    if said.group != group:
        raise StatementError(
            Reason.OTHER_GROUP, f"it speaks of group {said.group[:64]!r}, not {group!r}"
        )
    _check_limits(said, config)
    return said


def check_size(body: bytes, config: GossipConfig) -> None:
    """Refuses a body that is too large.

    Raises:
        StatementError: OVERSIZE.
    """
    if len(body) > config.max_statement_bytes:
        raise StatementError(
            Reason.OVERSIZE, f"{len(body)} bytes, and the limit is {config.max_statement_bytes}"
        )


def _check_limits(said: Statement, config: GossipConfig) -> None:
    epoch, seq = said.version
    if len(said.boot_nonce) != BOOT_NONCE_BYTES:
        raise StatementError(
            Reason.MALFORMED,
            f"a boot nonce of {len(said.boot_nonce)} bytes, not {BOOT_NONCE_BYTES}",
        )
    if not 1 <= epoch <= config.max_epoch:
        raise StatementError(
            Reason.BEYOND_HEADROOM, f"epoch {epoch} is not in 1..{config.max_epoch}"
        )
    if not 1 <= seq <= config.max_seq:
        raise StatementError(Reason.BEYOND_HEADROOM, f"seq {seq} is not in 1..{config.max_seq}")
    if len(said.not_heard_from) > config.max_not_heard:
        raise StatementError(
            Reason.MALFORMED,
            f"not_heard_from has {len(said.not_heard_from)} groups; "
            f"the limit is {config.max_not_heard}",
        )


def _parse(body: bytes) -> Statement:
    """What a body says; its limits are not checked.

    Raises:
        StatementError: MALFORMED.
    """
    message = peer_pb2.Statement()
    try:
        message.ParseFromString(body)
    except DecodeError:
        raise StatementError(Reason.MALFORMED, "the body is not a statement") from None
    try:
        health = Health(message.health.state)
    except ValueError:
        # A state of a later release: it is alive, and more than that is not known.
        health = Health.UNKNOWN
    load, limits = message.load, message.limits
    return Statement(
        format=message.version,
        federation=message.federation,
        group=message.group,
        version=Version(message.epoch, message.seq),
        boot_nonce=message.boot_nonce,
        wall_time_ms=message.wall_time_ms,
        health=health,
        health_reason=printable(message.health.reason, REASON_CHARS_MAX),
        not_heard_from=tuple(message.not_heard_from),
        not_heard_more=message.not_heard_more,
        load=Load(load.pulls, load.bytes_per_second),
        limits=Allowance(limits.bytes_per_second, limits.streams),
    )


def printable(text: str, limit: int) -> str:
    """Text of a peer as it may be shown: no control characters, at most `limit` of them."""
    return "".join(c if c.isprintable() else "?" for c in text[:limit])
