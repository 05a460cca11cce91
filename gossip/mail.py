"""What waits to be said to each peer, and the hellos that say it."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import NamedTuple

from gossip.config import GossipConfig
from gossip.membership import Entry
from gossip.statement import Signed
from gossip.version import Version
from moonmesh.v1 import peer_pb2


class Outgoing(NamedTuple):
    """A hello to send; the shell adds the holdings positions that this peer may know."""

    peer: str
    hello: peer_pb2.HelloRequest


class Draft:
    """What a hello to one peer has to say beyond our statement. Sets, so it is never more than all groups."""

    __slots__ = ("in_round", "probes", "relayed", "silent", "versions", "want", "yours")

    def __init__(self) -> None:
        self.in_round = False
        """What goes to everybody in this round goes to this peer too."""
        self.versions = False
        self.want = False
        self.yours = False
        self.relayed: dict[str, bool] = {}
        """Whose statements, and whether one is a proof: that goes out even if nobody believes its group."""
        self.probes: dict[str, None] = {}
        self.silent: dict[str, Version] = {}


class Mail:
    """One draft a peer at most; what is not fetched grows no further than that.

    Args:
        entries: all peers.
        versions: of everybody, this group included.
    """

    def __init__(
        self, entries: Mapping[str, Entry], versions: Mapping[str, Version], config: GossipConfig
    ) -> None:
        self._entries = entries
        self._versions = versions
        self._config = config
        self._gap = config.hello_min_gap
        self._drafts: dict[str, Draft | None] = {}  # None: what goes to everybody, and no more
        self._base = peer_pb2.HelloRequest()
        self._round = self._base
        self._kept = False
        """Something waits for a peer that was busy: `next_at` says nothing of it."""
        self.next_at = float("inf")
        """When there is a hello to send: not earlier than `hello_min_gap` after the last to its peer."""

    def __len__(self) -> int:
        return len(self._drafts)

    def say(self, signed: Signed) -> peer_pb2.SignedStatement:
        """From now on every hello has this statement of ours; as it is on the wire."""
        base = peer_pb2.HelloRequest()
        signed.write(base.statement)
        self._base = self._round = base
        return base.statement

    def start_round(self, relayed: list[Entry]) -> None:
        """From now on the hellos of the round carry these as well."""
        self._round = self._base
        if relayed:
            self._round = peer_pb2.HelloRequest()
            self._round.CopyFrom(self._base)
            _relay(self._round, relayed)

    def greet_in_round(self, peer: str) -> None:
        """A hello of the round."""
        draft = self._drafts.get(peer)
        if draft is None:
            self._drafts[peer] = None
        else:
            draft.in_round = True
        ready = self._entries[peer].sent_at + self._gap
        if ready < self.next_at:
            self.next_at = ready

    def to(self, peer: str) -> Draft:
        """What the next hello to a peer says; there will be one."""
        draft = self._drafts.get(peer)
        if draft is None:
            draft = Draft()
            draft.in_round = peer in self._drafts
            self._drafts[peer] = draft
            ready = self._entries[peer].sent_at + self._gap
            if ready < self.next_at:
                self.next_at = ready
        return draft

    def clear(self) -> None:
        """Nothing is to be said."""
        self._drafts.clear()
        self.next_at = float("inf")

    def take(self, now: float, busy: Container[str]) -> list[Outgoing]:
        """The hellos that may go now.

        Args:
            busy: peers that cannot be told anything now; what they are to be told waits.
        """
        out: list[Outgoing] = []
        if not self._drafts or (now < self.next_at and not self._kept):
            return out
        later: dict[str, Draft | None] = {}
        next_at = float("inf")
        self._kept = False
        gap, entries = self._gap, self._entries
        for peer, draft in self._drafts.items():
            if peer in busy:
                self._kept = True
                later[peer] = draft
                continue
            entry = entries[peer]
            ready = entry.sent_at + gap
            if ready > now:
                later[peer] = draft
                if ready < next_at:
                    next_at = ready
                continue
            entry.sent_at = now
            hello = peer_pb2.HelloRequest()
            hello.CopyFrom(self._round if draft is None or draft.in_round else self._base)
            epoch, seq = entry.version
            if epoch:
                hello.have_epoch, hello.have_seq = epoch, seq
            if draft is not None and self._fill(hello, draft, entry):
                later[peer] = draft
                if now + gap < next_at:
                    next_at = now + gap
            out.append(Outgoing(peer, hello))
        self._drafts, self.next_at = later, next_at
        return out

    def _fill(self, hello: peer_pb2.HelloRequest, draft: Draft, entry: Entry) -> bool:
        """Writes a draft; True if some of it did not fit."""
        config, entries = self._config, self._entries
        draft.in_round = False
        if draft.yours:
            draft.yours = False
            if entry.signed is not None:
                entry.signed.write(hello.yours)
        if draft.versions or draft.want:
            hello.want_versions = draft.want
            draft.versions = draft.want = False
            for group, (epoch, seq) in self._versions.items():
                other = entries.get(group)
                mark = 0 if other is None or other.signed is None else other.signed.mark
                hello.versions.add(group=group, epoch=epoch, seq=seq, mark=mark)
        if draft.probes:
            for group in list(draft.probes)[: config.probes_per_hello]:
                del draft.probes[group]
                epoch, seq = entries[group].version
                hello.probes.add(group=group, epoch=epoch, seq=seq)
        if draft.silent:
            for group in list(draft.silent)[: config.probes_per_hello]:
                epoch, seq = draft.silent.pop(group)
                hello.silent.add(group=group, epoch=epoch, seq=seq)
        if not draft.relayed:
            return bool(draft.probes or draft.silent)
        relayed: list[Entry] = []
        size = 0
        for group in list(draft.relayed):
            other = entries[group]
            proof = draft.relayed[group]
            if other.signed is None or (other.quarantine is not None and not proof):
                del draft.relayed[group]
                continue
            size += len(other.signed.body)
            full = len(relayed) == config.relay_per_hello - len(hello.relayed)
            if full or (size > config.relay_bytes_per_hello and relayed):
                break
            del draft.relayed[group]
            relayed.append(other)
        _relay(hello, relayed)
        return bool(draft.relayed or draft.probes or draft.silent)


def _relay(hello: peer_pb2.HelloRequest, entries: list[Entry]) -> None:
    for entry in entries:
        if entry.signed is not None:
            entry.signed.write(hello.relayed.add())
