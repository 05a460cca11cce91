"""Gossip of one group, without IO: time comes in as an argument, messages go out as values.

The shell around it does three things: it calls `tick` when `next_tick_at` is reached, sends what
`outbox` gives, and hands every hello and every answer to `receive_hello`:

    engine.tick(now, wall_time_ms)
    for peer, hello in engine.outbox():
        reply = await stub(peer).Hello(hello)
        engine.receive_hello(peer, reply, now)
    for event in engine.events(): ...

Invariant: the entry of a group moves only by a statement that is signed by that group and newer
than the entry. Nobody but the group itself can move it, and nothing moves it backwards.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from gossip.config import GossipConfig
from gossip.membership import (
    Entry,
    Event,
    Heard,
    OwnVersionAhead,
    PeerHealthChanged,
    PeerRestarted,
    PeerState,
    PeerView,
    StatementRejected,
    View,
)
from gossip.statement import (
    BOOT_NONCE_BYTES,
    Health,
    Reason,
    Signed,
    Statement,
    StatementError,
    printable,
    read_hello,
    sign,
)
from gossip.version import Version, VersionVector, missing
from moonmesh.v1 import peer_pb2

Message = peer_pb2.HelloRequest | peer_pb2.HelloReply


class Receipt(enum.Enum):
    """What became of a hello."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    """The statement that we have already: a hello and an answer often carry the same one."""
    STALE = "stale"
    """Older than the one we have, of the same epoch: messages overtook each other, or a replay."""
    REJECTED = "rejected"
    """Not believed; a `StatementRejected` event says why."""


class Outgoing(NamedTuple):
    """A hello to send; the shell adds the holdings positions that this peer may know."""

    peer: str
    hello: peer_pb2.HelloRequest


class GossipEngine:
    """One group's part in the gossip of a federation. Not thread-safe.

    Args:
        group: this group's name.
        federation: the federation's id.
        key: signs this group's statements.
        peers: the public keys (one, or two while a peer changes its key) of each peer by name.
        epoch: this group's leader term, durable before this call: no two processes may ever speak
            in one epoch.
        boot_nonce: 16 random bytes, new for each start.
        config: intervals and limits.
        now: monotonic seconds; never goes back between calls.
        wall_time_ms: milliseconds since 1970, shown to people.

    Raises:
        ValueError: for arguments that no federation could have.
    """

    def __init__(
        self,
        group: str,
        federation: str,
        key: Ed25519PrivateKey,
        peers: Mapping[str, Iterable[Ed25519PublicKey]],
        *,
        epoch: int,
        boot_nonce: bytes,
        config: GossipConfig,
        now: float,
        wall_time_ms: int = 0,
    ) -> None:
        if group in peers:
            raise ValueError(f"group {group!r} is among its own peers")
        if len(peers) + 1 > config.max_groups:
            raise ValueError(f"{len(peers) + 1} groups, and the limit is {config.max_groups}")
        if not 1 <= epoch <= config.max_epoch:
            raise ValueError(f"epoch {epoch} is not in 1..{config.max_epoch}")
        if len(boot_nonce) != BOOT_NONCE_BYTES:
            raise ValueError(f"a boot nonce has {BOOT_NONCE_BYTES} bytes, not {len(boot_nonce)}")
        self.group = group
        self.federation = federation
        self._key = key
        self._config = config
        self._boot_nonce = boot_nonce
        self._entries = {
            name: Entry(name, tuple(keys), since=now) for name, keys in sorted(peers.items())
        }
        self._health = Health.OK
        self._health_text = ""
        self._health_changed = False
        self._version = Version(epoch, 0)
        self._versions = VersionVector()
        self._signed: Signed
        self._spoke_at = now
        self._outbox: dict[str, Outgoing] = {}
        self._events: deque[Event] = deque(maxlen=config.max_events)
        self._events_dropped = 0
        self._speak(now, wall_time_ms)

    def __repr__(self) -> str:
        states = ", ".join(f"{e.name}: {e.state.value}" for e in self._entries.values())
        return f"GossipEngine({self.group} {self._version}; {states})"

    # Time

    def tick(self, now: float, wall_time_ms: int = 0) -> None:
        """Notices silence, and makes the next statement when it is due."""
        for entry in self._entries.values():
            event = entry.move(Heard.since(entry.heard_at, now, self._config), now)
            if event is not None:
                self._emit(event)
        if now >= self.next_tick_at():
            self._speak(now, wall_time_ms)

    def next_tick_at(self) -> float:
        """When the next hello is due (monotonic seconds); silence is noticed at that grain too."""
        gap = self._config.hello_min_gap if self._health_changed else self._config.hello_interval
        return self._spoke_at + gap

    def set_health(self, health: Health, text: str = "") -> None:
        """What this group says of itself from now on; a change is told at the next tick."""
        text = printable(text, self._config.max_reason_chars)
        self._health_changed |= health is not self._health
        self._health, self._health_text = health, text

    # Messages

    def outbox(self) -> list[Outgoing]:
        """The hellos to send now, at most one a peer; a newer one replaces one never fetched."""
        out = list(self._outbox.values())
        self._outbox.clear()
        return out

    def reply(self) -> peer_pb2.HelloReply:
        """The answer to any peer's hello: this group's newest statement (made at the last tick)."""
        message = peer_pb2.HelloReply()
        self._fill(message)
        return message

    def receive_hello(self, peer: str, message: Message, now: float) -> Receipt:
        """Takes a hello, or the answer to one.

        Args:
            peer: the group that the connection was authenticated for (by mTLS): the statement must
                be about this very group.
            message: as it came from the wire.
            now: monotonic seconds.
        """
        entry = self._entries.get(peer)
        try:
            if entry is None:
                raise StatementError(Reason.UNKNOWN_PEER, "no such peer in peering.toml")
            signed, statement = read_hello(
                message,
                group=peer,
                federation=self.federation,
                keys=entry.keys,
                config=self._config,
            )
            receipt = self._place(entry, signed, statement)
        except StatementError as error:
            self.disbelieve(peer, error.reason, error.detail)
            return Receipt.REJECTED
        if receipt is Receipt.STALE:
            entry.stale += 1
            return receipt
        self._hear_claims(entry, message)
        if receipt is Receipt.ACCEPTED:
            self._accept(entry, signed, statement, now)
        return receipt

    def disbelieve(self, peer: str, reason: Reason, detail: str, count: int = 1) -> None:
        """Notes hellos that were not believed: here, or by a process that checks them first."""
        entry = self._entries.get(peer)
        if entry is not None:
            entry.rejected[reason] = entry.rejected.get(reason, 0) + count
        self._emit(StatementRejected(peer, reason, detail))

    def events(self) -> list[Event]:
        """What has happened since the last call, oldest first."""
        events = list(self._events)
        self._events.clear()
        return events

    # Views

    @property
    def version(self) -> Version:
        """Of this group's newest statement."""
        return self._version

    @property
    def versions(self) -> VersionVector:
        """The newest statement of each group that this group has verified, its own included."""
        return self._versions

    def peer_state(self, name: str, now: float) -> PeerState:
        """Whether a peer is heard, as of `now`.

        Raises:
            KeyError: if there is no such peer.
        """
        return self._entries[name].state_at(now, self._config)

    def pullable(self, name: str, now: float) -> bool:
        """Whether a pull from the peer has a chance: it is ALIVE, and neither degraded nor leaving.

        Raises:
            KeyError: if there is no such peer.
        """
        statement = self._entries[name].statement
        return (
            statement is not None
            and self.peer_state(name, now) is PeerState.ALIVE
            and statement.health in (Health.OK, Health.UNKNOWN)
        )

    def view(self, now: float) -> View:
        """All of it, for `status`."""
        return View(
            group=self.group,
            federation=self.federation,
            version=self._version,
            versions=self._versions,
            peers=tuple(self._peer_view(entry, now) for entry in self._entries.values()),
            events_dropped=self._events_dropped,
        )

    # Inside

    def _speak(self, now: float, wall_time_ms: int) -> None:
        """Makes this group's next statement, and a hello with it to every peer."""
        version = Version(self._version.epoch, self._version.seq + 1)
        statement = Statement(
            federation=self.federation,
            group=self.group,
            version=version,
            boot_nonce=self._boot_nonce,
            wall_time_ms=wall_time_ms,
            health=self._health,
            health_reason=self._health_text,
            heard_from=tuple(
                entry.name
                for entry in self._entries.values()
                if entry.state_at(now, self._config) is PeerState.ALIVE
            ),
        )
        self._signed = sign(statement, self._key, self._config)
        self._version = version
        self._versions = self._versions.advance(self.group, version)
        self._spoke_at = now
        self._health_changed = False
        for name in self._entries:
            hello = peer_pb2.HelloRequest()
            self._fill(hello)
            self._outbox[name] = Outgoing(name, hello)

    def _fill(self, message: Message) -> None:
        self._signed.write(message.statement)
        for group in sorted(self._versions):
            epoch, seq = self._versions[group]
            message.versions.add(group=group, epoch=epoch, seq=seq)

    def _place(self, entry: Entry, signed: Signed, statement: Statement) -> Receipt:
        """Compares a verified statement with the entry that it is about.

        Raises:
            StatementError: if the group contradicts itself.
        """
        known = entry.statement
        if known is None or entry.signed is None:
            return Receipt.ACCEPTED
        if statement.version == known.version:
            if signed.body == entry.signed.body:
                return Receipt.DUPLICATE
            raise StatementError(
                Reason.EQUIVOCATION, f"two different statements at {known.version}"
            )
        if statement.version.epoch < known.version.epoch:
            raise StatementError(
                Reason.OLD_EPOCH,
                f"epoch {statement.version.epoch}, after epoch {known.version.epoch} was heard: "
                "its epoch was lost, or this is a replay",
            )
        if statement.version.epoch == known.version.epoch:
            if statement.boot_nonce != known.boot_nonce:
                raise StatementError(
                    Reason.TWO_SPEAKERS, f"two processes speak in epoch {known.version.epoch}"
                )
            if statement.version < known.version:
                return Receipt.STALE
        return Receipt.ACCEPTED

    def _accept(self, entry: Entry, signed: Signed, statement: Statement, now: float) -> None:
        known = entry.statement
        entry.signed, entry.statement, entry.heard_at = signed, statement, now
        entry.accepted += 1
        self._versions = self._versions.advance(entry.name, statement.version)
        event = entry.move(Heard.NOW, now)
        if event is not None:
            self._emit(event)
        if known is not None and statement.boot_nonce != known.boot_nonce:
            self._emit(PeerRestarted(entry.name, statement.version.epoch))
        if known is not None and (statement.health is not known.health):
            self._emit(PeerHealthChanged(entry.name, statement.health, statement.health_reason))

    def _hear_claims(self, entry: Entry, message: Message) -> None:
        """Keeps what a peer claims to have: unproven, so it moves no entry of ours."""
        claims = {
            item.group: Version(item.epoch, item.seq)
            for item in message.versions
            if item.group == self.group or item.group in self._entries
        }
        entry.has = VersionVector(claims)
        of_us = claims.get(self.group)
        if of_us is not None and of_us > max(self._version, entry.claims_of_us):
            entry.claims_of_us = of_us
            self._emit(OwnVersionAhead(entry.name, of_us))

    def _emit(self, event: Event) -> None:
        if len(self._events) == self._config.max_events:
            self._events_dropped += 1
        self._events.append(event)

    def _peer_view(self, entry: Entry, now: float) -> PeerView:
        said = entry.statement
        return PeerView(
            name=entry.name,
            state=entry.state_at(now, self._config),
            in_state_for=now - entry.since,
            heard_ago=None if entry.heard_at is None else now - entry.heard_at,
            version=None if said is None else said.version,
            health=Health.UNKNOWN if said is None else said.health,
            health_text="" if said is None else said.health_reason,
            hears_us=None if said is None else self.group in said.heard_from,
            lag=len(missing(self._versions, entry.has)),
            accepted=entry.accepted,
            stale=entry.stale,
            rejected={reason.value: n for reason, n in entry.rejected.items()},
        )
