"""Gossip of one group, without IO: time comes in as an argument, messages go out as values.

The shell around it calls `tick` when `next_tick_at` is reached, sends what `outbox` gives, and hands every
hello and every answer to `receive`, after which there may be something to send at once:

    engine.tick(now, wall_time_ms)
    for peer, hello in engine.outbox():
        reply = await stub(peer).Hello(hello)
        engine.receive(peer, reply, now)
    for event in engine.events(): ...

and on the other side: `engine.receive(peer, hello, now)`, then `engine.reply_to(hello)`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from gossip.book import Book, EventLog, Receipt
from gossip.config import GossipConfig
from gossip.events import Event
from gossip.exchange import Exchange
from gossip.mail import Mail, Outgoing
from gossip.membership import Link, PeerState
from gossip.reply import Greeting
from gossip.statement import (
    BOOT_NONCE_BYTES,
    REASON_CHARS_MAX,
    Allowance,
    Health,
    Load,
    Reason,
    Signed,
    Signer,
    Statement,
    Verifier,
    printable,
    sign,
)
from gossip.version import Version, VersionVector
from gossip.view import PeerView, View
from gossip.watch import Random, Watch
from moonmesh.v1 import peer_pb2

Message = peer_pb2.HelloRequest | peer_pb2.HelloReply

__all__ = ["GossipEngine", "Message", "Outgoing", "Random", "Receipt"]


class GossipEngine:
    """One group's part in the gossip of a federation. Not thread-safe.

    Args:
        group: this group's name.
        federation: the federation's id.
        key: signs this group's statements.
        peers: the public keys (one, or two while a peer changes its key) of each peer by name.
        epoch: this group's leader term, durable before this call: no two processes may ever speak
            in one epoch. None for a gateway that does not lead: it listens, and is silent until `lead`.
        boot_nonce: 16 random bytes, new for each term; not looked at without an epoch.
        config: intervals and limits.
        rng: chooses peers.
        now: monotonic seconds; never goes back between calls.
        wall_time_ms: milliseconds since 1970, shown to people.

    Raises:
        ValueError: for arguments that no federation could have.
    """

    def __init__(
        self,
        group: str,
        federation: str,
        key: Signer,
        peers: Mapping[str, Iterable[Verifier]],
        *,
        epoch: int | None,
        boot_nonce: bytes = b"",
        config: GossipConfig,
        rng: Random,
        now: float,
        wall_time_ms: int = 0,
    ) -> None:
        if group in peers:
            raise ValueError(f"group {group!r} is among its own peers")
        if len(peers) + 1 > config.max_groups:
            raise ValueError(f"{len(peers) + 1} groups, and the limit is {config.max_groups}")
        self.group = group
        self.federation = federation
        self._key = key
        self._config = config
        self._rng = rng
        self._now = now
        self._log = EventLog(config.max_events)
        self._book = Book(group, federation, peers, config, self._log, now)
        self._entries = self._book.entries
        self._names = list(self._entries)
        self._mail = Mail(self._entries, self._book.versions, config)
        self._watch = Watch(self._book, self._mail, self._log, config, rng, now)
        self._exchange = Exchange(
            self._book, self._mail, self._log, key.public_key(), config, self._watch
        )
        self._said = (Health.OK, "", Load(), Allowance())
        self._changed = False
        self._spoke_at = self._round_at = now
        self._promised = float("inf")  # nothing, before the first tick
        self._push_pull_at = now + config.push_pull_interval
        self._version = Version(0, 0)
        self._boot_nonce = b""
        self._greeting = Greeting(None)
        self._speaking = False
        if epoch is not None:
            self.lead(epoch, boot_nonce, now, wall_time_ms)

    def __repr__(self) -> str:
        states = ", ".join(f"{e.name}: {e.state.value}" for e in self._entries.values())
        return f"GossipEngine({self.group} {self._version}; {states})"

    # Who speaks

    def lead(self, epoch: int, boot_nonce: bytes, now: float, wall_time_ms: int = 0) -> None:
        """Speaks for the group from now on, in a new epoch that is durable and nobody else's.

        Raises:
            ValueError: the epoch is not above all that this process had, or not believable.
        """
        if not self._version.epoch < epoch <= self._config.max_epoch:
            below = self._version.epoch + 1
            raise ValueError(f"epoch {epoch} is not in {below}..{self._config.max_epoch}")
        if len(boot_nonce) != BOOT_NONCE_BYTES:
            raise ValueError(f"a boot nonce has {BOOT_NONCE_BYTES} bytes, not {len(boot_nonce)}")
        self._version = Version(epoch, 0)
        self._boot_nonce = boot_nonce
        self._exchange.start_term(boot_nonce)
        self._speaking = True
        self._round(now, wall_time_ms)

    def silence(self) -> None:
        """Speaks no more, and listens still: this gateway does not lead its group, until `lead`."""
        if self._speaking:
            self._speaking = False
            self._greeting = Greeting(None)
            self._exchange.end_term()
        self._mail.clear()  # what there was to answer

    def set_health(self, health: Health, text: str = "") -> None:
        """What this group says of itself from now on; a change is told at the next tick."""
        self._changed |= health is not self._said[0]
        self._said = (health, printable(text, REASON_CHARS_MAX), *self._said[2:])

    def set_load(self, load: Load, limits: Allowance) -> None:
        """How busy it is, and what a peer may take; told with the next statement."""
        self._said = (*self._said[:2], load, limits)

    # Time

    def next_tick_at(self) -> float:
        """When `tick` and `outbox` have something to do (monotonic seconds)."""
        at = self._due()
        if self._speaking:
            mail_at = self._mail.next_at
            if mail_at < at:
                at = mail_at
            if self._changed or self._book.deaf_changed:
                at = min(at, self._spoke_at + self._config.hello_min_gap)
        return at

    def _due(self) -> float:
        """When something is due that no message can put off or bring forward."""
        # Written out: it is asked for after every message.
        exchange = self._exchange
        at = self._book.look_at
        probes_at, own_at = exchange.probes.next_at, exchange.own.due_at
        if probes_at < at:
            at = probes_at
        if own_at < at:
            at = own_at
        if self._speaking:
            if self._round_at < at:
                at = self._round_at
            if self._push_pull_at < at:
                at = self._push_pull_at
        return at

    def tick(self, now: float, wall_time_ms: int = 0) -> None:
        """Notices silence, and makes the next statement when it is due."""
        self._now = now
        exchange = self._exchange
        self._watch.on_time(self._promised, now)
        if now >= exchange.probes.next_at:
            exchange.tick(now)
        if now >= self._book.look_at:
            self._watch.scan(now)
        if now >= exchange.own.due_at:
            self._log.add(exchange.own.due(now))
        if self._speaking:
            self._changed |= self._book.deaf_changed
            self._book.deaf_changed = False
            soon = self._changed and now >= self._spoke_at + self._config.hello_min_gap
            if soon or now >= self._round_at:
                self._round(now, wall_time_ms)
            if now >= self._push_pull_at:
                self._push_pull(now)
        self._promised = self._due()

    def _round(self, now: float, wall_time_ms: int) -> None:
        """Greets everybody, or as many as `fanout`; with a new statement, if one is due."""
        config, full = self._config, self._book.full
        every = config.hello_interval * self._book.pace
        if full or self._changed or now - self._spoke_at >= every or not self._version.seq:
            self._speak(now, wall_time_ms)
        self._round_at = now + config.hello_interval
        peers: Iterable[str] = self._names
        if not full:
            peers = self._rng.sample(self._names, min(config.fanout, len(self._names)))
            self._mail.start_round(self._exchange.rumours.batch(self._entries, config.fanout))
        for name in peers:
            self._mail.greet_in_round(name)

    def _speak(self, now: float, wall_time_ms: int) -> None:
        version = Version(self._version.epoch, self._version.seq + 1)
        health, text, load, limits = self._said
        names, more = self._book.not_heard()
        statement = Statement(
            federation=self.federation,
            group=self.group,
            version=version,
            boot_nonce=self._boot_nonce,
            wall_time_ms=wall_time_ms,
            health=health,
            health_reason=text,
            not_heard_from=names,
            not_heard_more=more,
            load=load,
            limits=limits,
        )
        signed = sign(statement, self._key, self._config)
        self._version = self._book.versions[self.group] = version
        self._spoke_at = now
        self._changed = self._book.deaf_changed = False
        self._greeting = Greeting(peer_pb2.HelloReply(statement=self._mail.say(signed)))

    def _push_pull(self, now: float) -> None:
        self._push_pull_at = now + self._config.push_pull_interval
        for name in self._watch.choose(self._config.push_pull_peers):
            draft = self._mail.to(name)
            draft.versions = draft.want = True

    # Messages

    def outbox(self, busy: Container[str] = ()) -> list[Outgoing]:
        """The hellos to send now, at most one a peer; what is not fetched becomes part of a later one.

        Args:
            busy: peers that cannot be told anything now.
        """
        return self._mail.take(self._now, busy) if self._speaking else []

    def greeting(self) -> Greeting:
        """What answers hellos from now on, until the next statement."""
        return self._greeting

    def reply_to(self, hello: peer_pb2.HelloRequest) -> peer_pb2.HelloReply:
        """The answer to a hello: our newest statement, where its sender does not have it."""
        return self._greeting.reply_to(hello)

    def receive(self, peer: str, message: Message, now: float) -> Receipt:
        """Takes a hello, or the answer to one.

        Args:
            peer: the group that the connection was authenticated for (by mTLS): the statement must
                be about this very group.
            message: as it came from the wire.
            now: monotonic seconds.
        """
        entry = self._entries.get(peer)
        if entry is None:
            detail = "no such peer in peering.toml"
            self._book.disbelieve(peer, Reason.UNKNOWN_PEER, detail, now)
            return Receipt.REJECTED
        self._now = now
        if not isinstance(message, peer_pb2.HelloRequest):
            if message.HasField("yours"):
                self._exchange.told(entry, message.yours, now)
            if not message.HasField("statement"):
                return Receipt.NOTHING
            receipt = self._book.take(entry, message.statement, now, hello=False)
            if receipt is Receipt.ACCEPTED:
                self._exchange.pass_on(entry)
            return receipt
        receipt = self._book.take(entry, message.statement, now, hello=True)
        if receipt is Receipt.ACCEPTED:
            self._exchange.pass_on(entry)
        elif receipt is Receipt.REJECTED:
            self._mail.to(peer).yours = True  # what we have of it: it may have lost its epoch
        self._exchange.hear(entry, message, now, believed=receipt is not Receipt.REJECTED)
        return receipt

    def disbelieve(self, peer: str, reason: Reason, detail: str, count: int = 1) -> None:
        """Notes hellos that were not believed by a process that checks them first."""
        self._book.disbelieve(peer, reason, detail, self._now, count)

    def release(self, peer: str) -> Reason | None:
        """An operator takes a peer out of quarantine; why it was in it, None if it was not.

        Raises:
            KeyError: if there is no such peer.
        """
        return self._book.release(self._entries[peer])

    def events(self) -> list[Event]:
        """What has happened since the last call, oldest first."""
        return self._log.take()

    # Views

    @property
    def version(self) -> Version:
        """Of the newest statement that was made here; 0.0 before the first."""
        return self._version

    @property
    def versions(self) -> VersionVector:
        """The newest statement of each group that this group has verified, its own included."""
        return VersionVector(self._book.versions)

    def is_at(self, versions: Mapping[str, Version]) -> bool:
        """Whether `versions` is this, no more and no less."""
        return self._book.versions == versions

    def version_of(self, name: str) -> Version:
        """Of the newest statement of a peer; 0.0 before the first.

        Raises:
            KeyError: if there is no such peer.
        """
        return self._entries[name].version

    def signed_of(self, name: str) -> Signed | None:
        """The newest statement of a peer, byte for byte; None before the first.

        Raises:
            KeyError: if there is no such peer.
        """
        return self._entries[name].signed

    def queues(self) -> Iterable[tuple[str, int, int]]:
        """What waits here, with how much of it there may be: name, size, limit."""
        groups = len(self._names)
        return (
            ("peers with mail", len(self._mail), groups),
            ("rumours", len(self._exchange.rumours), groups),
            ("questions of others", len(self._exchange.probes), self._config.max_probed),
            ("events", len(self._log), self._config.max_events),
        )

    def peer_state(self, name: str) -> PeerState:
        """Whether a peer is heard.

        Raises:
            KeyError: if there is no such peer.
        """
        return self._entries[name].state

    def pullable(self, name: str, now: float) -> bool:
        """Whether a pull from the peer has a chance: it is ALIVE and well, trusted, and not cut off.

        Raises:
            KeyError: if there is no such peer.
        """
        entry = self._entries[name]
        said = entry.statement
        if said is None or entry.state is not PeerState.ALIVE or entry.quarantine is not None:
            return False
        if said.health not in (Health.OK, Health.UNKNOWN):
            return False
        # One hello that is late must not stop pulls: a cut has to last.
        grace = self._config.route_after * self._config.hello_interval
        return entry.link is Link.BOTH or now - entry.cut_at < grace

    def view(self, now: float) -> View:
        """All of it, for `status`."""
        linked = self._book.full
        return View(
            group=self.group,
            federation=self.federation,
            version=self._version,
            versions=self.versions,
            speaking=self._speaking,
            health_score=self._watch.health.score,
            stalls=self._watch.stalls,
            peers=tuple(
                PeerView.of(entry, now, linked=linked, pullable=self.pullable(name, now))
                for name, entry in self._entries.items()
            ),
            events_dropped=self._log.dropped,
        )
