"""A group whose parts are stopped (SIGSTOP) and go on, and clients of its store."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from local_group.breaker import BreakerLimits
from local_group.outcome import Outcome, Status
from local_group.store import StoreClient, StoreLimits, StoreSettings
from tests.support.groups import RunningGroup, write_group
from tests.support.wait import wait_for

SIZE = 64 << 10
DEADLINE = 0.05
REUSED = 0xEE
# Mooncake's own timeouts end every overdue call; measured worst 3.4 s, on an idle machine.
MOONCAKE_ENDS = 15.0
NEVER_OPENS = StoreLimits(breaker=BreakerLimits(failures=1000, window=1000))


@contextmanager
def store_group(folder: Path) -> Iterator[RunningGroup]:
    """One store of 256 MiB, and its master."""
    with RunningGroup(write_group(folder, "east", stores={"dram": "256 MiB"})) as running:
        yield running


@contextmanager
def clients(group: RunningGroup) -> Iterator[Callable[..., StoreClient]]:
    """Yields what makes a client; all of them are closed at the end."""
    made: list[StoreClient] = []

    def build(limits: StoreLimits = NEVER_OPENS) -> StoreClient:
        made.append(StoreClient.connect(StoreSettings(group.config.master_address), limits))
        return made[-1]

    yield build
    for client in made:
        client.close(MOONCAKE_ENDS)


@contextmanager
def frozen(group: RunningGroup, child: str) -> Iterator[Callable[[], None]]:
    """Stops a child; yields what lets it go on, which is also done at the end."""
    process = psutil.Process(group.pid(child))
    process.send_signal(signal.SIGSTOP)
    wait_for(lambda: process.status() == psutil.STATUS_STOPPED, 5, f"{child} to stop")

    def thaw() -> None:
        process.send_signal(signal.SIGCONT)
        wait_for(lambda: process.status() != psutil.STATUS_STOPPED, 5, f"{child} to go on")

    try:
        yield thaw
    finally:
        thaw()


def statuses(outcomes: list[Outcome]) -> set[Status]:
    return {outcome.status for outcome in outcomes}


def drained(client: StoreClient) -> bool:
    """Is no call inside Mooncake, and no memory kept for one?"""
    stats = client.stats()
    return not (stats.stuck or stats.quarantined_bytes or stats.bounce_used_bytes)
