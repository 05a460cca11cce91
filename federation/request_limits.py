"""What fits one request to a gateway (an engine's, or a peer's), and how a chain is cut to it; sans-IO."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from federation.config import Limits
from moonmesh.v1 import engine_pb2

KEY_OVERHEAD_BYTES = 48
"""What a key costs in a request beyond its own bytes, at most: tags, lengths, size, digest, position."""
REQUEST_OVERHEAD_BYTES = 256
_DEFAULT = Limits()


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """As the gateway told them at the attachment; its defaults before that."""

    keys: int = _DEFAULT.engine_request_keys_max
    reports: int = _DEFAULT.report_batch_max
    key_bytes: int = _DEFAULT.key_bytes_max
    block_bytes: int = _DEFAULT.block_bytes_max
    message_bytes: int = _DEFAULT.control_message_bytes_max

    @classmethod
    def told(cls, message: engine_pb2.RequestLimits) -> RequestLimits:
        """From the gateway; what it leaves out has its default."""
        default = cls()
        return cls(
            message.keys or default.keys,
            message.reports or default.reports,
            message.key_bytes or default.key_bytes,
            message.block_bytes or default.block_bytes,
            message.message_bytes or default.message_bytes,
        )

    def takes(self, key: str) -> bool:
        """Whether the gateway takes a key of this length."""
        return len(key.encode()) <= self.key_bytes

    def fitting(self, keys: Sequence[str]) -> int:
        """How many of the first keys fit one message."""
        room = self.message_bytes - REQUEST_OVERHEAD_BYTES
        for count, key in enumerate(keys):
            room -= len(key.encode()) + KEY_OVERHEAD_BYTES
            if room < 0:
                return count
        return len(keys)

    def pieces(self, keys: Sequence[str]) -> Iterator[slice]:
        """A chain in slices that fit one request each; ends at a key that is too long for any."""
        start = 0
        while start < len(keys):
            size = self.fitting(keys[start : start + self.keys])
            if size == 0:
                return
            yield slice(start, start + size)
            start += size
