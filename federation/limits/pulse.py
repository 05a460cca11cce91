"""When a peer last gave a sign of life, and when it last was of use; sans-IO."""

from __future__ import annotations


class Pulse:
    """The one place where a peer's progress is kept: it says what a passed deadline proves.

    A caller's deadline says how much time the caller had, and nothing of the peer. It is held against
    the peer in two cases only. It is **silent**: not one byte of any answer, on any call of ours, for
    `silence_s` of the time that the call was open. Or it is **fruitless**: for `fruitless_s` of the time
    in which pulls were open not one block came, nor the word that it is not there; that is how one is
    found that answers hellos, or sends a byte now and then, and never a block. Time in which nothing is
    asked of it counts for neither.

    Args:
        silence_s: seconds without a byte. A pull is given this long, whatever its caller's deadline.
        fruitless_s: seconds of open pulls without a block.
    """

    def __init__(self, silence_s: float, fruitless_s: float) -> None:
        self._silence_s = silence_s
        self._fruitless_s = fruitless_s
        self._heard_at = float("-inf")
        self._open = 0
        """Pulls."""
        self._from = 0.0
        """What `_fruitless` does not have yet began here; of no meaning without an open pull."""
        self._fruitless = 0.0
        """Seconds with an open pull since it was last of use, up to `_from`."""

    def __repr__(self) -> str:
        return (
            f"Pulse(heard at {self._heard_at:.3f}, {self._open} open, "
            f"{self._fruitless:.3f} s without use)"
        )

    def asked(self, now: float) -> None:
        """A pull begins; its end is told by `ended`."""
        if self._open == 0:
            self._from = now
        self._open += 1

    def ended(self, now: float) -> None:
        """A pull ends, whatever came of it."""
        if self._open == 0:
            return
        self._fruitless = self._fruitless_at(now)
        self._from = now
        self._open -= 1

    def heard(self, now: float) -> None:
        """Some byte of an answer came, on whatever call."""
        self._heard_at = max(self._heard_at, now)

    def useful(self, now: float) -> None:
        """A block came, or the word that it is not there."""
        self.heard(now)
        self._fruitless = 0.0
        self._from = now

    def to_blame(self, began: float, now: float) -> bool:
        """Whether a deadline that passed at `now`, for a call since `began`, is the peer's doing."""
        if now - max(began, self._heard_at) >= self._silence_s:
            return True
        return self._fruitless_at(now) >= self._fruitless_s

    def _fruitless_at(self, now: float) -> float:
        return self._fruitless + (max(0.0, now - self._from) if self._open else 0.0)
