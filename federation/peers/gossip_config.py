"""The intervals and limits of gossip, as a group's configuration has them."""

from __future__ import annotations

from federation.config import Limits
from gossip.config import GossipConfig

SUSPECT_HELLOS = 4
"""Hello intervals without a word from a peer until nothing is routed to it."""
DOWN_HELLOS = 15
"""... and until it is called DOWN."""


def gossip_config(limits: Limits) -> GossipConfig:
    """The same for the gateway and its serving process."""
    interval = limits.hello_interval_ms / 1000
    return GossipConfig(
        hello_interval=interval,
        hello_min_gap=min(0.1, interval),
        suspect_after=SUSPECT_HELLOS * interval,
        down_after=DOWN_HELLOS * interval,
    )
