"""What a group knows of the federation at one moment: for `status`, metrics and routing."""

from __future__ import annotations

from dataclasses import dataclass

from gossip.membership import Entry, Link, PeerState
from gossip.quarantine import Quarantine
from gossip.statement import Allowance, Health, Load
from gossip.version import Version, VersionVector


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerView:
    """What is known of one peer."""

    name: str
    state: PeerState
    in_state_for: float
    """Seconds."""
    heard_ago: float | None
    """Seconds since its newest fresh statement; None: not heard since this gateway started."""
    phi: float | None
    """Suspicion: -log10 of the chance that it is only late."""
    link: Link | None
    """None: not known, since it is not heard at all or the federation is too large for a full mesh."""
    pullable: bool
    """Whether a pull from it has a chance."""
    quarantine: Quarantine | None
    witnesses: tuple[str, ...]
    """Groups that have not heard it either since it was heard last."""
    version: Version | None
    has_ours: Version | None
    """Our newest statement that it says to have."""
    health: Health
    health_text: str
    load: Load
    limits: Allowance
    accepted: int
    stale: int
    rejected: dict[str, int]
    """What it sent and was not believed, by reason."""

    @classmethod
    def of(cls, entry: Entry, now: float, *, linked: bool, pullable: bool) -> PeerView:
        """Args:
        linked: every group greets every other, so a link can be judged.
        """
        said = entry.statement
        silence = None if entry.heard_at is None else now - entry.heard_at
        return cls(
            name=entry.name,
            state=entry.state,
            in_state_for=now - entry.since,
            heard_ago=silence,
            phi=None if silence is None else entry.arrivals.phi(silence),
            # Of one that is silent altogether its last word says nothing of the way to it.
            link=entry.link if linked and entry.state is PeerState.ALIVE else None,
            pullable=pullable,
            quarantine=entry.quarantine,
            witnesses=entry.witnesses,
            version=None if said is None else said.version,
            has_ours=entry.has_ours if entry.has_ours.epoch else None,
            health=Health.UNKNOWN if said is None else said.health,
            health_text="" if said is None else said.health_reason,
            load=Load() if said is None else said.load,
            limits=Allowance() if said is None else said.limits,
            accepted=entry.accepted,
            stale=entry.stale,
            rejected={reason.value: n for reason, n in (entry.rejected or {}).items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a group knows of the federation."""

    group: str
    federation: str
    version: Version
    """Of its own newest statement."""
    versions: VersionVector
    speaking: bool
    """False for a gateway that follows the group's leader."""
    health_score: int
    """Of `detector.LocalHealth`: 0 is well; above, this process has stalled lately."""
    stalls: int
    """Times that it stood still."""
    peers: tuple[PeerView, ...]
    events_dropped: int
