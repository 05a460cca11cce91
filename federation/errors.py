"""Errors of the federation; each has a stable code. See also `local_group.errors`."""

from __future__ import annotations

from local_group.errors import ConfigError, MoonmeshError, UsageError

__all__ = [
    "BreakerOpenError",
    "ConfigError",
    "MoonmeshError",
    "NotOfferedError",
    "PeerError",
    "TrustError",
    "UsageError",
]


class TrustError(MoonmeshError):
    """A key, a certificate or a name is not what the peering config says."""

    code = "MM301"


class PeerError(MoonmeshError):
    """A peer answered wrongly: it broke the protocol or a limit."""

    code = "MM302"


class BreakerOpenError(PeerError):
    """The peer was not asked: its breaker is open. This says nothing about it that is not known."""

    code = "MM310"


class NotOfferedError(UsageError, AttributeError):
    """A call of MooncakeDistributedStore that has no meaning across groups yet."""

    code = "MM103"
