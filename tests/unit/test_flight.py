"""What may be under way, on lines of all kinds: it fills the line, and hardly queues before it."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import pytest

from federation.transfer.fair import PullClass
from federation.transfer.flight import BASE_SECONDS, FLIGHT_BYTES_MAX, PIECE_BYTES, Flight
from federation.transfer.schedule import Claim, Schedule

MIB = 1 << 20


class Line:
    """A peer behind a line that carries `rate` bytes a second, first in first out, `trip` seconds away."""

    def __init__(self, schedule: Schedule, rate: float, trip: float) -> None:
        self.schedule = schedule
        self.rate = rate
        self.trip = trip
        self.now = 0.0
        self.moved = 0
        self._free_at = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def ask(self, place: Claim, size: int) -> None:
        """The peer hears of it, and sends so many bytes."""
        self._at(self.now + self.trip / 2, lambda: self.send(size, lambda: self._came(place, size)))

    def send(self, size: int, then: Callable[[], None]) -> None:
        self._free_at = max(self._free_at, self.now) + size / self.rate
        self._at(self._free_at + self.trip / 2, then)

    @property
    def queued(self) -> float:
        """Seconds that what is sent now waits."""
        return max(0.0, self._free_at - self.now)

    def begin(self) -> None:
        while (place := self.schedule.next()) is not None:
            self.schedule.begin(place, self.now)
            if not place.free:
                self.ask(place, place.given)

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, then = heapq.heappop(self._events)
            then()
            for place, size in self.schedule.credits(self.now):
                self.ask(place, size)
        self.now = until

    def _came(self, place: Claim, size: int) -> None:
        self.moved += size
        self.schedule.came(place, size, self.now)

    def _at(self, when: float, then: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, then))


@pytest.mark.parametrize(
    ("mbit", "ms"), [(10, 20), (100, 1), (200, 80), (1000, 1), (1000, 20), (1000, 150), (10_000, 2)]
)
def test_prefetches_fill_a_line_and_a_first_token_hardly_waits(mbit: int, ms: int) -> None:
    rate, trip = mbit * 1e6 / 8, ms / 1000
    schedule = Schedule(streams=8, most=64, message_bytes=MIB)
    line = Line(schedule, rate, trip)
    for _ in range(8):
        assert schedule.join(PullClass.PREFETCH, b"n")
    line.begin()
    message = MIB / rate
    line.run(40 * message + 40 * trip + 2)
    begin, before = line.now, line.moved
    line.run(begin + 80 * message + 20 * trip + 1)
    assert (line.moved - before) / (line.now - begin) > 0.95 * rate
    late = []
    for _ in range(40):
        asked = line.now
        place = schedule.join(PullClass.FIRST_TOKEN, b"n")
        assert place is not None
        line.begin()
        done: list[float] = []
        line._at(
            line.now + trip / 2, lambda done=done: line.send(MIB, lambda: done.append(line.now))
        )  # type: ignore[misc]
        while not done:
            line.run(line.now + message / 8)
        schedule.leave(place)
        late.append(done[0] - asked - (message + trip))
        line.run(line.now + 7.3 * message + trip)
    assert max(late) <= 2 * message


def test_a_window_has_a_least_and_a_most() -> None:
    flight = Flight(MIB)
    assert flight.window(urgent=False) == MIB
    assert flight.window(urgent=True) == flight.piece(urgent=True) == PIECE_BYTES
    for number in range(10_000):  # it never takes longer: nothing ever queues
        flight.filled()
        flight.came(MIB)
        flight.sample(PIECE_BYTES, 0.05, number * 0.001, urgent=False)
    assert flight.window(urgent=False) == FLIGHT_BYTES_MAX
    for number in range(2000):
        flight.filled()
        flight.came(FLIGHT_BYTES_MAX)
        flight.sample(PIECE_BYTES, 5.0, 10.0 + number * 0.001, urgent=False)
    assert flight.window(urgent=False) == MIB


def test_a_way_that_became_longer_is_learnt_after_a_while() -> None:
    flight = Flight(MIB)
    now = 0.0
    for number in range(4000):
        now += 0.02
        flight.filled()
        flight.came(4 * MIB)
        flight.sample(PIECE_BYTES, 0.001 if number < 100 else 0.05, now, urgent=False)
    assert now > 3 * BASE_SECONDS
    assert flight.window(urgent=False) > MIB


def test_messages_smaller_than_a_piece_are_what_is_asked_for() -> None:
    flight = Flight(64 * 1024)
    assert flight.piece(urgent=False) == flight.window(urgent=True) == 64 * 1024
