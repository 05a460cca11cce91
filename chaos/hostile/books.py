"""What an attacker counts."""

from __future__ import annotations

import time
from collections import deque

from chaos.hostile.names import Greeting

BURST_S = 0.75


class _Window:
    """Bytes that were asked for and arrived within the last `seconds`, and the most there ever were.

    A block was read, and leased, somewhen between the two: so all of these were leased within that time.
    """

    def __init__(self, seconds: float) -> None:
        self.most = 0
        self._seconds = seconds
        self._recent: deque[tuple[float, int]] = deque()
        self._sum = 0

    def add(self, size: int, asked: float, now: float) -> None:
        if asked >= now - self._seconds:
            self._recent.append((asked, size))
            self._sum += size
        while self._recent and self._recent[0][0] < now - self._seconds:
            self._sum -= self._recent.popleft()[1]
        self.most = max(self.most, self._sum)


class Books:
    """What the attacker was given, for the report."""

    def __init__(self, window_s: float) -> None:
        self.seconds = 0.0
        """How long the attack went on."""
        self.held_polls_max = 0
        """Most questions for what is new that the target let wait at once."""
        self.calls = 0
        self.served = 0
        """Calls that ended well."""
        self.refused = 0
        self.bytes = 0
        self.window_bytes_max = 0
        """Most bytes within any `window_s`."""
        self.burst_bytes_max = 0
        """Most bytes within any `BURST_S`."""
        self.plain_hellos = self.position_hellos = self.crowded_hellos = 0
        self.stale_hellos = self.signature_hellos = 0
        """Hellos of each `Greeting` that the target has read, believed or not."""
        self._window = _Window(window_s)
        self._burst = _Window(BURST_S)

    def read(self, kind: Greeting) -> None:
        """The target has read a hello."""
        setattr(self, kind.value, getattr(self, kind.value) + 1)

    def got(self, size: int, asked: float) -> None:
        """Bytes of blocks arrived; `asked`: when the call for them began (monotonic seconds)."""
        now = time.monotonic()
        self.bytes += size
        self._window.add(size, asked, now)
        self._burst.add(size, now, now)
        self.window_bytes_max = self._window.most
        self.burst_bytes_max = self._burst.most
