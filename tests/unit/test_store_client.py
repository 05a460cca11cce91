"""The store client on its bounce memory: deadlines, limits, quarantine, breaker, close."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence

import pytest

from local_group import outcome as codes
from local_group.breaker import BreakerLimits
from local_group.outcome import Status
from local_group.store import StoreClosed
from tests.support.blocks import Memory, block_bytes
from tests.support.stores import (
    SIZE,
    Make,
    freeze_with_stuck_get,
    is_calm,
    names,
    statuses,
    stores_over_fakes,
)
from tests.support.timing import Timed
from tests.support.wait import wait_for


@pytest.fixture
def make() -> Iterator[Make]:
    with stores_over_fakes() as build:
        yield build


def test_a_batch_larger_than_a_window_goes_through_in_order(make: Make) -> None:
    client, native = make()
    n = 3 * (1 << 18) // SIZE + 5
    keys = [f"k{i}" for i in range(n)]
    source, target = Memory(n, SIZE), Memory(n, SIZE)
    source.fill(keys)
    assert set(statuses(client.put_from(keys, source.ptrs, source.sizes, 5.0))) == {Status.STORED}
    assert native.calls == ["put"] * 4
    del native.blocks["k7"]
    outcomes = client.get_into(keys, target.ptrs, target.sizes, 5.0)
    assert [o.size for o in outcomes] == [SIZE if i != 7 else 0 for i in range(n)]
    assert outcomes[7].status is Status.MISS
    assert all(target.place(i) == source.place(i) for i in range(n) if i != 7)
    assert target.place(7) == bytes(SIZE)
    assert is_calm(client)
    assert client.stats().outcomes == {"put.stored": n, "get.hit": n - 1, "get.miss": 1}


def test_a_shorter_block_leaves_the_rest_of_the_callers_memory_alone(make: Make) -> None:
    client, native = make()
    native.blocks["short"] = b"abc"
    memory = Memory(1, SIZE)
    memory.fill_byte(0xEE)
    (outcome,) = client.get_into(["short"], memory.ptrs, memory.sizes, 1.0)
    assert outcome == (Status.HIT, 3, 0)
    assert memory.place(0) == b"abc" + b"\xee" * (SIZE - 3)


@pytest.mark.parametrize(
    ("keys", "ptrs", "sizes", "expected"),
    [
        (["a"], [], [1], ["INVALID_PARAMS"]),
        (["a", ""], None, [8, 8], ["OK", "INVALID_PARAMS"]),
        (["", "a"], None, [8, 8], ["INVALID_PARAMS", "OK"]),
        (["a", "b"], None, [0, 8], ["INVALID_PARAMS", "OK"]),
        (["a", "b"], None, [-1, 8], ["INVALID_PARAMS", "OK"]),
        (["a", "b"], [0, None], [8, 8], ["INVALID_PARAMS", "OK"]),
        (["a", "b"], None, [(1 << 18) + 1, 8], ["BOUNCE_EXCEEDED", "OK"]),
        ([7, "b"], None, [8, 8], ["INVALID_PARAMS", "OK"]),
        ([], [], [], []),
    ],
)
def test_bad_arguments_are_told_per_key(
    make: Make,
    keys: list[str],
    ptrs: list[int | None] | None,
    sizes: list[int],
    expected: list[str],
) -> None:
    client, _ = make()
    memory = Memory(2, SIZE)
    places = memory.ptrs[: len(keys)] if ptrs is None else ptrs
    real = [memory.ptrs[i] if ptr is None else ptr for i, ptr in enumerate(places)]
    assert [o.error_name for o in client.put_from(keys, real, sizes, 1.0)] == expected
    if "BOUNCE_EXCEEDED" not in expected:
        direct = {o.error_name for o in client.put_from_direct(keys, real, sizes)}
        assert direct <= {"INVALID_PARAMS", "OK"}
    assert is_calm(client)


def test_overdue_get_never_touches_the_callers_memory(make: Make) -> None:
    client, native = make()
    native.blocks["s"] = block_bytes("s", SIZE)
    native.thaw.clear()
    memory = Memory(1, SIZE)
    with Timed() as timed:
        outcomes = client.get_into(["s"], memory.ptrs, memory.sizes, 0.05)
    timed.check(0.05, "a get")
    assert outcomes == [(Status.TIMEOUT, 0, codes.DEADLINE_PASSED)]
    assert client.stats().stuck == 1
    assert client.stats().quarantined_bytes == SIZE
    assert client.stats().bounce_used_bytes == SIZE
    memory.fill_byte(0xEE)
    native.thaw.set()
    wait_for(lambda: is_calm(client), 5, "the quarantine to drain")
    assert memory.all_are(0xEE)
    assert client.stats().stuck_total == 1


def test_overdue_put_stores_the_bytes_of_its_time(make: Make) -> None:
    client, native = make()
    native.thaw.clear()
    memory = Memory(2, SIZE)
    memory.fill(["a", "b"])
    assert set(statuses(client.put_from(["a", "b"], memory.ptrs, memory.sizes, 0.05))) == {
        Status.TIMEOUT
    }
    memory.fill_byte(0xEE)
    native.thaw.set()
    wait_for(lambda: is_calm(client), 5, "the quarantine to drain")
    assert native.blocks == {key: block_bytes(key, SIZE) for key in ("a", "b")}


def test_a_call_that_waited_out_its_deadline_in_the_queue_never_reaches_mooncake(
    make: Make,
) -> None:
    client, native = make()
    freeze_with_stuck_get(client, native)
    memory = Memory(1, SIZE)
    with Timed() as timed:
        outcomes = client.get_into(["q"], memory.ptrs, memory.sizes, 0.03)
    timed.check(0.03, "a queued get")
    assert statuses(outcomes) == [Status.TIMEOUT]
    assert client.stats().dropped_total == 1
    assert client.stats().bounce_used_bytes == SIZE, "only the stuck call holds memory"
    native.thaw.set()
    wait_for(lambda: is_calm(client), 5, "the stuck call to return")
    assert native.calls == ["get"]


def test_a_full_queue_is_told_at_once(make: Make) -> None:
    client, native = make()
    freeze_with_stuck_get(client, native)
    results: list[list[codes.Outcome]] = []

    def ask() -> None:
        memory = Memory(1, SIZE)
        results.append(client.get_into(["q"], memory.ptrs, memory.sizes, 20.0))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    wait_for(lambda: client.stats().queued == 2, 5, "two calls to queue")
    memory = Memory(1, SIZE)
    with Timed() as timed:
        outcomes = client.get_into(["q"], memory.ptrs, memory.sizes, 20.0)
    timed.check(0.0, "a refused get")
    assert names(outcomes) == {"QUEUE_FULL"}
    native.blocks["q"] = b"q"
    native.thaw.set()
    for thread in threads:
        thread.join()
    assert [statuses(r) for r in results] == [[Status.HIT], [Status.HIT]]


def test_stuck_calls_are_bounded(make: Make) -> None:
    client, native = make(stuck_calls_max=2)
    freeze_with_stuck_get(client, native)
    assert names(client.exists(["a"], 0.03)) == {"DEADLINE_PASSED"}
    assert client.stats().stuck == 2
    memory = Memory(1, SIZE)
    with Timed() as timed:
        outcomes = client.put_from(["a"], memory.ptrs, memory.sizes, 20.0)
    timed.check(0.0, "a put with all calls stuck")
    assert names(outcomes) == {"STUCK_LIMIT"}
    native.thaw.set()
    wait_for(lambda: is_calm(client), 5, "the stuck calls to return")
    assert statuses(client.put_from(["a"], memory.ptrs, memory.sizes, 5.0)) == [Status.STORED]


def test_quarantine_is_bounded_by_the_bounce_memory_and_room_is_waited_for(make: Make) -> None:
    client, native = make(bounce_bytes=1 << 18, window_bytes=1 << 18)
    big, small = Memory(1, 1 << 18), Memory(1, SIZE)
    native.thaw.clear()
    client.get_into(["s"], big.ptrs, big.sizes, 0.03)
    with Timed() as timed:
        outcomes = client.put_from(["a"], small.ptrs, small.sizes, 0.03)
    timed.check(0.03, "a put without room")
    assert statuses(outcomes) == [Status.TIMEOUT]
    thaw = threading.Timer(0.05, native.thaw.set)
    thaw.start()
    assert statuses(client.put_from(["a"], small.ptrs, small.sizes, 5.0)) == [Status.STORED]
    thaw.join()
    assert is_calm(client)


def test_breaker_opens_answers_at_once_and_closes_by_a_real_call(make: Make) -> None:
    client, native = make(
        breaker=BreakerLimits(failures=2, window=4, open_s=0.1, open_max_s=0.1, jitter=0.0)
    )
    memory = Memory(1, SIZE)
    native.answer = -800
    for _ in range(2):
        assert names(client.get_into(["a"], memory.ptrs, memory.sizes, 1.0)) == {"TRANSFER_FAIL"}
    assert client.stats().breaker == "open"
    calls = len(native.calls)
    for outcomes in (
        client.get_into(["a"], memory.ptrs, memory.sizes, 1.0),
        client.put_from(["a"], memory.ptrs, memory.sizes, 1.0),
        client.get_into_direct(["a"], memory.ptrs, memory.sizes),
        client.exists(["a"], 1.0),
    ):
        assert names(outcomes) == {"BREAKER_OPEN"}
        assert statuses(outcomes) == [Status.ERROR]
    assert len(native.calls) == calls
    native.answer = None
    native.blocks["a"] = b"a"
    wait_for(lambda: client.stats().breaker == "half_open", 5, "the breaker to allow a probe")
    assert statuses(client.exists(["a"], 1.0)) == [Status.HIT], "exists invites the probe"
    assert client.stats().breaker == "half_open", "but is none for data"
    assert statuses(client.get_into(["a"], memory.ptrs, memory.sizes, 1.0)) == [Status.HIT]
    assert client.stats().breaker == "closed"


@pytest.mark.parametrize("code", [-704, -200, -600, -706, -707])
def test_answers_of_a_healthy_mooncake_do_not_open_the_breaker(make: Make, code: int) -> None:
    client, native = make(breaker=BreakerLimits(failures=1, window=1))
    memory = Memory(1, SIZE)
    native.answer = code
    client.get_into(["a"], memory.ptrs, memory.sizes, 1.0)
    client.put_from(["a"], memory.ptrs, memory.sizes, 1.0)
    client.remove(["a"], 1.0)
    stats = client.stats()
    assert (stats.breaker, stats.breaker_meta) == ("closed", "closed")


def test_overdue_and_starved_calls_open_the_breaker(make: Make) -> None:
    client, native = make(breaker=BreakerLimits(failures=2, window=4, open_s=30, open_max_s=30))
    freeze_with_stuck_get(client, native)
    assert client.stats().breaker == "closed"
    memory = Memory(1, SIZE)
    client.get_into(["q"], memory.ptrs, memory.sizes, 0.03)
    assert client.stats().breaker == "open", "its worker was held by an overdue call"


def test_a_deadline_too_short_to_prove_anything_does_not_open_the_breaker(make: Make) -> None:
    client, native = make(breaker=BreakerLimits(failures=1, window=1), proof_s=10.0)
    freeze_with_stuck_get(client, native)
    assert client.stats().breaker == "closed"


def test_slow_calls_open_the_breaker(make: Make) -> None:
    client, native = make(breaker=BreakerLimits(failures=1, window=1), slow_call_s=0.0)
    native.blocks["a"] = b"a"
    assert statuses(client.exists(["a"], 1.0)) == [Status.HIT]
    assert client.stats().breaker_meta == "open"


@pytest.mark.parametrize("timeout", [None, 5.0])
def test_names_are_made_in_the_thread_that_asks(make: Make, timeout: float | None) -> None:
    client, native = make(exists_keys=2)
    native.blocks = {"p/a": b"x", "p/c": b"x"}
    made_in: list[int] = []
    asked_in: list[int] = []
    plain = native.exists

    def named(keys: Sequence[str]) -> list[str]:
        made_in.append(threading.get_ident())
        return [f"p/{key}" for key in keys]

    def exists(keys: Sequence[str]) -> list[int]:
        asked_in.append(threading.get_ident())
        return plain(keys)

    native.exists = exists  # type: ignore[method-assign]
    outcomes = client.exists(["a", "b", "c"], timeout, named)
    assert statuses(outcomes) == [Status.HIT, Status.MISS, Status.HIT]
    assert made_in == asked_in
    assert len(asked_in) == 2
    assert (set(asked_in) == {threading.get_ident()}) is (timeout is None)
    assert client.stats().outcomes == {"exists.hit": 2, "exists.miss": 1}


def test_a_question_without_a_deadline_counts_for_the_breaker(make: Make) -> None:
    client, native = make(breaker=BreakerLimits(failures=2, window=4, open_s=30, open_max_s=30))
    native.answer = -900
    assert names(client.exists(["a"], None)) == {"RPC_FAIL"}
    assert names(client.exists(["a"], None)) == {"RPC_FAIL"}
    assert client.stats().breaker_meta == "open"
    assert names(client.exists(["a"], None)) == {"BREAKER_OPEN"}
    assert native.calls == ["exists"] * 2


def test_keys_that_mooncake_cannot_take_are_invalid_without_a_deadline_too(make: Make) -> None:
    client, native = make()

    def refuses(keys: Sequence[str]) -> list[int]:
        raise TypeError("incompatible function arguments")

    native.exists = refuses  # type: ignore[method-assign]
    assert names(client.exists(["a"], None)) == {"INVALID_PARAMS"}
    assert is_calm(client)
    assert client.stats().breaker_meta == "closed"


def test_close_leaves_a_question_without_a_deadline_alone(make: Make) -> None:
    client, native = make()
    native.thaw.clear()
    thread = threading.Thread(target=client.exists, args=(["a"], None))
    thread.start()
    assert native.entered.acquire(timeout=5)
    assert client.close(timeout=0.05) is False
    assert native.leaked
    native.thaw.set()
    thread.join()


def test_after_close_nothing_reaches_mooncake(make: Make) -> None:
    client, native = make()
    assert client.close() is True
    assert native.closed
    memory = Memory(1, SIZE)
    for call in (
        lambda: client.get_into(["a"], memory.ptrs, memory.sizes, 1.0),
        lambda: client.put_from(["a"], memory.ptrs, memory.sizes, 1.0),
        lambda: client.exists(["a"], 1.0),
        lambda: client.remove(["a"], 1.0),
        lambda: client.get_into_direct(["a"], memory.ptrs, memory.sizes),
        lambda: client.put_from_direct(["a"], memory.ptrs, memory.sizes),
        lambda: client.register_buffer(memory.ptrs[0], SIZE),
        lambda: client.unregister_buffer(memory.ptrs[0]),
        lambda: asyncio.run(client.read(["a"], [1], 1.0)),
        lambda: asyncio.run(client.write([("a", b"a")], 1.0)),
    ):
        with pytest.raises(StoreClosed):
            call()
    assert native.calls == []
    assert client.close() is True, "idempotent"


def test_close_leaves_a_stuck_call_alone(make: Make) -> None:
    client, native = make()
    freeze_with_stuck_get(client, native)
    with Timed() as timed:
        assert client.close(timeout=0.05) is False
    timed.check(0.05, "close")
    assert native.leaked
    assert not native.closed
    native.thaw.set()
    wait_for(lambda: is_calm(client), 5, "the stuck call to return")


def test_a_raising_call_is_raised_and_leaks_nothing(make: Make) -> None:
    client, native = make()
    memory = Memory(1, SIZE)

    def broken(*_: object) -> list[int]:
        raise RuntimeError("boom")

    native.get = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="boom"):
        client.get_into(["a"], memory.ptrs, memory.sizes, 1.0)
    assert is_calm(client)
    assert statuses(client.exists(["a"], 1.0)) == [Status.MISS]
