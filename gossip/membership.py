"""What a group knows of each peer: its last statement, and whether it is still heard."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gossip.config import GossipConfig
from gossip.version import Version, VersionVector

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from gossip.statement import Health, Reason, Signed, Statement


class PeerState(enum.Enum):
    """Whether a peer is heard."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    """Silent for `suspect_after`: nothing is routed to it, nothing of it is forgotten."""
    DOWN = "down"
    """Silent for `down_after`, or not heard since this gateway started."""


class Heard(enum.Enum):
    """What drives a peer's state: how long ago its newest statement came."""

    NOW = enum.auto()
    LATELY = enum.auto()
    SILENT = enum.auto()
    LONG_SILENT = enum.auto()

    @classmethod
    def since(cls, last: float | None, now: float, config: GossipConfig) -> Heard:
        """Classifies the time since `last` (None: never)."""
        if last is None:
            return cls.LONG_SILENT
        silence = now - last
        if silence >= config.down_after:
            return cls.LONG_SILENT
        return cls.SILENT if silence >= config.suspect_after else cls.LATELY


TRANSITIONS: Final[dict[tuple[PeerState, Heard], PeerState]] = {
    (PeerState.ALIVE, Heard.NOW): PeerState.ALIVE,
    (PeerState.ALIVE, Heard.LATELY): PeerState.ALIVE,
    (PeerState.ALIVE, Heard.SILENT): PeerState.SUSPECT,
    (PeerState.ALIVE, Heard.LONG_SILENT): PeerState.DOWN,
    (PeerState.SUSPECT, Heard.NOW): PeerState.ALIVE,
    (PeerState.SUSPECT, Heard.LATELY): PeerState.SUSPECT,
    (PeerState.SUSPECT, Heard.SILENT): PeerState.SUSPECT,
    (PeerState.SUSPECT, Heard.LONG_SILENT): PeerState.DOWN,
    (PeerState.DOWN, Heard.NOW): PeerState.ALIVE,
    (PeerState.DOWN, Heard.LATELY): PeerState.DOWN,
    (PeerState.DOWN, Heard.SILENT): PeerState.DOWN,
    (PeerState.DOWN, Heard.LONG_SILENT): PeerState.DOWN,
}
"""Every case of the peer state machine. Only a newer statement makes a peer ALIVE."""


@dataclass(frozen=True, slots=True)
class PeerUp:
    """A newer statement came from a peer that was SUSPECT or DOWN."""

    peer: str


@dataclass(frozen=True, slots=True)
class PeerSuspect:
    """A peer has been silent for `suspect_after`."""

    peer: str


@dataclass(frozen=True, slots=True)
class PeerDown:
    """A peer has been silent for `down_after`."""

    peer: str


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
class StatementRejected:
    """A hello was not believed; no entry moved."""

    peer: str
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class OwnVersionAhead:
    """A peer claims to have a later statement of this group than this group has made.

    This group has lost its epoch (its disk was replaced?): peers will refuse what it says until its
    epoch is above `version.epoch`. A claim, not a proof.
    """

    peer: str
    version: Version


Event = (
    PeerUp
    | PeerSuspect
    | PeerDown
    | PeerRestarted
    | PeerHealthChanged
    | StatementRejected
    | OwnVersionAhead
)

EVENT_OF_STATE: Final[dict[PeerState, type[PeerUp] | type[PeerSuspect] | type[PeerDown]]] = {
    PeerState.ALIVE: PeerUp,
    PeerState.SUSPECT: PeerSuspect,
    PeerState.DOWN: PeerDown,
}


@dataclass(slots=True)
class Entry:
    """The engine's own record of one peer."""

    name: str
    keys: tuple[Ed25519PublicKey, ...]
    state: PeerState = PeerState.DOWN
    since: float = 0.0
    heard_at: float | None = None
    signed: Signed | None = None
    statement: Statement | None = None
    has: VersionVector = field(default_factory=VersionVector)
    claims_of_us: Version = field(default=Version(0, 0))
    accepted: int = 0
    stale: int = 0
    rejected: dict[Reason, int] = field(default_factory=dict)

    def move(self, heard: Heard, now: float) -> Event | None:
        """Applies the transition table; the event, if the state changed."""
        new = TRANSITIONS[self.state, heard]
        if new is self.state:
            return None
        self.state, self.since = new, now
        return EVENT_OF_STATE[new](self.name)

    def state_at(self, now: float, config: GossipConfig) -> PeerState:
        """The state as of `now`, whether or not a tick has noticed yet."""
        return TRANSITIONS[self.state, Heard.since(self.heard_at, now, config)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerView:
    """What is known of one peer, for `status` and for routing."""

    name: str
    state: PeerState
    in_state_for: float
    """Seconds."""
    heard_ago: float | None
    """Seconds since its newest statement; None: not heard since this gateway started."""
    version: Version | None
    health: Health
    health_text: str
    hears_us: bool | None
    """Whether it said that it hears this group: False with ALIVE is a one-way link."""
    lag: int
    """Groups of which this group has a newer statement than the peer claims to have."""
    accepted: int
    stale: int
    rejected: dict[str, int]
    """Hellos that were not believed, by reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a group knows of the federation at one moment."""

    group: str
    federation: str
    version: Version
    versions: VersionVector
    peers: tuple[PeerView, ...]
    events_dropped: int
