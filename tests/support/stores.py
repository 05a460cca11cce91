"""Store clients over a fake Mooncake that can be frozen, what tests ask of them, and real ones."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from local_group.breaker import BreakerLimits
from local_group.native import Native, StoreError
from local_group.outcome import Outcome, Status
from local_group.store import StoreClient, StoreLimits, StoreSettings
from tests.support.blocks import Memory
from tests.support.fake_native import FakeNative
from tests.support.wait import wait_for

LIMITS = StoreLimits(
    bounce_bytes=1 << 20,
    window_bytes=1 << 18,
    workers_get=1,
    workers_put=1,
    workers_meta=1,
    queue_max=2,
    stuck_calls_max=3,
    waiters_max=1,
    breaker=BreakerLimits(failures=1000, window=1000),
)
SIZE = 4096
Make = Callable[..., tuple[StoreClient, FakeNative]]
"""Makes a client and its Mooncake; keywords change `LIMITS`."""


@contextmanager
def stores_over_fakes() -> Iterator[Make]:
    """Thaws and closes what was made, in the end."""
    made: list[tuple[StoreClient, FakeNative]] = []

    def build(**changes: object) -> tuple[StoreClient, FakeNative]:
        native = FakeNative()
        client = StoreClient(native, replace(LIMITS, **changes))  # type: ignore[arg-type]
        made.append((client, native))
        return client, native

    yield build
    for client, native in made:
        native.thaw.set()
        client.close()


def statuses(outcomes: list[Outcome]) -> list[Status]:
    return [outcome.status for outcome in outcomes]


def names(outcomes: list[Outcome]) -> set[str]:
    return {outcome.error_name for outcome in outcomes}


def is_calm(client: StoreClient) -> bool:
    """Whether nothing is under way, overdue or out of use."""
    stats = client.stats()
    return not (stats.stuck or stats.running or stats.quarantined_bytes or stats.bounce_used_bytes)


def freeze_with_stuck_get(client: StoreClient, native: FakeNative) -> None:
    native.thaw.clear()
    memory = Memory(1, SIZE)
    assert statuses(client.get_into(["s"], memory.ptrs, memory.sizes, 0.05)) == [Status.TIMEOUT]


def warm_up(client: StoreClient) -> None:
    """Moves bytes, so that direct calls have no deadline."""
    memory = Memory(1, SIZE)
    assert statuses(client.put_from(["warm"], memory.ptrs, memory.sizes, 5.0)) == [Status.STORED]


def native_of(address: str) -> Native:
    """A client of a master that runs; Mooncake gives up in half a second, which a busy machine may need."""

    def connect() -> Native | None:
        with contextlib.suppress(StoreError):
            return Native(StoreSettings(address))
        return None

    found = wait_for(connect, 10, f"a client of {address}")
    assert found is not None
    return found
