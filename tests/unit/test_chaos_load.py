"""The load itself: each kind of harm that a store can do is seen and counted."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from chaos.load.auditing import AUDIT_BATCH
from chaos.load.engine import Load
from chaos.load.keys import DEMO, GUEST, chain, contents
from chaos.load.memory import Memory
from chaos.load.spec import Audit, LoadSpec, Sample, Totals
from chaos.load.watch import ControlThread
from tests.support.memory_store import MemoryStore
from tests.support.wait import wait_for

SIZE = 4096
SPEC = LoadSpec(
    tag="t",
    seed=1,
    blocks=4,
    local_chains=3,
    fresh_chains=5,
    local_rate=200,
    peer_rate=0,
    peer_owners=(),
    write_rate=50,
    exists_rate=0,
    guest_rate=0,
    guest_owners=(),
    deadline_ms=200,
    peer_deadline_ms=200,
)


class Store(MemoryStore):
    """The fake, with the calls that a load makes beyond a replay's."""

    breaker = "closed"

    def __init__(self) -> None:
        super().__init__()
        self.refuse_puts = False
        self.forget: set[str] = set()
        self.late: Callable[[int, int], None] | None = None

    def batch_get_into(
        self, keys: list[str], ptrs: list[int], sizes: list[int], deadline_ms: int
    ) -> list[int]:
        results = super().batch_get_into(keys, ptrs, sizes, deadline_ms)
        found = ["local" if result >= 0 else "miss" for result in results]
        peers = self.peer_keys
        self._tiers.last = [
            "peer" if k in peers and t == "local" else t for k, t in zip(keys, found, strict=True)
        ]
        if self.late is not None:
            self.late(ptrs[0], sizes[0])
        return results

    def batch_put_from(  # type: ignore[override]
        self, keys: list[str], ptrs: list[int], sizes: list[int], deadline_ms: int = 0
    ) -> list[int]:
        if self.refuse_puts:
            return [-200] * len(keys)
        codes = super().batch_put_from(keys, ptrs, sizes)
        for key in self.forget & set(keys):
            del self.blocks[key]
        return codes

    def batch_is_exist(self, keys: list[str], wait_ms: int = 0) -> list[int]:
        return [int(key in self.blocks) for key in keys]

    def stats(self) -> dict[str, Any]:
        return {"store": {"breaker": self.breaker}}

    def flush_reports(self) -> bool:
        return True


@contextmanager
def loaded(store: Store, spec: LoadSpec = SPEC, guest: Store | None = None) -> Iterator[Load]:
    load = Load(
        spec, "west", store, guest, contents(DEMO, SIZE), contents(GUEST, SIZE), 200
    )  # fmt: skip
    load.prepare()
    yield load
    assert load.stop()


def run(
    store: Store, spec: LoadSpec = SPEC, calls: int = 30, guest: Store | None = None
) -> tuple[Totals, list[Sample], Audit]:
    """Runs a load until so many calls were made."""
    samples: list[Sample] = []
    with loaded(store, spec, guest) as load:
        load.start(time.monotonic())

        def enough() -> bool:
            samples.extend(load.take())
            return len(samples) >= calls or bool(load.totals().errors)

        wait_for(enough, 20, f"{calls} calls")
    return load.totals(), samples, load.audit()


def test_a_sound_store_is_found_sound() -> None:
    totals, samples, audit = run(Store())
    assert totals.verified_bytes > 0
    assert (totals.wrong_bytes, totals.late_writes, totals.errors, totals.codes) == (0, 0, [], {})
    assert {s.kind for s in samples} == {"local", "put"}
    assert all(s.late_ms == 0 for s in samples)
    assert audit.checked == totals.puts == totals.stored
    assert (audit.lost, audit.unread, audit.wrong_bytes) == (0, 0, 0)
    assert audit.verified_bytes == audit.checked * SIZE


def test_a_wrong_byte_is_counted() -> None:
    store = Store()
    store.tamper = set(chain("t", "west", 0, 4)[:1])
    totals, _, audit = run(store)
    assert totals.wrong_bytes > 0
    assert audit.wrong_bytes == 1


def test_a_block_that_was_said_to_be_there_and_was_not_written_is_wrong() -> None:
    """What an earlier call left in the memory does not pass for this one's."""
    store = Store()
    store.skip_write = set(chain("t", "west", 0, 4)[:1])
    totals, _, _ = run(store)
    assert totals.wrong_bytes >= SIZE // 2


def test_a_write_after_the_return_is_counted() -> None:
    store = Store()

    def soon(pointer: int, size: int) -> None:
        threading.Timer(0.001, ctypes.memset, (pointer, 0, size)).start()

    with loaded(store) as load:
        store.late = soon
        load.start(time.monotonic())
        wait_for(lambda: load.totals().late_writes > 0, 10, "a late write to be seen")
        store.late = None
        time.sleep(0.05)  # timers that are still under way touch memory that is still there


def test_an_acknowledged_block_that_is_gone_is_lost() -> None:
    store = Store()
    store.forget = set(chain("t", "west", 8, 4)[:2])
    _, _, audit = run(store)
    assert audit.lost == 2
    assert "-704" in audit.examples[0]


def test_what_a_store_with_an_open_breaker_did_not_look_for_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("chaos.load.auditing.AUDIT_S", 0.0)
    store = Store()
    store.forget = set(chain("t", "west", 8, 4)[:2])
    store.breaker = "open"
    _, _, audit = run(store)
    assert (audit.lost, audit.unread) == (0, 2)


