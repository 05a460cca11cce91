"""When a peer last gave a sign of life, and when it last was of use; sans-IO."""

from __future__ import annotations


class Pulse:
    """The one place where a peer's progress is kept: it says what a passed deadline proves.

    A caller's deadline says how much time the caller had, and nothing of the peer. It is held against
    the peer in two cases only. It is **silent**: not one byte of any answer, on any call of ours, for
    `silence_s` of the time that the call was open. Or it is **fruitless**: it is asked for blocks, and
    for `fruitless_s` not one came, nor the word that it is not there; that is how one is found that
    answers hellos, or sends a byte now and then, and never a block.

    Args:
        silence_s: seconds without a byte. A pull is given this long, whatever its caller's deadline.
        fruitless_s: seconds without a block.
    """

    def __init__(self, silence_s: float, fruitless_s: float) -> None:
        self._silence_s = silence_s
        self._fruitless_s = fruitless_s
        self._heard_at = float("-inf")
        self._asked_at: float | None = None
        """Of the first pull since it was last of use; None without one."""

    def __repr__(self) -> str:
        return f"Pulse(heard at {self._heard_at:.3f}, asked since {self._asked_at})"

    def asked(self, now: float) -> None:
        """A pull begins."""
        if self._asked_at is None:
            self._asked_at = now

    def heard(self, now: float) -> None:
        """Some byte of an answer came, on whatever call."""
        self._heard_at = max(self._heard_at, now)

    def useful(self, now: float) -> None:
        """A block came, or the word that it is not there."""
        self.heard(now)
        self._asked_at = now

    def to_blame(self, began: float, now: float) -> bool:
        """Whether a deadline that passed at `now`, for a call since `began`, is the peer's doing."""
        if now - max(began, self._heard_at) >= self._silence_s:
            return True
        return self._asked_at is not None and now - self._asked_at >= self._fruitless_s
