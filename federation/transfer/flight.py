"""How much the pulls of lower classes may have asked of one peer and not yet got; sans-IO.

What a peer has sent stands in front of whatever is asked of it next, on whichever connection: in its
socket, in the line's queues, in ours. So what nobody waits for is asked for bit by bit, as much as keeps
the line full and about half a message more. How much that is shows in how long it takes from asking to
getting: as long as it takes no longer than it ever did, nothing queues, and more is asked for. (TCP Vegas
finds its window so.)
"""

from __future__ import annotations

from collections import deque
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
PIECE_BYTES: Final = 256 * KIB
"""The least that is asked for at a time, and all that may be under way while a first token is waited for."""
FLIGHT_BYTES_MAX: Final = 64 * MIB
"""Bytes under way at most: 1 Gbit/s over half a second, 10 Gbit/s over 50 ms."""
PIECES: Final = 4
"""Into which the whole is cut, so that several pulls can share it."""
ROUND_SAMPLES: Final = 4
"""Answers, at least, before the window is set anew: a single one may have been held up by anything."""
BASE_SECONDS: Final = 20.0
"""After so long the shortest time is found out anew: ways change, and it may have held a queue of our own."""
LEAST_SECONDS: Final = 1e-4
"""Shorter times are taken as this: of a peer on the same host."""


class Flight:
    """The window of one peer.

    Args:
        message_bytes: of one full message. The window is never less, and about half of one queues.
    """

    def __init__(self, message_bytes: int) -> None:
        self._message = message_bytes
        self._least = min(PIECE_BYTES, message_bytes)
        self._window = message_bytes
        self._bases: dict[int, deque[tuple[float, float]]] = {}
        """Of pieces of one size: since when, and the shortest time. A larger one takes longer by itself."""
        self._best = 0.0
        """The shortest time in this round, of a piece of its size, in relation to the shortest ever."""
        self._samples = self._came = 0
        self._old = 0
        """Bytes that come first and were asked for under another window: they say nothing of this one."""
        self._full = False
        self._opening = True
        self._probing = False

    def __repr__(self) -> str:
        return f"Flight({self._window} bytes)"

    def window(self, *, urgent: bool) -> int:
        """Bytes that may be under way.

        Args:
            urgent: whether a first token is waited for.
        """
        if urgent:
            return self._least
        return self.piece(urgent=False) if self._probing else self._window

    def piece(self, *, urgent: bool) -> int:
        """Bytes to ask for at a time."""
        size = self._least
        while not urgent and 2 * size <= min(self._message, self._window // PIECES):
            size *= 2
        return size

    def filled(self) -> None:
        """More would have been asked for, had there been room."""
        self._full = True

    def came(self, size: int) -> None:
        """So many bytes."""
        old = min(size, self._old)
        self._old -= old
        self._came += size - old

    def sample(self, size: int, seconds: float, now: float, *, urgent: bool) -> None:
        """A piece of `size` bytes has come whole, so long after it was asked for."""
        seconds = max(seconds, LEAST_SECONDS)
        bases = self._bases.setdefault(size, deque(maxlen=2))
        if not bases or now - bases[-1][0] >= BASE_SECONDS:
            # Of two, so that the shortest is never that of a moment alone.
            probe = bool(bases) and not urgent
            bases.append((now, seconds))
            if probe:
                self._begin_round()  # what was under way comes first
                self._probing = True
        since, shortest = bases[-1]
        bases[-1] = (since, min(shortest, seconds))
        if urgent:  # what comes now says nothing of a window that is not used
            self._begin_round()
        if urgent or self._old:
            return
        self._best = max(self._best, min(shortest for _, shortest in bases) / seconds)
        self._samples += 1
        if self._samples >= ROUND_SAMPLES and self._came >= self.window(urgent=False):
            self._turn()

    def _turn(self) -> None:
        """Sets the window by what came since the last time."""
        if not self._probing:  # else it was to see how long it takes with nothing queued
            queued = self._window * (1 - self._best)
            if queued > self._message:
                self._opening = False
                self._window -= int(queued) - self._message // 2
            elif queued < self._message / 2 and self._full:
                self._window = 2 * self._window if self._opening else self._window + self._least
            else:
                self._opening = self._opening and not self._full
            self._window = max(self._message, min(FLIGHT_BYTES_MAX, self._window))
        self._probing = False
        self._begin_round()

    def _begin_round(self) -> None:
        self._old = self.window(urgent=False)
        self._best, self._samples, self._came, self._full = 0.0, 0, 0, False
