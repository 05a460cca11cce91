"""What a group says of its own health and load to all others."""

from __future__ import annotations

from federation.limits_config import Limits
from federation.peers.processes import ServingProcesses
from gossip.engine import GossipEngine
from gossip.statement import Allowance, Health, Load
from local_group.breaker import BreakerState
from local_group.store import StoreClient


def tell_how_we_are(
    gossip: GossipEngine, serving: ServingProcesses, store: StoreClient, load: Load, limits: Limits
) -> None:
    """Puts it into the next statement.

    A breaker that is half open is well: whoever asks next is its probe, and where all were told to stay away
    nobody would ask.
    """
    reason = ""
    if store.stats().breaker == BreakerState.OPEN.value:
        reason = "its local Mooncake does not answer"
    elif not serving.serves:
        reason = "its serving process is being started"
    elif not serving.well:
        reason = "its local Mooncake does not answer"
    gossip.set_health(Health.DEGRADED if reason else Health.OK, reason)
    gossip.set_load(load, Allowance(limits.peer_bytes_per_s, limits.serves_per_peer))
