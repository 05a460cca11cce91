"""A process that was stopped for a moment, with calls under way: its store's breaker stays closed."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from local_group.breaker import BreakerLimits
from local_group.store import StoreClient
from local_group.store_config import StoreLimits
from tests.support.fake_native import FakeNative
from tests.support.groups import environment

STALLS = 4
AT_ONCE = BreakerLimits(failures=1, window=1, open_s=0.05)
"""Whatever is held against Mooncake shows."""
STALL_SECONDS = 0.5
DEADLINE = 0.3


class Quick(FakeNative):
    """A healthy Mooncake, inside of which there is always a call."""

    def get(self, keys: Sequence[str], ptrs: Sequence[int], sizes: Sequence[int]) -> list[int]:
        time.sleep(0.1)
        return super().get(keys, ptrs, sizes)


def engine() -> None:
    """The process that is stopped; says how often its breaker opened, and how many calls were late."""
    native = Quick()
    native.blocks["a"] = b"x" * 1000
    limits = StoreLimits(bounce_bytes=1 << 20, window_bytes=1 << 18, breaker=AT_ONCE)
    client = StoreClient(native, limits)
    done = threading.Event()
    late = 0

    def read() -> None:
        nonlocal late
        buffer = ctypes.create_string_buffer(1000)
        while not done.is_set():
            (outcome,) = client.get_into(["a"], [ctypes.addressof(buffer)], [1000], DEADLINE)
            late += outcome.size != 1000

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    print("ready", flush=True)
    sys.stdin.readline()
    done.set()
    for reader in readers:
        reader.join()
    print(client.stats().breaker_opened_total, late, flush=True)
    client.close()


def test_a_process_that_stood_still_does_not_blame_mooncake() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "from tests.unit.test_store_stall import engine; engine()"],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            for _ in range(STALLS):
                os.kill(process.pid, signal.SIGSTOP)
                time.sleep(STALL_SECONDS)  # it is the fault
                os.kill(process.pid, signal.SIGCONT)
                time.sleep(0.3)
            process.stdin.write("\n")
            process.stdin.flush()
            opened, late = map(int, process.stdout.readline().split())
        finally:
            process.kill()
    assert opened == 0
    assert late > 0, "or the stalls were felt by no call"
