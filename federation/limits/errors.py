"""Errors that guards decide by; each says how the peer failed (`names.Failure`)."""

from __future__ import annotations

from typing import ClassVar

from federation.errors import PeerError


class ShedError(PeerError):
    """No room now, here or at the peer; `retry_after` seconds on there may be."""

    code = "MM309"
    failure: ClassVar[str] = "shed"

    def __init__(self, what: str, *, retry_after: float, where: str = "") -> None:
        super().__init__(what, where=where)
        self.retry_after = retry_after


class LateError(PeerError):
    """The peer did not end by the deadline."""

    code = "MM310"
    failure: ClassVar[str] = "timeout"


class StallError(PeerError):
    """The peer began, and then nothing moved."""

    code = "MM311"
    failure: ClassVar[str] = "stall"


class DigestError(PeerError):
    """Bytes that are not what their digest says; nothing of them is kept."""

    code = "MM312"
    failure: ClassVar[str] = "digest"
