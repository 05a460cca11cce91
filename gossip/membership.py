"""What a group knows of each peer: its last statement, whether it is heard, and in which directions."""

from __future__ import annotations

import enum
from typing import Final

from gossip.detector import Arrivals, Silence
from gossip.events import Event, PeerDown, PeerSuspect, PeerUp
from gossip.quarantine import Quarantine
from gossip.statement import Reason, Signed, Statement, Verifier
from gossip.version import Version

NO_VERSION: Final = Version(0, 0)
"""Before the first statement of every group."""


class ProtocolError(Exception):
    """The engine has a defect: something happened that cannot."""


class PeerState(enum.Enum):
    """Whether a peer is heard."""

    UNHEARD = "unheard"
    """Not since this gateway started."""
    ALIVE = "alive"
    SUSPECT = "suspect"
    """Silent for longer than chance explains: nothing is routed to it, nothing of it is forgotten."""
    DOWN = "down"
    """Silent for `down_after`, and not for us alone."""


class Input(enum.Enum):
    """What drives a peer's state."""

    HEARD = enum.auto()
    """A newer statement came, and it is fresh: from the peer itself, or it goes on from another."""
    TOLD = enum.auto()
    """A newer statement came from somebody's memory: it may be as old as that."""
    SILENT = enum.auto()
    """For longer than chance explains."""
    GONE = enum.auto()
    """Silent for `down_after`, and another group does not hear it either."""


TRANSITIONS: Final[dict[tuple[PeerState, Input], PeerState]] = {
    (PeerState.UNHEARD, Input.HEARD): PeerState.ALIVE,
    (PeerState.UNHEARD, Input.TOLD): PeerState.UNHEARD,
    (PeerState.ALIVE, Input.HEARD): PeerState.ALIVE,
    (PeerState.ALIVE, Input.SILENT): PeerState.SUSPECT,
    (PeerState.SUSPECT, Input.HEARD): PeerState.ALIVE,
    (PeerState.SUSPECT, Input.TOLD): PeerState.SUSPECT,
    (PeerState.SUSPECT, Input.GONE): PeerState.DOWN,
    (PeerState.DOWN, Input.HEARD): PeerState.ALIVE,
    (PeerState.DOWN, Input.TOLD): PeerState.DOWN,
}
"""Every case of the peer state machine; any other is a defect. Only fresh news makes a peer ALIVE, and
nobody is DOWN who was not SUSPECT."""


def transition(state: PeerState, happened: Input) -> PeerState:
    """The next state.

    Raises:
        ProtocolError: that cannot happen in this state.
    """
    try:
        return TRANSITIONS[state, happened]
    except KeyError:
        raise ProtocolError(f"{happened.name} in state {state.name}") from None


class Link(enum.Enum):
    """In which directions statements pass between a peer and us, without others' help."""

    BOTH = "both"
    WE_DO_NOT_HEAR = "we_do_not_hear"
    NOT_HEARD = "not_heard"
    """It says that it does not hear us."""
    NEITHER = "neither"


LINKS: Final[dict[tuple[bool, bool], Link]] = {
    (True, True): Link.BOTH,
    (False, True): Link.WE_DO_NOT_HEAR,
    (True, False): Link.NOT_HEARD,
    (False, False): Link.NEITHER,
}
"""By whether we hear it, and whether it hears us."""


class Entry:
    """The engine's own record of one peer. Times are monotonic seconds."""

    __slots__ = (
        "accepted", "arrivals", "asked", "cut_at", "direct_at", "due", "has_ours", "heard_at", "hearing",
        "keys", "link", "moved_at", "name", "probe_at", "quarantine", "rejected", "sent_at",
        "signed", "since", "stale", "state", "statement", "synced_at", "version", "witnesses",
    )  # fmt: skip

    def __init__(
        self, name: str, keys: tuple[Verifier, ...], silence: Silence, now: float, due: float
    ) -> None:
        never = float("-inf")
        self.name = name
        self.keys = keys
        self.state = PeerState.UNHEARD
        self.since = now
        """In this state."""
        # What it said last
        self.signed: Signed | None = None
        self.statement: Statement | None = None
        self.version = NO_VERSION
        self.moved_at = never
        """When a newer statement came, fresh or not."""
        self.heard_at: float | None = None
        """When a fresh one came."""
        self.arrivals = Arrivals(silence)
        # The link
        self.direct_at = now
        """When its newest statement came from itself; at first, when we began to listen."""
        self.hearing = True
        self.link = Link.BOTH
        self.cut_at = never
        """When it was last whole, while it is not: one direction after the other may be cut."""
        self.asked = False
        """Once more, since `direct_at`."""
        self.probe_at = never
        """When others are asked about it next."""
        self.witnesses: tuple[str, ...] = ()
        """Groups that did not hear it either, since it was heard last."""
        self.due = due
        """Nothing of all this has to be looked at before."""
        # What it has of us
        self.has_ours = NO_VERSION
        self.sent_at = never
        self.synced_at = never
        """When it was last sent what its vector lacks."""
        # Trust
        self.quarantine: Quarantine | None = None
        self.accepted = 0
        self.stale = 0
        self.rejected: dict[Reason, int] | None = None

    def move(self, happened: Input, now: float) -> Event | None:
        """Applies the transition table; the event, if the state changed.

        Raises:
            ProtocolError: a defect.
        """
        new = transition(self.state, happened)
        if new is self.state:
            return None
        self.state, self.since = new, now
        silence = 0.0 if self.heard_at is None else now - self.heard_at
        if new is PeerState.SUSPECT:
            return PeerSuspect(self.name, silence)
        if new is PeerState.DOWN:
            return PeerDown(self.name, silence, self.witnesses)
        return PeerUp(self.name)

    def missed(self, seconds: float, now: float) -> None:
        """We stood still for so long: that is not its silence."""
        if self.heard_at is not None:
            self.heard_at = min(now, self.heard_at + seconds)
        self.direct_at = min(now, self.direct_at + seconds)
        self.due += seconds
