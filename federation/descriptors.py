"""As many descriptors as a gateway's engines may need: what a login gives, 1024, is less."""

from __future__ import annotations

import resource
from typing import Final

from federation.config import GroupFile
from federation.limits.attached import CONNECTIONS_PER_ENGINE

OWN: Final = 1024
"""Descriptors for all but engines: connections to peers, stores and followers, files, child processes."""


def room_for_engines(config: GroupFile) -> str:
    """Raises what this process may open, as far as it may; what is lacking still, "" for nothing."""
    endpoints = 2 if config.gateway.engines_tcp else 1
    needed = OWN + endpoints * CONNECTIONS_PER_ENGINE * config.limits.engines_max
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return ""
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if most > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most >= needed:
        return ""
    return (
        f"this process may open {most} descriptors, and {needed} are needed for engines_max "
        f"({config.limits.engines_max}): raise its hard limit (LimitNOFILE), or lower that"
    )
