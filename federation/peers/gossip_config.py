"""The intervals and limits of gossip, as a group's configuration has them."""

from __future__ import annotations

from federation.config import Limits
from gossip.config import GossipConfig

HELLO_BYTES_MAX = GossipConfig().max_hello_bytes
"""A longer one is not parsed."""
POSITIONS_MAX = GossipConfig().positions_per_hello
"""Namespaces of one hello, or of the answer to one, that are looked at."""


def gossip_config(limits: Limits) -> GossipConfig:
    """The same for the gateway and its serving process."""
    return GossipConfig.of_interval(limits.hello_interval_ms / 1000)