def test_where_blocks_may_be_lost_the_audit_asks_once() -> None:
    class Counted(Store):
        reads = 0

        def batch_get_into(
            self, keys: list[str], ptrs: list[int], sizes: list[int], deadline_ms: int
        ) -> list[int]:
            self.reads += 1
            return super().batch_get_into(keys, ptrs, sizes, deadline_ms)

    store = Counted()
    with loaded(store) as load:
        store.breaker = "open"
        found = load.audit(again=False)
    assert found.checked == 4 * (SPEC.local_chains + SPEC.fresh_chains + 1)
    assert store.reads == -(-found.checked // AUDIT_BATCH)


def test_a_block_that_only_a_peer_has_is_lost_too() -> None:
    store = Store()
    store.peer_keys = set(chain("t", "west", 8, 4)[:1])
    _, _, audit = run(store)
    assert audit.lost == 1


def test_an_audit_says_whose_bytes_were_in_the_place_of_a_block() -> None:
    store = Store()
    one, other = chain("t", "west", 8, 4)[:2]
    with loaded(store) as load:
        store.blocks[one] = store.blocks[other]
        found = load.audit()
    assert found.wrong_bytes > 0
    (said,) = found.wrong
    assert said.startswith(f"audit {one} (local) at ")
    assert said.endswith(f": the bytes of {other}")


def test_refused_puts_are_codes_and_nothing_is_lost() -> None:
    store = Store()
    with loaded(store) as load:
        store.refuse_puts = True
        load.start(time.monotonic())
        wait_for(lambda: bool(load.totals().codes), 10, "a refused put")
    totals, audit = load.totals(), load.audit()
    assert set(totals.codes) == {"put -200"}
    assert totals.stored < totals.puts
    assert audit.lost == 0


@pytest.mark.alone
def test_a_call_over_its_deadline_is_late_by_what_it_was_over() -> None:
    store = Store()
    store.delay_s = 0.15
    spec = SPEC.model_copy(update={"deadline_ms": 50, "write_rate": 0.0})
    _, samples, _ = run(store, spec, calls=3)
    assert all(50 < s.late_ms < 150 for s in samples)


def test_an_exception_reaches_the_report_and_the_load_goes_on() -> None:
    store = Store()
    with loaded(store) as load:
        store.fail_get = ValueError("no")
        load.start(time.monotonic())
        wait_for(lambda: len(load.totals().errors) > 1, 10, "two errors")
        store.fail_get = None
    assert load.totals().errors[0] == "local: ValueError: no"


def test_what_no_peer_gives_is_written_as_an_engine_does() -> None:
    spec = SPEC.model_copy(update={"peer_rate": 100.0, "peer_owners": ("east",)})
    store = Store()
    _, samples, _ = run(store, spec)
    read = [s for s in samples if s.kind == "peer"]
    assert len(read) <= spec.fresh_chains
    assert all(s.misses == 4 for s in read)
    assert {s.owner for s in read} == {"east"}
    first = chain("t", "east", spec.local_chains, 4)
    assert all(key in store.blocks for key in first)


def test_afterwards_chains_of_peers_are_read_at_another_rate_and_with_another_deadline() -> None:
    spec = SPEC.model_copy(
        update={
            "peer_rate": 1.0, "peer_owners": ("east",), "peer_deadline_ms": 5, "writes_back": False,
            "after_s": 0.0, "after_peer_rate": 500.0, "after_peer_deadline_ms": 70,
        }
    )  # fmt: skip
    asked: list[int] = []

    class Asked(Store):
        def batch_get_into(
            self, keys: list[str], ptrs: list[int], sizes: list[int], deadline_ms: int
        ) -> list[int]:
            if ".east." in keys[0]:
                asked.append(deadline_ms)
            return super().batch_get_into(keys, ptrs, sizes, deadline_ms)

    with loaded(Asked(), spec) as load:
        load.start(time.monotonic() - 1.0)
        wait_for(lambda: len(asked) == spec.fresh_chains, 2.5, "all chains, at the later rate")
    assert set(asked) == {70}


def test_wrong_bytes_of_a_trusted_guest_are_counted_apart() -> None:
    spec = SPEC.model_copy(update={"guest_rate": 100.0, "guest_owners": ("mal",)})
    guest = Store()
    for number in range(spec.fresh_chains):
        for key in chain("t", "mal", number, 4):
            guest.blocks[key] = bytes(SIZE)
    guest.blocks[chain("t", "mal", 0, 4)[0]] = bytes(SIZE - 1)  # of the wrong length
    totals, _, _ = run(Store(), spec, guest=guest)
    assert totals.poisoned_bytes > SIZE
    assert totals.wrong_bytes == 0
    assert totals.codes == {}


def test_memory_knows_whether_it_was_touched() -> None:
    memory = Memory(2, SIZE)
    assert memory.untouched()
    memory.rows[1, 5] ^= 1
    assert not memory.untouched()
    memory.reuse()
    assert memory.untouched()


def test_the_control_thread_sums_delays_within_a_time() -> None:
    watch = ControlThread()
    try:
        watch._late.extend([(10.0, 10.1), (10.5, 10.8), (20.0, 21.0)])
        assert watch.delay(9.0, 11.0) == pytest.approx(0.4)
        assert watch.delay(10.7, 20.5) == pytest.approx(0.6)
        assert watch.delay(11.0, 12.0) == 0
    finally:
        watch.close()
