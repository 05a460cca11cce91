from __future__ import annotations

import queue
from collections.abc import Iterator

import pytest

from federation.bench.engine import BUFFER_BYTES, Answer, Engine
from federation.bench.workload import BlockBytes
from federation.errors import UsageError
from tests.support.memory_store import MemoryStore
from tests.support.wait import wait_for

SIZE = 64
CHAIN = ["1", "2", "3", "4"]


class FakeDelay:
    """A machine that woke everybody `late_s` late."""

    def __init__(self) -> None:
        self.late_s = 0.0
        self.closed = False

    def within(self, begin: float, end: float) -> float:
        return self.late_s

    def restart(self) -> None:
        pass

    def worst(self) -> float:
        return self.late_s

    def close(self) -> None:
        self.closed = True


class Bench:
    """An engine on a memory store, asked one request at a time."""

    def __init__(self, threads: int = 1, deadline_ms: int = 1000) -> None:
        self.store = MemoryStore()
        self.machine = FakeDelay()
        self.answers: queue.Queue[Answer] = queue.Queue()
        self.engine = Engine(
            self.store,
            BlockBytes(b"n", SIZE),
            threads=threads,
            chain_blocks=8,
            deadline_ms=deadline_ms,
            machine=self.machine,
            on_answer=self.answers.put,
        )

    def ask(self, keys: list[str], number: int = 0) -> Answer:
        self.engine.submit(number, keys)
        return self.answers.get(timeout=10)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.engine.close()
    assert made.store.closed
    assert made.machine.closed


def test_what_missed_is_written_and_hits_the_next_time(bench: Bench) -> None:
    first = bench.ask(CHAIN[:2])
    assert (first.local, first.peer, first.misses) == (0, 0, 2)
    second = bench.ask(CHAIN)
    assert (second.local, second.misses, second.wrong_bytes) == (2, 2, 0)
    assert bench.ask(CHAIN).local == 4
    assert len(bench.store.blocks) == 4


def test_only_the_leading_run_counts_as_hits(bench: Bench) -> None:
    bench.ask(CHAIN)
    del bench.store.blocks["2"]
    found = bench.ask(CHAIN)
    assert (found.local, found.misses) == (1, 3)


def test_blocks_of_peers_are_told_apart(bench: Bench) -> None:
    bench.ask(CHAIN)
    bench.store.peer_keys = {"3", "4"}
    found = bench.ask(CHAIN)
    assert (found.local, found.peer) == (2, 2)


def test_a_wrong_byte_is_found_at_the_reader(bench: Bench) -> None:
    bench.ask(CHAIN)
    bench.store.tamper = {"2"}
    assert bench.ask(CHAIN).wrong_bytes == 1


def test_a_hit_that_wrote_nothing_is_wrong_although_the_row_had_that_block(bench: Bench) -> None:
    bench.ask(CHAIN)
    assert bench.ask(CHAIN).wrong_bytes == 0
    bench.store.skip_write = {"1"}
    assert bench.ask(CHAIN).wrong_bytes > SIZE // 2


def test_an_exception_of_the_store_is_an_error_and_the_chain_is_still_written(bench: Bench) -> None:
    bench.store.fail_get = RuntimeError("no gateway")
    found = bench.ask(CHAIN)
    assert found.errors == ["get: RuntimeError: no gateway"]
    assert (found.misses, len(bench.store.blocks)) == (4, 4)


def test_codes_other_than_not_found_are_told(bench: Bench) -> None:
    bench.ask(CHAIN)
    bench.store.codes = {"3": -800, "4": -704}
    found = bench.ask(CHAIN)
    assert (found.local, found.misses, found.codes) == (2, 2, {"get -800": 1})


def test_a_block_of_another_size_is_an_error_and_no_hit(bench: Bench) -> None:
    bench.store.blocks["1"] = b"short"
    found = bench.ask(CHAIN)
    assert found.local == 0
    assert "5 bytes instead of 64" in found.errors[0]


@pytest.fixture
def hasty() -> Iterator[Bench]:
    made = Bench(deadline_ms=50)
    yield made
    made.engine.close()


def test_a_read_over_its_deadline_is_an_overrun_and_one_within_is_none(hasty: Bench) -> None:
    hasty.store.delay_s = 0.4
    found = hasty.ask(CHAIN)
    assert found.overrun_raw_ms >= 350
    assert found.overrun_ms == pytest.approx(found.overrun_raw_ms - 10)  # the slack
    assert (found.put_overrun_ms, found.put_overrun_raw_ms) == (0, 0)
    hasty.store.delay_s = 0.0

    def within() -> bool:
        found = hasty.ask(CHAIN)
        return (found.overrun_ms, found.overrun_raw_ms) == (0, 0)

    wait_for(within, 5, "a read that the machine does not hold up")


def test_a_write_over_its_deadline_is_an_overrun_of_its_own(hasty: Bench) -> None:
    hasty.store.put_delay_s = 0.2
    found = hasty.ask(CHAIN)
    assert (found.overrun_ms, found.overrun_raw_ms) == (0, 0)
    assert found.put_overrun_raw_ms >= 150
    assert found.put_overrun_ms == pytest.approx(found.put_overrun_raw_ms - 10)


def test_the_machines_delay_is_taken_off_and_the_raw_figure_stays(hasty: Bench) -> None:
    hasty.store.delay_s = 0.2
    hasty.machine.late_s = 0.1
    found = hasty.ask(CHAIN)
    assert found.overrun_ms == pytest.approx(found.overrun_raw_ms - 110)
    hasty.machine.late_s = 1000.0
    found = hasty.ask(CHAIN)
    assert found.overrun_ms == 0
    assert found.overrun_raw_ms >= 150


def test_a_call_that_holds_the_interpreters_lock_is_not_excused_by_it(hasty: Bench) -> None:
    hasty.store.lock_s = 0.4
    found = hasty.ask(CHAIN)
    assert found.overrun_ms >= 340
    assert hasty.engine.close()["thread_delay_ms"] >= 300


def test_several_requests_are_in_flight() -> None:
    bench = Bench(threads=4)
    bench.store.delay_s = 0.1
    for number in range(4):
        bench.engine.submit(number, CHAIN)
    assert sorted(bench.answers.get(timeout=10).number for _ in range(4)) == [0, 1, 2, 3]
    assert bench.store.in_flight_max == 4
    bench.engine.close()


def test_memory_is_bounded() -> None:
    with pytest.raises(UsageError, match="more than"):
        Engine(
            MemoryStore(),
            BlockBytes(b"n", 1 << 20),
            threads=8,
            chain_blocks=BUFFER_BYTES // (8 << 20) + 1,
            deadline_ms=1000,
            machine=FakeDelay(),
            on_answer=lambda _: None,
        )
