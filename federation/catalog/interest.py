"""Which namespaces are in use here: only those are followed at peers; sans-IO."""

from __future__ import annotations


class Interest:
    """When each namespace was last asked for.

    Args:
        seconds: after its last use a namespace stays in use for so long.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last: dict[bytes, float] = {}

    def touch(self, fingerprint: bytes, now: float) -> None:
        """It is asked for."""
        self._last[fingerprint] = now

    def lasts(self, fingerprint: bytes, now: float) -> bool:
        """Whether it is in use; forgotten if it is not."""
        last = self._last.get(fingerprint)
        if last is None:
            return False
        if now - last < self._seconds:
            return True
        del self._last[fingerprint]
        return False
