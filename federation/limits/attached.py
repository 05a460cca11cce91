"""Which engines a gateway has, by what each tells of itself now and then; sans-IO."""

from __future__ import annotations

from typing import Final

from federation.errors import MoonmeshError

ATTACH_SECONDS: Final = 10.0
"""Between two attachments of an engine to a gateway that answers: they tell that the namespace is in use, and
keep its place."""
FORGOTTEN_SECONDS: Final = 1.5 * ATTACH_SECONDS
"""After which the place of an engine that says nothing any more is another's. A busy one that is late loses
nothing but its turn where there is no place."""
CONNECTIONS_PER_ENGINE: Final = 2
"""Connections that an endpoint takes, for each engine that may attach: one, and as many again for routers,
followers, commands, and engines that are being told that there is no place. More are closed at once."""


class NoPlaceError(MoonmeshError):
    """A gateway has as many engines as it takes. Nothing is wrong with this one: it asks again."""

    code = "MM326"


class AttachedEngines:
    """The engines that are attached.

    Args:
        most: at once.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._heard_at: dict[int, float] = {}  # the one that was heard longest ago is the first
        self.refused = 0
        """Attachments that found no place."""

    def __repr__(self) -> str:
        return f"AttachedEngines({len(self._heard_at)} of {self.most}, {self.refused} refused)"

    def attach(self, engine: int, now: float) -> None:
        """It has a place from now on, or still.

        Args:
            engine: what it calls itself; 0: it does not say, and is bounded by its connection alone.

        Raises:
            NoPlaceError: there is none.
        """
        if engine == 0:
            return
        if self._heard_at.pop(engine, None) is None and self.count(now) >= self.most:
            self.refused += 1
            raise NoPlaceError(
                f"no place for another engine: {self.most} are attached",
                hint="raise engines_max in [limits], or give some of them a gateway of their own",
            )
        self._heard_at[engine] = now

    def count(self, now: float) -> int:
        """How many are attached."""
        while (oldest := next(iter(self._heard_at), None)) is not None:
            if now - self._heard_at[oldest] < FORGOTTEN_SECONDS:
                break
            del self._heard_at[oldest]
        return len(self._heard_at)
