"""Namespaces as two groups tell them each other, and why nothing crosses where they differ; sans-IO.

Blocks are shared by fingerprint, and a fingerprint says nothing of what it was made of. So that a person can
see in which field two groups differ, each tells the other the envelopes of what it shares with it, no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from federation.config import NAMESPACES_MAX, GroupFile
from federation.errors import PeerError
from federation.identity import Envelope, Fingerprint
from federation.peers.callers import Caller
from moonmesh.v1 import peer_pb2

NAME_CHARS_MAX = 64
"""Of a namespace's name, as group.toml has it."""
ENVELOPE_BYTES_MAX = 16_384
"""Of an envelope as JSON: nine texts of 256 characters, each of which may take six bytes, and the rest."""


@dataclass(frozen=True, slots=True)
class Told:
    """A namespace, as one group has it towards another."""

    name: str
    envelope: Envelope
    exported: bool
    """Its blocks may go to the other."""
    imported: bool
    """They are taken from the other."""
    unattested: bool

    @property
    def fingerprint(self) -> Fingerprint:
        """Of the envelope."""
        return self.envelope.fingerprint()


def shared_with(
    group: GroupFile, exported: Iterable[bytes], imported: Iterable[bytes]
) -> list[Told]:
    """The namespaces of a group of which anything is to cross, either way."""
    out, into = frozenset(exported), frozenset(imported)
    return [
        Told(
            name,
            Envelope(**namespace.fields()),
            fingerprint in out,
            fingerprint in into,
            namespace.unattested,
        )
        for name, namespace in group.namespaces.items()
        if (fingerprint := namespace.fingerprint()) in out | into
    ]


def told_to(caller: Caller, group: GroupFile) -> peer_pb2.NamespacesReply:
    """What a peer is told."""
    reply = peer_pb2.NamespacesReply()
    for told in shared_with(group, caller.exported, caller.imported):
        reply.namespaces.add(
            name=told.name,
            fingerprint=told.fingerprint,
            envelope_json=told.envelope.canonical(),
            exported=told.exported,
            imported=told.imported,
            unattested=told.unattested,
        )
    return reply


def read_told(reply: peer_pb2.NamespacesReply, peer: str) -> list[Told]:
    """What a peer has told, checked: each fingerprint is that of the envelope told with it.

    Raises:
        PeerError: it cannot be.
    """
    if len(reply.namespaces) > NAMESPACES_MAX:
        raise PeerError(f"{len(reply.namespaces)} namespaces: more than there can be", where=peer)
    return [_read(message, peer) for message in reply.namespaces]


def _read(message: peer_pb2.ToldNamespace, peer: str) -> Told:
    name = message.name
    if not 0 < len(name) <= NAME_CHARS_MAX or not name.isprintable():
        raise PeerError("a namespace whose name is none", where=peer)
    if len(message.envelope_json.encode()) > ENVELOPE_BYTES_MAX:
        raise PeerError(f'the envelope of "{name}" is too long', where=peer)
    try:
        envelope = Envelope.model_validate_json(message.envelope_json)
    except (ValidationError, RecursionError) as error:
        raise PeerError(
            f'the envelope of "{name}" cannot be read: it may be of another release', where=peer
        ) from error
    if envelope.fingerprint() != message.fingerprint:
        raise PeerError(f'the envelope of "{name}" is not that of its fingerprint', where=peer)
    return Told(name, envelope, message.exported, message.imported, message.unattested)


@dataclass(frozen=True, slots=True)
class Difference:
    """A field in which two envelopes are not the same."""

    field: str
    ours: str | int
    theirs: str | int


def differences(ours: Envelope, theirs: Envelope) -> list[Difference]:
    """The fields in which two envelopes differ, in the order of an envelope."""
    other = theirs.fields()
    return [
        Difference(name, value, other[name])
        for name, value in ours.fields().items()
        if value != other[name]
    ]


@dataclass(frozen=True, slots=True)
class Match:
    """One of our namespaces, beside what the peer has for it."""

    ours: Told
    theirs: Told | None
    """The same one, or else that which is most like it."""
    differs: tuple[Difference, ...]

    @property
    def same(self) -> bool:
        """Whether the two are one namespace."""
        return self.theirs is not None and not self.differs

    @property
    def goes(self) -> bool:
        """Whether blocks go to the peer."""
        return self.same and self.ours.exported and self.theirs is not None and self.theirs.imported

    @property
    def comes(self) -> bool:
        """Whether blocks come from the peer."""
        return self.same and self.ours.imported and self.theirs is not None and self.theirs.exported

    def why(self, peer: str) -> str:
        """What does not cross, and why; "" if all that this group wants to does."""
        theirs = self.theirs
        if theirs is None:
            return f"{peer} shares no such namespace with this group"
        if self.differs:
            told = ", ".join(
                f"{d.field}: {d.ours!r} here, {d.theirs!r} there" for d in self.differs
            )
            return f'not one namespace ({peer} calls the nearest "{theirs.name}"): {told}'
        said = []
        if self.ours.exported and not theirs.imported:
            said.append(f"{peer} does not import it from here")
        if self.ours.imported and not theirs.exported:
            said.append(f"{peer} does not export it to here")
        if self.ours.unattested != theirs.unattested:
            side = peer if self.ours.unattested else "this group"
            said.append(f"attested blocks alone: {side} has not unattested = true")
        return "; ".join(said)


def match(ours: Iterable[Told], theirs: Iterable[Told]) -> list[Match]:
    """Puts beside each of ours what the peer has: the same, or what is most like it and no other's same."""
    mine = list(ours)
    own = {told.fingerprint for told in mine}
    same: dict[bytes, Told] = {}
    others: list[Told] = []
    for told in theirs:
        if told.fingerprint in own:
            same.setdefault(told.fingerprint, told)
        else:
            others.append(told)
    return [_matched(told, same.get(told.fingerprint), others) for told in mine]


def _matched(ours: Told, same: Told | None, others: Iterable[Told]) -> Match:
    if same is not None:
        return Match(ours, same, ())
    near = [(told, differences(ours.envelope, told.envelope)) for told in others]
    near = [(told, d) for told, d in near if told.name == ours.name or _alike(d)]
    if not near:
        return Match(ours, None, ())
    told, found = min(near, key=lambda each: (each[0].name != ours.name, len(each[1])))
    return Match(ours, told, tuple(found))


def _alike(found: Iterable[Difference]) -> bool:
    """Whether these may be two ideas of one namespace: the model, at least, is the same."""
    return all(d.field != "model" for d in found)


def as_json(matches: Iterable[Match], peer: str) -> list[dict[str, Any]]:
    """For `moonmesh namespaces`."""
    return [
        {
            "namespace": m.ours.name,
            "out": m.goes,
            "in": m.comes,
            "same": m.same,
            "ours": _told_json(m.ours),
            "theirs": None if m.theirs is None else _told_json(m.theirs),
            "differs": {d.field: {"ours": d.ours, "theirs": d.theirs} for d in m.differs},
            "why": m.why(peer),
        }
        for m in matches
    ]


def _told_json(told: Told) -> Mapping[str, Any]:
    return {
        "name": told.name,
        "fingerprint": str(told.fingerprint),
        "exported": told.exported,
        "imported": told.imported,
        "unattested": told.unattested,
        "envelope": told.envelope.fields(),
    }
