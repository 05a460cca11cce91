"""Errors of the federation; each has a stable code. See also `local_group.errors`."""

from __future__ import annotations

from typing import ClassVar

from local_group.errors import ConfigError, MoonmeshError, UsageError

__all__ = ["ConfigError", "MoonmeshError", "PeerError", "TrustError", "UsageError"]


class TrustError(MoonmeshError):
    """A key, a certificate or a name is not what the peering config says."""

    code = "MM301"


class PeerError(MoonmeshError):
    """A peer answered wrongly: it broke the protocol or a limit.

    Attributes:
        failure: how, as a guard counts it: a value of `federation.limits.names.Failure`.
    """

    code = "MM302"
    failure: ClassVar[str] = "error"
