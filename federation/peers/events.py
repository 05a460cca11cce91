"""Events of gossip as a gateway takes them: which are counted, and which an operator has to know."""

from __future__ import annotations

from collections.abc import Mapping

from gossip.events import (
    Event,
    LinkChanged,
    OwnStall,
    OwnTwin,
    PeerDown,
    PeerSuspect,
    Quarantined,
    StatementRejected,
)

COUNTED: Mapping[type[Event], str] = {
    PeerSuspect: "moonmesh_gossip_suspects_total",
    PeerDown: "moonmesh_gossip_downs_total",
    LinkChanged: "moonmesh_gossip_link_changes_total",
    StatementRejected: "moonmesh_gossip_rejected_total",
    Quarantined: "moonmesh_gossip_quarantines_total",
    OwnStall: "moonmesh_gossip_stalls_total",
}
"""Events of gossip that are counted."""


def problem(event: Event) -> str:
    """What an operator has to know of an event; "" for nothing."""
    if isinstance(event, Quarantined):
        # Without the detail, in which a peer can write what it wants: problems are few.
        return (
            f"peer {event.peer} is in quarantine ({event.reason.value}): `moonmesh status` says "
            "more; see docs/operations.md, quarantine"
        )
    if isinstance(event, OwnTwin):
        return (
            f"another process speaks for this group, in epoch {event.version.epoch}; peers do "
            "not believe this one: stop one of them"
        )
    return ""
