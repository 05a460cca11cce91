"""The store client on its caller's memory: no call is abandoned once bytes have moved."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from local_group import outcome as codes
from local_group.breaker import BreakerLimits
from local_group.outcome import Status
from tests.support.blocks import Memory
from tests.support.stores import SIZE, Make, is_calm, statuses, stores_over_fakes, warm_up
from tests.support.timing import Timed
from tests.support.wait import wait_for


@pytest.fixture
def make() -> Iterator[Make]:
    with stores_over_fakes() as build:
        yield build


def test_direct_calls_have_a_deadline_until_bytes_have_moved(make: Make) -> None:
    client, native = make(
        first_contact_s=0.05, breaker=BreakerLimits(failures=2, window=4, open_s=0.1, jitter=0.0)
    )
    memory = Memory(1, SIZE)
    native.thaw.clear()
    with Timed() as timed:
        outcomes = client.get_into_direct(["a"], memory.ptrs, memory.sizes)
    timed.check(0.05, "a first contact")
    assert statuses(outcomes) == [Status.TIMEOUT]
    native.thaw.set()
    wait_for(lambda: is_calm(client), 5, "the call to return")
    warm_up(client)
    assert client._gate.warm
    native.answer = -800
    for _ in range(2):
        client.get_into_direct(["a"], memory.ptrs, memory.sizes)
    assert client.stats().breaker == "open"
    assert not client._gate.warm, "a probe has a deadline again"


def test_direct_path_stops_at_the_first_part_that_fails_slowly(make: Make) -> None:
    client, native = make(direct_keys=2, slow_call_s=0.0)
    client._gate.warm = True  # as after a call that moved bytes; here every call is slow
    memory = Memory(6, SIZE)
    native.answer = -800
    outcomes = client.get_into_direct([f"k{i}" for i in range(6)], memory.ptrs, memory.sizes)
    assert [o.error_name for o in outcomes] == ["TRANSFER_FAIL"] * 2 + ["NOT_TRIED"] * 4
    assert native.calls == ["get"]


def test_close_waits_for_calls_in_flight(make: Make) -> None:
    client, native = make()
    warm_up(client)
    assert native.entered.acquire(timeout=5)
    native.thaw.clear()
    memory = Memory(1, SIZE)
    outcomes: list[codes.Outcome] = []
    direct = threading.Thread(
        target=lambda: outcomes.extend(client.get_into_direct(["a"], memory.ptrs, memory.sizes))
    )
    direct.start()
    assert native.entered.acquire(timeout=5)
    closing = threading.Thread(target=client.close, args=(20.0,))
    closing.start()
    wait_for(lambda: "closed=True" in repr(client), 5, "close to begin")
    assert not native.closed, "a zero-copy call is never cut off"
    native.thaw.set()
    direct.join()
    closing.join()
    assert native.closed
    assert statuses(outcomes) == [Status.MISS]
