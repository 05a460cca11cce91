"""What opens the local store's breaker, and what does not: one slow call, or a stall of our own."""

from __future__ import annotations

import time

import pytest

from local_group.breaker import BreakerLimits
from local_group.gate import Gate
from local_group.stalls import LATE_SECONDS, STALLS_MAX, TICK_SECONDS, Stalls, Watch
from local_group.store_config import STORE_BREAKER, StoreLimits
from tests.support.wait import wait_for

WELL, UNWELL = [1000], [-800]


class Bench:
    """A gate whose time is told, and whose process stands still when it is told."""

    def __init__(self, breaker: BreakerLimits = STORE_BREAKER) -> None:
        self.now = 100.0
        self.stalls = Stalls(self.now)
        self.gate = Gate(StoreLimits(breaker=breaker), lambda: self.now, self.stalls.lost)

    def run(self, seconds: float) -> None:
        """Time passes, and this process runs."""
        until = self.now + seconds
        while self.now < until - 1e-9:
            self.now = min(until, self.now + TICK_SECONDS)
            self.stalls.beat(self.now)

    def stand_still(self, seconds: float) -> None:
        self.now += seconds

    def late(self, began: float) -> None:
        """A call is abandoned by its caller."""
        assert self.gate.admit(meta=False)
        self.gate.overdue(False, began)

    def ended(self, began: float, results: list[int]) -> None:
        assert self.gate.admit(meta=False)
        self.gate.verdict(False, results, began, self.now, 1000)

    @property
    def state(self) -> str:
        return self.gate.stats(0, 0, 0).breaker


def test_one_slow_call_of_many_threads_is_one_failure() -> None:
    bench = Bench()
    began = bench.now
    bench.run(0.2)
    for _ in range(50):  # threads that all waited in it
        bench.late(began)
    for _ in range(50):
        bench.gate.overdue(False, began, starved=True)
    assert bench.state == "closed"


def test_a_mooncake_that_hangs_is_left_out_soon_whatever_the_deadlines() -> None:
    bench = Bench()
    began = bench.now
    bench.run(1.0)
    found_at = bench.now
    while bench.state == "closed" and bench.now < found_at + 10:
        bench.late(began)  # one of many threads with a second each
        bench.run(0.05)
    assert bench.now - found_at < 1.3


def test_one_slow_call_that_ends_well_never_opens_it() -> None:
    bench = Bench()
    for _ in range(5):
        bench.run(60)
        began = bench.now
        bench.run(4)
        for _ in range(20):
            bench.ended(began, WELL)
        assert bench.state == "closed"


def test_late_calls_one_after_the_other_open_it_at_the_limit_and_not_before() -> None:
    bench = Bench()
    for n in range(STORE_BREAKER.failures):
        assert bench.state == "closed", n
        bench.run(0.01)
        began = bench.now
        bench.run(0.05)
        for _ in range(8):
            if bench.state == "closed":
                bench.late(began)
    assert bench.state == "open"


def test_what_mooncake_itself_calls_a_failure_counts_each() -> None:
    bench = Bench()
    began = bench.now
    bench.run(0.5)
    for _ in range(STORE_BREAKER.failures):
        bench.ended(began, UNWELL)
    assert bench.state == "open"


@pytest.mark.parametrize("results", [WELL, UNWELL, None])
def test_a_stall_of_our_own_is_not_mooncakes_fault(results: list[int] | None) -> None:
    bench = Bench()
    for _ in range(20):
        bench.run(0.1)
        began = bench.now
        bench.run(0.01)
        bench.stand_still(3.0)  # the whole machine: who runs first tells first
        if results is None:
            bench.late(began)
        else:
            bench.ended(began, results)
    assert bench.state == "closed"


def test_the_first_opening_is_short_and_only_failed_probes_make_it_longer() -> None:
    bench = Bench()

    def fail() -> None:
        bench.run(0.01)
        began = bench.now
        bench.run(0.05)
        bench.late(began)

    for _ in range(10):
        for _ in range(STORE_BREAKER.failures):
            fail()
        assert bench.state == "open"
        bench.run(0.25)
        assert bench.state == "half_open", "each time, since each probe went well"
        bench.ended(bench.now, WELL)
        assert bench.state == "closed"
    for _ in range(STORE_BREAKER.failures):
        fail()
    bench.run(0.25)
    fail()
    assert bench.state == "open"
    bench.run(0.25)
    assert bench.state == "open", "a probe failed: it is longer now"
    bench.run(0.25)
    assert bench.state == "half_open"


def test_a_probe_that_never_got_in_makes_room_for_the_next() -> None:
    bench = Bench(BreakerLimits(failures=1, window=1, open_s=0.1, jitter=0.0))
    bench.ended(bench.now, UNWELL)
    bench.run(0.2)
    assert bench.gate.admit(meta=False)
    bench.gate.overdue(False, 0.0)
    assert bench.gate.admit(meta=False)


def test_time_lost_is_what_a_late_beat_tells() -> None:
    stalls = Stalls(0.0)
    stalls.beat(TICK_SECONDS)
    stalls.beat(TICK_SECONDS + 1.0)
    assert stalls.lost(0.0, TICK_SECONDS + 1.0) == pytest.approx(1.0)
    assert stalls.lost(0.25, 0.75) == pytest.approx(0.5)
    assert stalls.lost(0.0, TICK_SECONDS) == 0.0


def test_a_beat_that_is_a_little_late_is_no_stall() -> None:
    stalls = Stalls(0.0)
    limit = TICK_SECONDS + LATE_SECONDS
    stalls.beat(limit)
    assert stalls.lost(0.0, limit) == 0.0
    assert stalls.lost(0.0, 2 * limit - 0.001) == 0.0
    assert stalls.lost(0.0, 2 * limit + 0.001) == pytest.approx(limit + 0.001)


def test_a_stall_counts_before_the_control_thread_has_told_of_it() -> None:
    stalls = Stalls(0.0)
    assert stalls.lost(0.0, 1.0) == pytest.approx(1.0)


def test_stalls_remembered_are_bounded() -> None:
    stalls = Stalls(0.0)
    for n in range(10 * STALLS_MAX):
        stalls.beat(float(n))
    assert len(stalls._stalls) == STALLS_MAX


def test_the_watch_sleeps_while_nothing_is_under_way() -> None:
    looks: list[float] = []
    idle = False

    def clock() -> float:
        looks.append(time.monotonic())
        return looks[-1]

    watch = Watch(clock)
    watch.start(lambda: idle)
    wait_for(lambda: len(looks) > 3, 5, "it to beat")
    idle = True
    wait_for(lambda: watch._sleeps, 5, "it to sleep")
    before = len(looks)
    time.sleep(5 * TICK_SECONDS)
    assert len(looks) == before
    idle = False
    watch.wake()
    began = looks[-1]
    wait_for(lambda: len(looks) > before + 3, 5, "it to beat again")
    assert watch.lost(began - 5 * TICK_SECONDS, began) == 0.0, "nobody stood still meanwhile"
    watch.stop()
