"""What is read for peers gives way when Mooncake gets slow, comes back, and is shared by turns."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from federation.limits.shedding import (
    AGAIN_SECONDS,
    CLASSES_MAX,
    CUT,
    REMEMBERED_SECONDS,
    SAMPLES_FEW,
    SLOW_MAX,
    TICK_SECONDS,
    Shedding,
    SheddingLimits,
)

LIMITS = SheddingLimits(windows_max=32.0, windows_min=0.1, times=3.0, rise_s=0.01)
USUAL = 0.002


class Store:
    """A simulated store: the slower, the more it has to do beside what peers have read."""

    def __init__(self, shedding: Shedding, rng: random.Random) -> None:
        self.shedding, self.rng = shedding, rng
        self.now = 0.0
        self.local = 0.0
        """Load of the own engines, of what it can do."""

    def run(self, seconds: float, local: Callable[[float], float]) -> list[float]:
        """What may be read at each tick."""
        course, began = [], self.now
        while self.now - began < seconds:
            self.local = local(self.now - began)
            for _ in range(6):
                load = min(0.99, self.local + 0.02 * self.shedding.windows)
                took = USUAL / (1 - load) * self.rng.uniform(0.8, 1.2)
                self.shedding.took("store", 1 << 20, took)
            self.now += TICK_SECONDS
            self.shedding.tick(self.now)
            course.append(self.shedding.windows)
        return course


class Frozen:
    """A master that runs for a part of each period, and readers that ask it one question after the other."""

    def __init__(self, shedding: Shedding, rng: random.Random, readers: int, pause: float) -> None:
        self.shedding, self.rng = shedding, rng
        self.now = 0.0
        self._asks_at = [rng.uniform(0, 0.2) for _ in range(readers)]
        self._pause = pause

    def run(self, seconds: float, period: float, runs: float) -> int:
        """How many questions were answered as ever; all others met a master that stood still."""
        until, quick = self.now + seconds, 0
        while self.now < until:
            self.now += TICK_SECONDS
            for reader, at in enumerate(self._asks_at):
                while at < self.now:
                    usual = USUAL * self.rng.uniform(0.8, 1.2)
                    waits = period - at % period if at % period + usual > runs else 0.0
                    quick += not waits
                    self.shedding.took("master", 1, waits + usual)
                    at += waits + usual + self.rng.uniform(0, 2 * self._pause)
                self._asks_at[reader] = at
            self.shedding.tick(self.now)
        return quick


def made() -> Shedding:
    return Shedding(LIMITS, 0.0)


def learn(shedding: Shedding, seconds: float = USUAL, size: int = 1) -> None:
    for _ in range(40):
        shedding.took("master", size, seconds)
    shedding.tick(TICK_SECONDS)


def slow(shedding: Shedding, ticks: int, seconds: float = 0.1, **options: float) -> None:
    for n in range(ticks):
        for _ in range(SAMPLES_FEW):
            shedding.took("master", 1, seconds)
        shedding.tick((2 + n) * TICK_SECONDS, **options)


def test_it_is_cut_by_a_part_and_never_below_the_floor() -> None:
    shedding = made()
    learn(shedding)
    slow(shedding, 1)
    assert shedding.windows == CUT * 32
    slow(shedding, 100)
    assert shedding.windows == LIMITS.windows_min
    assert shedding.cuts == 101


@pytest.mark.parametrize(
    ("seconds", "delay"),
    [
        (2.9 * USUAL, 0.0),  # not so many times as long
        (USUAL + 0.009, 0.0),  # not so much longer
        (0.1, 0.1),  # this process was late itself
    ],
)
def test_what_is_no_slow_answer_cuts_nothing(seconds: float, delay: float) -> None:
    shedding = made()
    learn(shedding)
    slow(shedding, 10, seconds, own_delay=delay)
    assert shedding.at_rest


def test_a_few_slow_answers_prove_nothing() -> None:
    shedding = made()
    learn(shedding)
    for _ in range(SAMPLES_FEW - 1):
        shedding.took("master", 1, 0.1)
    shedding.tick(1.0)
    assert shedding.at_rest
    for slow_ones in (True, True, False, False, False, False):
        shedding.took("master", 1, 0.05 if slow_ones else USUAL)
    shedding.tick(1.25)
    assert shedding.at_rest, "half of them are no majority, nor most of the time"


def test_what_is_larger_may_take_longer() -> None:
    shedding = made()
    learn(shedding, USUAL, 1)
    learn(shedding, 0.1, 256)
    for _ in range(9):
        shedding.took("master", 256, 0.1)
    shedding.tick(2.0)
    assert shedding.at_rest
    assert shedding.status()["told_apart"] == 2


def test_what_it_keeps_is_bounded() -> None:
    shedding = made()
    for n in range(4 * CLASSES_MAX):
        shedding.took(f"kind-{n}", 1, 0.001)
    assert shedding.status()["told_apart"] == CLASSES_MAX


def test_windows_of_peers_that_are_read_beside_each_other_are_the_usual() -> None:
    shedding = made()
    learn(shedding)
    for _ in range(8):
        assert shedding.enter("west", 0.0) == 0.0
    for n in range(20):
        for _ in range(SAMPLES_FEW):
            shedding.took("master", 1, 16 * USUAL)
        shedding.tick(1.0 + n * TICK_SECONDS)
    assert shedding.at_rest


@pytest.mark.parametrize("seed", range(20))
def test_it_comes_back_when_the_load_is_gone(seed: int) -> None:
    store = Store(made(), random.Random(seed))
    store.run(30, lambda at: 0.05)
    assert store.shedding.at_rest, "peers alone are not what it gives way to"
    busy = store.run(60, lambda at: 0.95)
    assert min(busy) >= LIMITS.windows_min
    assert busy[39] < 1.0, "in ten seconds it takes almost nothing"
    store.run(30, lambda at: 0.05)
    assert store.shedding.at_rest


@pytest.mark.parametrize("seed", range(20))
def test_it_does_not_swing_between_all_and_nothing(seed: int) -> None:
    store = Store(made(), random.Random(seed))
    store.run(30, lambda at: 0.0)
    store.run(30, lambda at: 0.6)
    course = store.run(60, lambda at: 0.6)
    assert max(course) <= 4 * min(course), "within a factor of four, at a steady load"
    assert min(course) > 2, "a load that leaves room is not what all is given up for"


def test_a_load_for_good_becomes_the_usual() -> None:
    shedding = made()
    learn(shedding)
    slow(shedding, int(60 / TICK_SECONDS), 25 * USUAL)
    assert shedding.windows < 1, "a minute is not for good"
    for n in range(int(3600 / TICK_SECONDS)):
        for _ in range(SAMPLES_FEW):
            shedding.took("master", 1, 25 * USUAL)
        shedding.tick(60.0 + n * TICK_SECONDS)
    assert shedding.at_rest


def test_below_one_window_there_are_pauses_between_them() -> None:
    shedding = made()
    learn(shedding)
    slow(shedding, 100)
    assert shedding.enter("west", 50.0) == 0.0
    assert shedding.enter("west", 50.0) > 0, "one at a time"
    shedding.leave("west", 50.0, 50.1)
    assert shedding.enter("west", 50.1) > 0
    assert shedding.enter("west", 50.1 + 0.1 * 9 - 0.01) > 0, "a tenth of the time"
    assert shedding.enter("west", 50.1 + 0.1 * 9 + 0.01) == 0.0
    assert shedding.refused == 3


def test_who_is_refused_is_told_when_to_come_back_and_never_later_than_may_be() -> None:
    shedding = made()
    learn(shedding)
    slow(shedding, 9)
    room = int(shedding.windows)
    assert room > 0
    for _ in range(room):
        assert shedding.enter("west", 9.0) == 0.0
    assert shedding.enter("west", 9.0) == AGAIN_SECONDS[0]
    slow(shedding, 100)
    assert AGAIN_SECONDS[0] < shedding.enter("west", 60.0) <= AGAIN_SECONDS[1]


def test_a_peer_that_asks_all_the_time_does_not_get_what_is_left_alone() -> None:
    shedding = made()
    learn(shedding)
    slow(shedding, 100)
    shedding.windows = 1.0
    assert shedding.enter("hungry", 50.0) == 0.0
    assert shedding.enter("modest", 50.05) > 0
    shedding.leave("hungry", 50.0, 50.1)
    assert shedding.enter("hungry", 50.1) > 0, "it is the other one's turn"
    assert shedding.enter("modest", 50.2) == 0.0
    shedding.leave("modest", 50.2, 50.3)
    assert shedding.enter("hungry", 50.3) == 0.0
    assert shedding.enter("modest", 50.35) > 0
    shedding.leave("hungry", 50.3, 50.4)
    later = 50.35 + REMEMBERED_SECONDS + 0.01
    assert shedding.enter("hungry", later) == 0.0, "one that does not come back keeps nothing"


def test_slow_answers_that_come_one_by_one_count_too() -> None:
    shedding = made()
    learn(shedding)
    for n in range(SAMPLES_FEW):
        assert shedding.at_rest
        shedding.took("master", 1, 0.1)
        shedding.tick(1.0 + n * TICK_SECONDS)
    assert not shedding.at_rest


@pytest.mark.parametrize("readers", [1, 2, 4, 16])
@pytest.mark.parametrize("runs", [0.02, 0.06])
def test_a_master_that_stands_still_most_of_the_time_is_slow_however_many_it_answers_in_between(
    readers: int, runs: float
) -> None:
    frozen = Frozen(made(), random.Random(readers), readers, pause=0.0)
    frozen.run(10, period=0.22, runs=0.22)
    assert frozen.shedding.at_rest
    quick = frozen.run(10, period=0.22, runs=runs)
    assert quick > 10 / 0.22 * readers * 3, "most questions were answered at once"
    assert frozen.shedding.windows < 1, "one reader finds out three times a second"
    frozen.run(20, period=0.22, runs=runs)
    assert frozen.shedding.windows < 2 * LIMITS.windows_min
    frozen.run(30, period=0.22, runs=0.22)
    assert frozen.shedding.at_rest


def test_one_that_runs_most_of_the_time_is_not() -> None:
    frozen = Frozen(made(), random.Random(1), readers=4, pause=0.0)
    frozen.run(10, period=0.22, runs=0.22)
    frozen.run(60, period=0.22, runs=0.14)
    assert frozen.shedding.at_rest


@pytest.mark.parametrize("readers", [1, 4, 16])
@pytest.mark.parametrize("pause", [0.0, 0.02])
def test_late_answers_now_and_then_are_no_slow_master_though_they_take_most_of_what_is_waited(
    readers: int, pause: float
) -> None:
    shedding, rng = made(), random.Random(readers)
    learn(shedding)
    for n in range(240):
        for _ in range(int(readers * TICK_SECONDS / (pause + USUAL + 0.05 * 10 * USUAL))):
            shedding.took("master", 1, (10 if rng.random() < 0.05 else 1) * USUAL)
        shedding.tick((2 + n) * TICK_SECONDS)
    assert shedding.cuts == 0


def test_what_it_keeps_of_slow_answers_is_bounded_and_quick_ones_push_none_out() -> None:
    shedding = made()
    learn(shedding)
    for _ in range(10 * SLOW_MAX):
        shedding.took("master", 1, USUAL)
    for _ in range(SLOW_MAX):
        shedding.took("master", 1, 0.1)
    before = shedding._tick.seconds
    shedding.took("master", 1, 0.1)
    assert shedding._tick.seconds == before
    assert len(shedding._tick.slow) == SLOW_MAX
    shedding.tick(1.0)
    assert not shedding.at_rest
