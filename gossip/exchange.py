"""What hellos say beyond their sender's statement: of others, of silent groups, and of our own past."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from gossip.book import Book, EventLog
from gossip.config import GossipConfig
from gossip.hello import check_vector
from gossip.mail import Mail
from gossip.membership import NO_VERSION, Entry, PeerState
from gossip.own import OwnPast
from gossip.probes import Probes
from gossip.rumours import Rumours
from gossip.statement import (
    Reason,
    Signed,
    StatementError,
    Verifier,
    check_size,
    verify,
)
from gossip.version import Version
from gossip.watch import Watch
from moonmesh.v1 import peer_pb2

PROOFS = (Reason.EQUIVOCATION, Reason.TWO_SPEAKERS)
"""Reasons that hold only if the origin has signed: it is the origin's doing, whoever brings it."""
SYNC_GAP = 0.5
"""Hello intervals between two answers to a peer's whole vector, at least."""


class Exchange:
    """Takes the rest of hellos; what has to be answered goes into the mail.

    Args:
        own_key: of this group, for statements of ours that others have.
        watch: decides who is DOWN.
    """

    def __init__(
        self,
        book: Book,
        mail: Mail,
        events: EventLog,
        own_key: Verifier,
        config: GossipConfig,
        watch: Watch,
    ) -> None:
        self._book = book
        self._entries = book.entries
        self._mail = mail
        self._events = events
        self._own_key = own_key
        self._config = config
        self._watch = watch
        self.probes = Probes(config.probe_timeout * book.pace, config)
        self.rumours = Rumours(len(book.entries) + 1, config)
        self.own = OwnPast(config.lead_after * config.hello_interval)
        self.boot_nonce = b""  # of our term; none while another gateway may speak for this group

    def start_term(self, boot_nonce: bytes) -> None:
        """We speak in a new epoch, above all that was proven to be ours."""
        self.own = OwnPast(self._config.lead_after * self._config.hello_interval)
        self.boot_nonce = boot_nonce

    def end_term(self) -> None:
        """Statements of this group that we have not made are no surprise from now on."""
        self.start_term(b"")

    def tick(self, now: float) -> None:
        """Answers questions whose time is over."""
        for asker, group, version in self.probes.over(now):
            self._mail.to(asker).silent[group] = version

    def pass_on(self, entry: Entry) -> None:
        """There is news of a peer: for those who asked for it, and for everybody if we are too many."""
        if not self._book.full:
            self.rumours.add(entry.name)
        if entry.name in self.probes.open:
            for asker in self.probes.heard(entry.name, entry.version):
                self._mail.to(asker).relayed[entry.name] = False

    def hear(
        self, entry: Entry, hello: peer_pb2.HelloRequest, now: float, *, believed: bool
    ) -> None:
        """Takes all of a hello but its sender's statement.

        Args:
            believed: its statement was. What it relays proves itself; its own word counts only then.
        """
        epoch = hello.have_epoch
        if epoch and (epoch, hello.have_seq) != entry.has_ours:
            has = entry.has_ours = Version(epoch, hello.have_seq)
            self._claim(entry, has)
        if hello.HasField("yours"):
            self._take_all(entry, [hello.yours], now)
        relayed = hello.relayed
        if relayed:
            # More than one hello may carry is for a later one to say again.
            self._take_all(entry, islice(relayed, self._config.relay_per_hello), now)
        if not believed or entry.quarantine is not None:
            return
        if hello.versions or hello.want_versions:
            self._compare(entry, hello, now)
        limit = self._config.probes_per_hello
        probes, silent = hello.probes, hello.silent
        if probes:
            for probe in islice(probes, limit):
                self._take_probe(entry, probe, now)
        if silent:
            for probe in islice(silent, limit):
                self._take_silent(entry, probe, now)

    def told(self, entry: Entry, message: peer_pb2.SignedStatement, now: float) -> None:
        """A statement of ours that a peer has, and why it did not believe a hello.

        Only of a later epoch than ours. Of the same one it is for those of us to act that are greeted, as
        peering.toml says: two that find it out together would raise their epochs alike, for ever.
        """
        try:
            check_size(message.body, self._config)
            later = Signed.read(message).said().version.epoch > self._ours.epoch
        except StatementError:
            later = True  # refused below, and counted
        if later:
            self._take_all(entry, [message], now)

    # Statements that others have

    def _take_all(
        self, relayer: Entry, messages: Iterable[peer_pb2.SignedStatement], now: float
    ) -> None:
        bad = 0
        for message in messages:
            if self._book.knows(message.body):
                continue
            try:
                self._take(relayer, Signed.read(message), now)
            except StatementError as error:
                # Not held against the relayer's own statements: a key may be changing. And who brings
                # a proof against another has done nothing wrong.
                if error.reason not in PROOFS:
                    self._book.count(relayer.name, error.reason, error.detail)
                bad += 1
                if bad == self._config.max_bad_relayed:
                    return

    def _take(self, relayer: Entry, signed: Signed, now: float) -> None:
        """One statement that `relayer` had of somebody.

        Raises:
            StatementError: it is not believed.
        """
        check_size(signed.body, self._config)
        group = signed.said().group
        if group == self._book.group:
            self._take_own(relayer, signed, now)
            return
        origin = self._entries.get(group)
        if origin is None:
            return  # the relayer has a newer peering.toml
        if origin is relayer:
            return  # it says that itself
        if self._book.take_relayed(origin, signed, now):
            self.pass_on(origin)

    def _take_own(self, relayer: Entry, signed: Signed, now: float) -> None:
        if not self.boot_nonce:
            return
        ours = self._ours
        said = signed.said()
        contested = said.version.epoch == ours.epoch and said.boot_nonce != self.boot_nonce
        if said.version <= ours and not contested:
            return  # our past
        statement = verify(
            signed,
            group=self._book.group,
            federation=self._book.federation,
            keys=[self._own_key],
            config=self._config,
        )
        self._events.add(self.own.claim(relayer.name, statement.version))
        twin = self.own.prove(relayer.name, statement.version, now, contested=contested)
        self._events.add(twin)

    @property
    def _ours(self) -> Version:
        """Of our newest statement."""
        return self._book.versions.get(self._book.group, NO_VERSION)

    def _claim(self, entry: Entry, version: Version) -> None:
        if self.boot_nonce and version > self._ours:
            self._events.add(self.own.claim(entry.name, version))

    # Whole vectors

    def _compare(self, entry: Entry, hello: peer_pb2.HelloRequest, now: float) -> None:
        """Sends what the sender lacks, and asks for what we lack if it has not asked us already."""
        try:
            check_vector(hello, self._config)
        except StatementError as error:
            self._book.disbelieve(entry.name, error.reason, error.detail, now)
            return
        if now - entry.synced_at < SYNC_GAP * self._config.hello_interval:
            return
        entry.synced_at = now
        theirs = {item.group: (item.epoch, item.seq) for item in hello.versions}
        marks = {item.group: item.mark for item in hello.versions if item.mark}
        own = theirs.get(self._book.group)
        if own is not None:
            self._claim(entry, Version(*own))
        draft = None
        lacking = False
        for name, other in self._entries.items():
            if other is entry:
                continue
            version = theirs.get(name, (0, 0))
            if other.version > version:
                draft = draft or self._mail.to(entry.name)
                draft.relayed.setdefault(name, False)
            elif other.version < version:
                lacking = True
            elif (
                other.signed is not None and marks.get(name, other.signed.mark) != other.signed.mark
            ):
                # It says two things at once: in a full mesh each group hears one of them alone.
                draft = draft or self._mail.to(entry.name)
                draft.relayed[name] = True
                lacking = True  # and we have theirs to see
        if lacking and hello.want_versions:
            (draft or self._mail.to(entry.name)).versions = True

    # Silent groups

    def _take_probe(self, asker: Entry, probe: peer_pb2.Probe, now: float) -> None:
        target = self._entries.get(probe.group)
        if target is None or target is asker:
            return
        version = Version(probe.epoch, probe.seq)
        if target.version > version:
            self._mail.to(asker.name).relayed[target.name] = False
        elif self.probes.ask(asker.name, target.name, version, now):
            self._mail.to(target.name)  # if it lives, its answer or its next hello says so

    def _take_silent(self, witness: Entry, probe: peer_pb2.Probe, now: float) -> None:
        target = self._entries.get(probe.group)
        if target is None or target is witness or target.state is not PeerState.SUSPECT:
            return
        # It must not have heard less than we: then its silence says nothing about what came since.
        if (probe.epoch, probe.seq) != target.version or witness.name in target.witnesses:
            return
        if len(target.witnesses) < self._config.probe_peers:
            target.witnesses = (*target.witnesses, witness.name)
        self._watch.give_up(target, now)
