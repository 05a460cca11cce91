"""What happens in gossip, for those who act on it or tell people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gossip.version import Version

if TYPE_CHECKING:
    from gossip.membership import Link
    from gossip.statement import Health, Reason


@dataclass(frozen=True, slots=True)
class PeerUp:
    """A peer is heard that was not."""

    peer: str


@dataclass(frozen=True, slots=True)
class PeerSuspect:
    """A peer has been silent for longer than chance explains."""

    peer: str
    silence: float = 0.0
    """Seconds without a newer statement."""


@dataclass(frozen=True, slots=True)
class PeerDown:
    """A peer has been silent for `down_after`, and not for us alone."""

    peer: str
    silence: float = 0.0
    witnesses: tuple[str, ...] = ()
    """Groups that did not hear it either. Empty only in a federation of two."""


@dataclass(frozen=True, slots=True)
class PeerRestarted:
    """Another process speaks for the peer, in a later epoch: what it said of positions is void."""

    peer: str
    epoch: int


@dataclass(frozen=True, slots=True)
class PeerHealthChanged:
    """A peer says something else of its own health than before."""

    peer: str
    health: Health
    text: str


@dataclass(frozen=True, slots=True)
class LinkChanged:
    """The link to a peer carries statements in other directions than before."""

    peer: str
    link: Link


@dataclass(frozen=True, slots=True)
class StatementRejected:
    """Something that a peer sent was not believed; no entry moved."""

    peer: str
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A peer has contradicted itself, or what it says cannot be: nothing is pulled from it."""

    peer: str
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class Released:
    """A peer is out of quarantine."""

    peer: str
    reason: Reason
    """It was in quarantine for."""


@dataclass(frozen=True, slots=True)
class OwnStall:
    """This process stood still: the time is not held against any peer."""

    seconds: float
    score: int
    """Of `detector.LocalHealth`."""


@dataclass(frozen=True, slots=True)
class OwnVersionAhead:
    """There is a later statement of this group than this group has made: it has lost its epoch.

    Peers refuse what it says until it speaks in an epoch above `version.epoch`.
    """

    peer: str
    version: Version
    proven: bool = False
    """False: the peer says so, which proves nothing; or it is not yet sure that nobody speaks there.
    True: it is signed by our key and nobody has spoken in it for `lead_after`: take an epoch above it
    and call `lead`."""


@dataclass(frozen=True, slots=True)
class OwnTwin:
    """Another process speaks for this group, in a later epoch: this one is not believed any more."""

    peer: str
    version: Version


Event = (
    PeerUp
    | PeerSuspect
    | PeerDown
    | PeerRestarted
    | PeerHealthChanged
    | LinkChanged
    | StatementRejected
    | Quarantined
    | Released
    | OwnStall
    | OwnVersionAhead
    | OwnTwin
)
