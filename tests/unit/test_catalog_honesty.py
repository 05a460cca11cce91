"""A promise that was not kept is a lie only if it is never taken back, and often so."""

from __future__ import annotations

import random

import numpy as np
import pytest

from federation.catalog.honesty import (
    EXPLAINED_SHARE,
    LATELY,
    PENDING_MAX,
    STANDING_MIN,
    STANDS_SECONDS,
    Honesty,
)
from federation.catalog.prints import Found, Hashes
from tests.support.catalogs import news, spread, view_of

SIZE = 1000


def everything(hashes: Hashes) -> Found:
    return np.ones(len(hashes), dtype=np.bool_)


def test_what_is_taken_back_was_no_lie() -> None:
    blocks = spread(*range(100))
    view = view_of(blocks)
    view.came(SIZE)
    for key_hash in blocks[:50]:
        view.refute(key_hash, 1.0, SIZE)
    view.apply(news(view, 2, removed=blocks[:50]), 1.5)
    view.apply(news(view, 3), 60.0)
    assert view.judge(60.0) == 0
    assert (view.honesty.broken, view.honesty.standing) == (50, 0)
    assert not view.honesty.dishonest


def test_what_is_promised_still_is_told_once_the_view_is_known_to_be_current() -> None:
    blocks = spread(*range(100))
    view = view_of(blocks)
    view.came(SIZE)
    for key_hash in blocks[:50]:
        view.refute(key_hash, 1.0, SIZE)
    late = 1.0 + STANDS_SECONDS
    assert view.judge(60.0) == 0, "the owner has said nothing since: it may be cut off"
    view.apply(news(view, 2, removed=blocks[:10]), late - 0.1)
    assert view.judge(60.0) == 0, "not yet"
    view.confirmed_at = late
    assert view.judge(late) == 40
    assert view.judge(60.0) == 0, "each is told once"
    assert view.honesty.share == pytest.approx(40 / 51)
    assert view.honesty.dishonest


def test_what_the_asker_had_no_room_for_is_not_held_against_the_owner() -> None:
    blocks = spread(*range(100))
    view = view_of(blocks)
    view.refute(blocks[0], 1.0, SIZE)  # nothing has come yet: who knows how large its blocks are
    view.came(SIZE)
    for key_hash in blocks[1:50]:
        view.refute(key_hash, 1.0, SIZE - 1)
    view.confirmed_at = 60.0
    assert view.judge(60.0) == 0
    assert view.honesty.broken == 50


@pytest.mark.parametrize(("lies", "found"), [(0.0003, False), (0.01, False), (0.05, True)])
def test_a_few_are_explained_and_many_are_not(lies: float, found: bool) -> None:
    rng = random.Random(1)
    honesty = Honesty()
    dishonest = 0
    for n in range(100_000):
        if rng.random() < lies:
            honesty.breach(n, n / 1000)
        else:
            honesty.keep()
        if n % 1000 == 0:
            honesty.judge(n / 1000, n / 1000, everything)
            dishonest += honesty.dishonest
    assert (dishonest > 80) is found
    assert dishonest == 0 or found
    assert honesty.share == pytest.approx(lies, rel=0.4, abs=0.0005)


def test_few_of_few_are_not_concluded_from() -> None:
    honesty = Honesty()
    for n in range(STANDING_MIN):
        honesty.breach(n, 0.0)
        if n + 1 < STANDING_MIN:
            honesty.judge(100.0, 100.0, everything)
            assert not honesty.dishonest
    honesty.judge(100.0, 100.0, everything)
    assert honesty.dishonest


def test_who_mends_is_believed_again() -> None:
    honesty = Honesty()
    for n in range(1000):
        honesty.breach(n, 0.0)
    honesty.judge(100.0, 100.0, everything)
    assert honesty.dishonest
    promises = 0
    while honesty.dishonest:
        honesty.keep()
        promises += 1
    assert promises <= 2 * 1000 / EXPLAINED_SHARE
    assert promises >= LATELY


def test_no_more_wait_to_be_judged_than_there_is_room_for() -> None:
    honesty = Honesty()
    for n in range(PENDING_MAX + 100):
        honesty.breach(n, 0.0)
    assert len(honesty._pending) == PENDING_MAX
    assert honesty.judge(100.0, 100.0, everything) == PENDING_MAX
    assert not honesty._pending
