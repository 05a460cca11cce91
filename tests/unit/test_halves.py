"""A long question as two at once: all answers in their places, whatever happens to a half."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from federation.halves import HALVES_FROM, Halves

KEYS = [str(n) for n in range(HALVES_FROM + 1)]


class Asked:
    """Notes what is asked in which thread, and lets both halves meet."""

    def __init__(self, together: int = 1) -> None:
        self._together = threading.Barrier(together)
        self.parts: list[tuple[int, int]] = []

    def __call__(self, keys: Sequence[str]) -> list[int]:
        self._together.wait(10)
        self.parts.append((len(keys), threading.get_ident()))
        return [int(key) for key in keys]


def test_a_long_question_is_two_at_once_with_the_answers_in_their_places() -> None:
    asked = Asked(together=2)
    assert Halves().ask(asked, KEYS) == list(range(len(KEYS)))
    (one, this), (other, that) = sorted(
        asked.parts, key=lambda part: part[1] == threading.get_ident()
    )
    assert {one, other} == {HALVES_FROM // 2, HALVES_FROM // 2 + 1}
    assert this != that


def test_a_short_one_is_one() -> None:
    asked = Asked()
    Halves().ask(asked, KEYS[: HALVES_FROM - 1])
    assert asked.parts == [(HALVES_FROM - 1, threading.get_ident())]


def test_of_two_at_once_one_is_halved() -> None:
    halves, inside, go = Halves(), threading.Event(), threading.Event()

    def slow(keys: Sequence[str]) -> list[int]:
        inside.set()
        assert go.wait(10)
        return [0] * len(keys)

    first = threading.Thread(target=halves.ask, args=(slow, KEYS))
    first.start()
    assert inside.wait(10)
    asked = Asked()
    halves.ask(asked, KEYS)
    assert asked.parts == [(len(KEYS), threading.get_ident())]
    go.set()
    first.join(10)
    again = Asked(together=2)
    halves.ask(again, KEYS)
    assert len(again.parts) == 2, "it is halved again once the other is over"


@pytest.mark.parametrize("bad", ["0", str(HALVES_FROM)])
def test_what_a_half_raises_is_raised_when_both_are_over(bad: str) -> None:
    halves, over = Halves(), []

    def raises(keys: Sequence[str]) -> list[int]:
        over.append(len(keys))
        if bad in keys:
            raise ValueError(bad)
        return [1] * len(keys)

    with pytest.raises(ValueError, match=bad):
        halves.ask(raises, KEYS)
    assert len(over) == 2
    assert halves.ask(lambda keys: [2] * len(keys), KEYS) == [2] * len(KEYS)
