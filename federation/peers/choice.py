"""Which gateway of a peer is asked, of the several that it may have; sans-IO.

One of them speaks for its group (it leads); only that one has a catalog. The others serve pulls all the
same. Who it is changes, and is learned from their answers alone.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Word(str, enum.Enum):
    """What a gateway was last known by. The value is what `status` says."""

    UNKNOWN = "unknown"
    """It has not answered yet, or there is reason to ask again."""
    SPEAKS = "leads"
    """It answers, and speaks for its group."""
    SILENT = "follows"
    """It answers, and does not."""
    FAILED = "unreachable"
    """It did not answer."""


@dataclass
class _Known:
    word: Word = Word.UNKNOWN
    at: float = float("-inf")


HANGS_FOR_S = 5.0
"""Seconds after a pull on which nothing came, for which others are pulled from first: a gateway whose
Mooncake hangs answers hellos as if nothing were wrong."""

_PULL_RANK = {Word.SPEAKS: 0, Word.UNKNOWN: 1, Word.SILENT: 2, Word.FAILED: 3}


class Choice:
    """The gateways of one peer, by their place in peering.toml, and what is known of each.

    Args:
        count: how many there are; one or more.
        silent_for: seconds after its word for which one that is silent is not asked for a catalog. What
            greets it hears a new word before that; what does not (it is silent itself) has to ask.
    """

    def __init__(self, count: int, silent_for: float) -> None:
        self._known = [_Known() for _ in range(count)]
        self._silent_for = silent_for
        self._current: int | None = None
        self._hung_at: dict[int, float] = {}

    def __repr__(self) -> str:
        return f"Choice({', '.join(known.word.value for known in self._known)})"

    def word(self, place: int) -> Word:
        """What is known of a gateway."""
        return self._known[place].word

    @property
    def speaker(self) -> int | None:
        """The gateway that speaks for the peer, if one is known to."""
        place = self._current
        return None if place is None or self.word(place) is not Word.SPEAKS else place

    @property
    def leaderless(self) -> bool:
        """Whether all that is known of all of them is that they do not speak; and that one is there."""
        words = {known.word for known in self._known}
        return Word.SILENT in words and words <= {Word.SILENT, Word.FAILED}

    # What became of it

    def spoke(self, place: int, now: float) -> None:
        """It answered, and speaks for its group. If two say so, the first stays the speaker."""
        if self.speaker is None:
            self._current = place
        self._known[place] = _Known(Word.SPEAKS, now)

    def silent(self, place: int, now: float) -> None:
        """It answered, and does not speak for its group."""
        self._known[place] = _Known(Word.SILENT, now)

    def failed(self, place: int, now: float) -> None:
        """It did not answer."""
        self._known[place] = _Known(Word.FAILED, now)

    def hung(self, place: int, now: float) -> None:
        """Nothing came of a pull from it."""
        self._hung_at[place] = now

    def doubt(self, now: float) -> None:
        """The peer is heard anew, or in another term: who spoke may be gone, who was silent may speak.

        Who spoke comes last until somebody is known to speak: it may hang, and the others, if they are still
        silent, say so at once.
        """
        for place, known in enumerate(self._known):
            if known.word is not Word.FAILED:
                at = now if place == self._current else float("-inf")
                self._known[place] = _Known(Word.UNKNOWN, at)
        self._current = None

    # Whom to ask

    def for_catalog(self, now: float) -> list[int]:
        """Whom to ask for a catalog, one after the other until one answers; nobody, if all are silent."""

        def order(place: int) -> tuple[int, bool, float, int]:
            known = self._known[place]
            rank = {Word.SPEAKS: 0, Word.UNKNOWN: 1}.get(known.word, 2)
            return rank, place != self._current, known.at, place

        return sorted(
            (
                place
                for place, known in enumerate(self._known)
                if known.word is not Word.SILENT or now - known.at >= self._silent_for
            ),
            key=order,
        )

    def for_pull(self, now: float) -> list[int]:
        """Whom to pull from, one after the other until one can be reached: all of them."""

        def order(place: int) -> tuple[bool, int, bool, float, int]:
            hangs = now - self._hung_at.get(place, float("-inf")) < HANGS_FOR_S
            known = self._known[place]
            at = known.at if known.word in (Word.UNKNOWN, Word.FAILED) else 0.0
            return hangs, _PULL_RANK[known.word], place != self._current, at, place

        return sorted(range(len(self._known)), key=order)
