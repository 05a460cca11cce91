"""What is believed of all peers: their newest statements, and what is held against them.

Invariant: the entry of a group moves only by a statement that is signed by that group and newer than
the entry. Nobody but the group itself can move it, and nothing moves it backwards.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Mapping

from gossip.config import GossipConfig
from gossip.detector import Silence
from gossip.events import (
    Event,
    LinkChanged,
    PeerHealthChanged,
    PeerRestarted,
    Quarantined,
    Released,
    StatementRejected,
)
from gossip.membership import LINKS, Entry, Input, Link, PeerState
from gossip.quarantine import HEALED_BY, Quarantine
from gossip.statement import Reason, Signed, Statement, StatementError, Verifier, check_size, verify
from gossip.version import Version
from moonmesh.v1 import peer_pb2


class Receipt(enum.Enum):
    """What became of a statement."""

    ACCEPTED = "accepted"
    NOTHING = "nothing"
    """An answer without a statement: we have its newest."""
    DUPLICATE = "duplicate"
    """The statement that we have already: a hello and an answer often carry the same one."""
    STALE = "stale"
    """Older than the one we have, of the same epoch: messages overtook each other, or a replay."""
    REJECTED = "rejected"
    """Not believed; a `StatementRejected` event says why."""


class EventLog:
    """What has happened and was not fetched yet."""

    def __init__(self, limit: int) -> None:
        self._events: deque[Event] = deque(maxlen=limit)
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._events)

    def add(self, event: Event | None) -> None:
        """Notes an event; the oldest one goes if there is no room."""
        if event is not None:
            self.dropped += len(self._events) == self._events.maxlen
            self._events.append(event)

    def take(self) -> list[Event]:
        """All of them, oldest first."""
        if not self._events:
            return []
        events = list(self._events)
        self._events.clear()
        return events


class Book:
    """The entries of all peers.

    Args:
        group: this group, which has none.
        federation: the federation's id.
        peers: public keys of each peer.
        events: where it is told what happens.

    Attributes:
        entries: by name, sorted.
        versions: of everybody, this group included, which writes its own.
        pace: how many times longer than in a full mesh everything takes.
        full: every group greets every other.
        deaf_changed: a peer is no longer heard directly; for the engine to clear, when it has said so.
        look_at: when an entry has to be looked at, at the earliest; for `watch` to put off.
    """

    def __init__(
        self,
        group: str,
        federation: str,
        peers: Mapping[str, Iterable[Verifier]],
        config: GossipConfig,
        events: EventLog,
        now: float,
    ) -> None:
        self.group = group
        self.federation = federation
        self._config = config
        self._events = events
        self.pace = max(1.0, (len(peers) + 1) / config.full_mesh)
        self.full = len(peers) < config.full_mesh
        silence = Silence(config.hello_interval * self.pace, config, self.pace)
        due = now + config.ask_after * config.hello_interval if self.full else float("inf")
        self.entries = {
            name: Entry(name, tuple(keys), silence, now, due)
            for name, keys in sorted(peers.items())
        }
        self.versions: dict[str, Version] = {}
        self._bodies: dict[bytes, Entry] = {}
        self._fresh_for = config.suspect_ceiling * self.pace
        self._deaf: dict[str, Entry] = {}
        self.deaf_changed = False
        self.look_at = now

    # Statements

    def knows(self, body: bytes) -> bool:
        """Whether it is the newest statement of a peer."""
        return body in self._bodies

    def take(
        self, entry: Entry, message: peer_pb2.SignedStatement, now: float, *, hello: bool
    ) -> Receipt:
        """A statement that its own group's connection brought.

        Args:
            hello: not an answer, which a process can give whose gateway hangs.
        """
        known, body = entry.signed, message.body
        if known is not None and known.body == body:
            if hello:
                self._directly(entry, now)
            return Receipt.DUPLICATE
        try:
            signed = Signed.of(body, message.signature)
            statement = self._verified(entry, signed)
            if self._is_old(entry, signed, statement):
                if statement.version.epoch < entry.version.epoch:
                    raise StatementError(
                        Reason.OLD_EPOCH,
                        f"epoch {statement.version.epoch}, after epoch {entry.version.epoch} was "
                        "heard: its epoch was lost, or this is a replay",
                    )
                entry.stale += 1
                return Receipt.STALE
        except StatementError as error:
            self.disbelieve(entry.name, error.reason, error.detail, now)
            return Receipt.REJECTED
        self._accept(entry, signed, statement, now, direct=True)
        self._directly(entry, now)
        return Receipt.ACCEPTED

    def take_relayed(self, entry: Entry, signed: Signed, now: float) -> bool:
        """A statement of a peer that somebody else had; True if it is news.

        Raises:
            StatementError: it is not believed. That is not its origin's doing, unless the signature
                holds and the origin contradicts itself.
        """
        check_size(signed.body, self._config)
        said = signed.said()
        if self._is_past(entry, said):
            return False  # and not worth a verification
        statement = self._verified(entry, signed)
        try:
            if self._is_old(entry, signed, statement):
                return False
        except StatementError as error:
            self.distrust(entry, error.reason, error.detail, now)
            raise
        self._accept(entry, signed, statement, now, direct=False)
        return True

    @staticmethod
    def _is_past(entry: Entry, said: Statement) -> bool:
        """Whether a statement says nothing, true or forged: not even that its origin contradicts itself."""
        known = entry.statement
        if known is None or said.version.epoch != known.version.epoch:
            return said.version.epoch < entry.version.epoch
        return said.version < known.version and said.boot_nonce == known.boot_nonce

    def _verified(self, entry: Entry, signed: Signed) -> Statement:
        return verify(
            signed,
            group=entry.name,
            federation=self.federation,
            keys=entry.keys,
            config=self._config,
        )

    @staticmethod
    def _is_old(entry: Entry, signed: Signed, statement: Statement) -> bool:
        """Compares a verified statement with the entry that it is about; False if it is newer.

        Raises:
            StatementError: the group contradicts itself.
        """
        known = entry.statement
        if known is None:
            return False
        version, newest = statement.version, known.version
        if version.epoch == newest.epoch and statement.boot_nonce != known.boot_nonce:
            raise StatementError(
                Reason.TWO_SPEAKERS, f"two processes speak in epoch {version.epoch}"
            )
        if version > newest:
            return False
        same = entry.signed is None or signed.body == entry.signed.body
        if version == newest and not same:
            raise StatementError(Reason.EQUIVOCATION, f"two different statements at {version}")
        return True

    def _accept(
        self, entry: Entry, signed: Signed, statement: Statement, now: float, *, direct: bool
    ) -> None:
        known, version = entry.statement, statement.version
        if entry.signed is not None:
            self._bodies.pop(entry.signed.body, None)
        entry.signed, entry.statement, entry.version = signed, statement, version
        self.versions[entry.name] = version
        self._bodies[signed.body] = entry
        entry.accepted += 1
        # From memory it may be as old as that memory, but not older than what came before it. So it is
        # fresh if that came just now; else whoever is dead would be ALIVE again, or SUSPECT for longer.
        fresh = direct or entry.state is PeerState.ALIVE or now - entry.moved_at < self._fresh_for
        entry.moved_at = now
        if fresh:
            if entry.heard_at is not None:
                entry.arrivals.add(now - entry.heard_at)
            entry.heard_at = now
        if entry.witnesses and (fresh or entry.state is PeerState.SUSPECT):
            entry.witnesses = ()  # somebody has heard it since they were asked
        if not fresh or entry.state is not PeerState.ALIVE:
            self._events.add(entry.move(Input.HEARD if fresh else Input.TOLD, now))
            entry.due = self.look_at = now
        if known is None or known.not_heard_from or statement.not_heard_from:
            self.relink(entry, now)
        if known is not None:
            if known.boot_nonce != statement.boot_nonce:
                self._events.add(PeerRestarted(entry.name, version.epoch))
            if known.health is not statement.health:
                text = statement.health_reason
                self._events.add(PeerHealthChanged(entry.name, statement.health, text))
        held = entry.quarantine
        if held is not None and held.is_healed_by(version, direct=direct):
            self.release(entry)

    # Links

    def _directly(self, entry: Entry, now: float) -> None:
        entry.direct_at = now
        entry.asked = False
        if not entry.hearing:
            entry.hearing = True
            del self._deaf[entry.name]  # told with the next statement: good news can wait
            self.relink(entry, now)
            entry.due = self.look_at = now

    def unheard(self, entry: Entry, now: float) -> None:
        """Nothing has come from a peer itself for `direct_after`."""
        entry.hearing = False
        self._deaf[entry.name] = entry
        self.deaf_changed = True
        self.relink(entry, now)

    def relink(self, entry: Entry, now: float) -> None:
        """Works out anew in which directions the link to a peer carries."""
        if not self.full:
            return
        # Nothing said: it is taken to hear us, until it says otherwise.
        heard = entry.statement is None or entry.statement.hears(self.group) is not False
        link = LINKS[entry.hearing, heard]
        if link is not entry.link:
            if entry.link is Link.BOTH:
                entry.cut_at = now
            entry.link = link
            if entry.statement is not None:
                self._events.add(LinkChanged(entry.name, link))

    def not_heard(self) -> tuple[tuple[str, ...], int]:
        """Peers that we do not hear directly: the first few, and how many more there are.

        Those first that are alive: it is they who have to know.
        """
        if not self._deaf:
            return (), 0
        order = sorted(
            self._deaf.values(), key=lambda entry: (entry.state is not PeerState.ALIVE, entry.name)
        )
        names = tuple(entry.name for entry in order[: self._config.max_not_heard])
        return names, len(order) - len(names)

    # Trust

    def disbelieve(
        self, peer: str, reason: Reason, detail: str, now: float, count: int = 1
    ) -> None:
        """Something of a peer was not believed: it is counted, and may cost it our trust."""
        self.count(peer, reason, detail, count)
        entry = self.entries.get(peer)
        if entry is not None:
            self.distrust(entry, reason, detail, now)

    def count(self, peer: str, reason: Reason, detail: str, count: int = 1) -> None:
        """Something that a peer sent was not believed; it may not be its own fault."""
        entry = self.entries.get(peer)
        if entry is not None:
            entry.rejected = entry.rejected or {}
            entry.rejected[reason] = entry.rejected.get(reason, 0) + count
        self._events.add(StatementRejected(peer, reason, detail))

    def distrust(self, entry: Entry, reason: Reason, detail: str, now: float) -> None:
        """Puts a peer into quarantine, if that is what the reason asks for.

        One who is in quarantine until its next statement can still earn one until its next epoch.
        """
        heal = HEALED_BY.get(reason)
        held = entry.quarantine
        if heal is None or (held is not None and (held.heal is heal or held.heal.is_strict)):
            return
        entry.quarantine = Quarantine(
            reason=reason, detail=detail, since=now, epoch=entry.version.epoch
        )
        self._events.add(Quarantined(entry.name, reason, detail))

    def release(self, entry: Entry) -> Reason | None:
        """Takes a peer out of quarantine; why it was in it, None if it was not."""
        held = entry.quarantine
        if held is None:
            return None
        entry.quarantine = None
        self._events.add(Released(entry.name, held.reason))
        return held.reason
