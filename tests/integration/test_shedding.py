"""A real master that gets little of the CPU: peers are served less, say so, and then are served as before."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from federation.client import FederatedStore
from tests.support.federation import Federation, read, write
from tests.support.wait import wait_for

pytestmark = [pytest.mark.real, pytest.mark.alone]
FROZEN, RUNS = 0.06, 0.003
"""Seconds: a master that has a twentieth of the CPU, in slices so short that hardly a question fits one."""
READERS = 4
"""One brings too few samples a second to tell a slow master from chance."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with Federation(tmp_path_factory.mktemp("shed")) as federation:
        yield federation


class Throttled(threading.Thread):
    """A process that may run for a part of the time, as a cgroup's quota has it."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._ends = threading.Event()

    def __enter__(self) -> Throttled:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self.join()
        os.kill(self._pid, signal.SIGCONT)

    def run(self) -> None:
        while not self._ends.wait(RUNS):
            os.kill(self._pid, signal.SIGSTOP)
            time.sleep(FROZEN)
            os.kill(self._pid, signal.SIGCONT)


class Readers:
    """Engines of a peer that read block after block, none twice."""

    def __init__(self, store: FederatedStore, keys: Sequence[str], threads: int) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._keys = iter(keys)
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]

    def __enter__(self) -> Readers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._ends.is_set():
            with self._lock:
                key = next(self._keys, None)
            if key is None:
                return
            read(self._store, [key])


def test_peers_are_served_less_while_the_master_is_slow_and_then_as_before(
    pair: Federation, record_property: object
) -> None:
    west, east = pair.engine("west"), pair.store("east", deadline_ms=500)
    keys = [f"k{i}" for i in range(1200)]
    read(east, ["nobody-has"])
    for start in range(0, len(keys), 100):
        write(west, keys[start : start + 100])
    pair.wait_for_view("east", "west", len(keys))

    def shedding() -> dict[str, Any]:
        return dict((pair.status("west")["serving"] or {}).get("shedding") or {})

    chain = iter(keys)
    assert [read(east, [next(chain)]) for _ in range(20)] == [["peer"]] * 20
    wait_for(lambda: shedding().get("told_apart", 0) > 0, 10, "the usual to be learned")
    calm = shedding()
    assert calm["windows"] == calm["windows_max"]
    with Throttled(pair.groups["west"].pid("master")):
        began = time.monotonic()
        with Readers(east, keys[20:1000], READERS):
            wait_for(lambda: shedding()["refused"] > 0, 40, "a pull to be refused", every=0.2)
        after = time.monotonic() - began
        low = shedding()
    assert low["windows"] < calm["windows_max"] / 2
    assert pair.peer("east", "west")["breaker"] == "closed", "it is no fault of the peer"
    began = time.monotonic()
    wait_for(lambda: shedding()["windows"] == calm["windows_max"], 40, "all of it to come back")
    chain = iter(keys[1000:])
    wait_for(lambda: read(east, [next(chain)]) == ["peer"], 10, "blocks again")
    record_property(  # type: ignore[operator]
        "figure",
        f"a master with a twentieth of the time: {low['windows']} windows of {calm['windows_max']:g}, first "
        f"refusal after {after:.1f} s, {low['refused']} refused; "
        f"all back after {time.monotonic() - began:.1f} s",
    )
