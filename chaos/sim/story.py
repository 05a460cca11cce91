"""What happened in a world: all of it as a hash, the end of it as text."""

from __future__ import annotations

import hashlib
import struct
from collections import deque
from typing import Final

KEPT: Final = 4000
"""Lines that are kept; the hash covers all."""
SHOWN: Final = 30
"""Lines of a story, of those that name who is concerned."""

_HEADER = struct.Struct("<dII")


class Story:
    """The log of a world."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._lines: deque[tuple[float, str, str]] = deque(maxlen=KEPT)
        self._told = 0
        self._fetched = 0

    @property
    def digest(self) -> str:
        """Of all that has happened so far: equal for equal runs, in any process."""
        return self._hash.hexdigest()

    def message(self, now: float, sender: int, to: int, raw: bytes) -> None:
        """Bytes arrived."""
        self._hash.update(_HEADER.pack(now, sender, to) + raw)

    def tell(self, now: float, who: str, text: str) -> None:
        """Something that people may want to know happened at `who`."""
        self._hash.update(f"{now:.9f} {who} {text}\n".encode())
        self._lines.append((now, who, text))
        self._told += 1

    def fetch(self) -> list[str]:
        """The lines since the last call, oldest first, as far as they are kept."""
        new = list(self._lines)[self._fetched - self._told :] if self._told > self._fetched else []
        self._fetched = self._told
        return [_line(*line) for line in new]

    def lines(self, *about: str) -> list[str]:
        """The last lines that name one of `about` (all without), oldest first."""
        chosen = [
            line
            for line in self._lines
            if not about or line[1] in about or any(name in line[2] for name in about)
        ]
        return [_line(*line) for line in chosen[-SHOWN:]]


def _line(now: float, who: str, text: str) -> str:
    return f"{now:9.3f}  {who}: {text}"
