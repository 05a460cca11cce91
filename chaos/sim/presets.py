"""Presets of `GossipConfig` by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gossip.config import GossipConfig

PRESETS: Final[dict[str, Callable[[], GossipConfig]]] = {
    "wan": GossipConfig.wan,
    "lan": GossipConfig.lan,
    "test": GossipConfig.test,
}


def preset(name: str) -> GossipConfig:
    """The preset.

    Raises:
        ValueError: if there is none of that name.
    """
    if name not in PRESETS:
        raise ValueError(f"there is no preset {name!r}: {', '.join(PRESETS)}")
    return PRESETS[name]()
