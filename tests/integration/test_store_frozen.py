"""A real store node, or master, that is stopped in the middle of things (SIGSTOP), and goes on.

What must hold: calls with a deadline return in time; the caller's memory, reused at once, is never
touched again; no stored block is ever wrong; all that was quarantined comes back.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from local_group.breaker import BreakerLimits
from local_group.outcome import Outcome, Status
from local_group.store import StoreClient, StoreLimits, StoreSettings
from tests.support.blocks import Memory, block_bytes
from tests.support.frozen import (
    DEADLINE,
    MOONCAKE_ENDS,
    REUSED,
    SIZE,
    clients,
    drained,
    frozen,
    statuses,
    store_group,
)
from tests.support.groups import RunningGroup, environment
from tests.support.timing import Timed
from tests.support.wait import wait_for

pytestmark = [pytest.mark.real, pytest.mark.alone]
COUNT = 64


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGroup]:
    with store_group(tmp_path_factory.mktemp("g")) as running:
        yield running


@pytest.fixture
def connect(group: RunningGroup) -> Iterator[Callable[..., StoreClient]]:
    with clients(group) as build:
        yield build


def store(client: StoreClient, keys: list[str], size: int = SIZE) -> None:
    memory = Memory(len(keys), size)
    memory.fill(keys)
    outcomes = client.put_from(keys, memory.ptrs, memory.sizes, 20.0)
    assert statuses(outcomes) == {Status.STORED}, outcomes


def answers(client: StoreClient, keys: list[str], memory: Memory) -> bool:
    """Whether every key is a hit or a miss: Mooncake needs a moment to reconnect."""
    outcomes = client.get_into(keys, memory.ptrs, memory.sizes, 10.0)
    return statuses(outcomes) <= {Status.HIT, Status.MISS}


def check_blocks(client: StoreClient, there: list[str], maybe: list[str]) -> int:
    """Every block is right; those of `maybe` may be absent. Returns how many of those are there."""
    keys = there + maybe
    memory = Memory(len(keys), SIZE)
    wait_for(lambda: answers(client, keys, memory), 30, "the store to answer again")
    outcomes = client.get_into(keys, memory.ptrs, memory.sizes, 20.0)
    for i, (key, outcome) in enumerate(zip(keys, outcomes, strict=True)):
        if outcome.status is Status.MISS and i >= len(there):
            continue
        assert outcome.status is Status.HIT, f"{key}: {outcome}"
        assert memory.place(i) == block_bytes(key, SIZE), f"{key} has wrong bytes"
    return sum(o.status is Status.HIT for o in outcomes[len(there) :])


@pytest.mark.parametrize("child", ["store-0", "master"])
@pytest.mark.parametrize("thawed", ["while the calls are inside", "after Mooncake gave up"])
def test_overdue_calls_harm_nothing(
    group: RunningGroup, connect: Callable[..., StoreClient], child: str, thawed: str
) -> None:
    client = connect()
    there: list[str] = []
    maybe: list[str] = []
    for n in range(2):
        name = f"{child}-{thawed[:5]}-{n}"
        fresh = [f"{name}-there-{i}" for i in range(COUNT)]
        late = [f"{name}-late-{i}" for i in range(COUNT)]
        wait_for(lambda: answers(client, ["none"], Memory(1, SIZE)), 30, "the store to answer")
        store(client, fresh)
        there += fresh
        maybe += late
        later = [f"{name}-later-{i}" for i in range(COUNT)]
        maybe += later
        reading, writing = Memory(COUNT, SIZE), Memory(COUNT, SIZE)
        writing.fill(late)
        with frozen(group, child) as thaw:
            with Timed() as timed:
                got = client.get_into(fresh, reading.ptrs, reading.sizes, DEADLINE)
            timed.check(DEADLINE, "get")
            with Timed() as timed:
                put = client.put_from(late, writing.ptrs, writing.sizes, DEADLINE)
            timed.check(DEADLINE, "put")
            assert statuses(got) == statuses(put) == {Status.TIMEOUT}
            # Another write, while the first one is still inside: were bounce memory reused too
            # soon, its bytes would become those of the first.
            writing.fill(later)
            put = client.put_from(later, writing.ptrs, writing.sizes, DEADLINE)
            assert statuses(put) == {Status.TIMEOUT}
            reading.fill_byte(REUSED)
            writing.fill_byte(REUSED)
            stats = client.stats()
            assert stats.stuck == 3
            assert stats.quarantined_bytes == 3 * COUNT * SIZE
            if thawed.startswith("after"):
                wait_for(lambda: drained(client), MOONCAKE_ENDS, "Mooncake's own timeouts")
            thaw()
        wait_for(lambda: drained(client), MOONCAKE_ENDS, "the quarantine to drain")
        check_blocks(client, there, maybe)
        assert reading.all_are(REUSED), "an overdue get wrote to memory that was reused"
        assert writing.all_are(REUSED)
    assert client.stats().stuck_total == 6


def test_exists_and_remove_keep_their_deadline(
    group: RunningGroup, connect: Callable[..., StoreClient]
) -> None:
    client = connect()
    keys = [f"meta-{i}" for i in range(4)]
    store(client, keys)
    assert statuses(client.exists([*keys, "none"], 10.0)) == {Status.HIT, Status.MISS}
    with frozen(group, "master"):
        with Timed() as timed:
            exists = client.exists(keys, DEADLINE)
        timed.check(DEADLINE, "exists")
        with Timed() as timed:
            removed = client.remove(["none"], DEADLINE)
        timed.check(DEADLINE, "remove")
        assert statuses(exists) == statuses(removed) == {Status.TIMEOUT}
    wait_for(lambda: drained(client), MOONCAKE_ENDS, "the calls to return")
    check_blocks(client, keys, [])


def test_exists_without_a_deadline_ends_when_mooncake_ends_it(
    group: RunningGroup, connect: Callable[..., StoreClient]
) -> None:
    client = connect()
    keys = [f"endless-{i}" for i in range(4)]
    store(client, keys)
    assert statuses(client.exists([*keys, "none"], None)) == {Status.HIT, Status.MISS}
    with frozen(group, "master"):
        with Timed() as timed:
            found = client.exists(keys, None)
        timed.check(StoreSettings("").rpc_timeout_ms / 1000 + 0.1, "exists")
        assert statuses(found) == {Status.TIMEOUT}
        assert client.stats().stuck == 0, "nothing is left behind"
        assert client.unsettled(), "it has seen Mooncake stall"
    wait_for(lambda: drained(client), MOONCAKE_ENDS, "the call to return")
    check_blocks(client, keys, [])


def stop_in_the_middle(
    group: RunningGroup, client: StoreClient, keys: list[str], late: list[str], size: int
) -> None:
    """One read of `keys` and one write of `late`, with the store stopped once a call is inside."""
    reading, writing = Memory(len(keys), size), Memory(len(late), size)
    writing.fill(late)
    results: list[list[Outcome]] = []

    def read() -> None:
        results.append(client.get_into(keys, reading.ptrs, reading.sizes, DEADLINE))

    def write() -> None:
        results.append(client.put_from(late, writing.ptrs, writing.sizes, DEADLINE))

    threads = [threading.Thread(target=read), threading.Thread(target=write)]
    for thread in threads:
        thread.start()
    wait_for(lambda: client.stats().running or len(results) == 2, 5, "a call", every=0.001)
    with frozen(group, "store-0"):
        for thread in threads:
            thread.join()
        for outcomes in results:
            assert statuses(outcomes) <= {Status.HIT, Status.STORED, Status.TIMEOUT}
        reading.fill_byte(REUSED)
        writing.fill_byte(REUSED)
        wait_for(lambda: drained(client), MOONCAKE_ENDS, "Mooncake's own timeouts")
    again = Memory(len(keys) + len(late), size)
    wait_for(lambda: answers(client, keys + late, again), 30, "the store to answer again")
    outcomes = client.get_into(keys + late, again.ptrs, again.sizes, 20.0)
    for i, (key, outcome) in enumerate(zip(keys + late, outcomes, strict=True)):
        if outcome.status is Status.HIT:
            assert again.place(i) == block_bytes(key, size), f"{key} has wrong bytes"
        else:
            assert key in late, f"{key}: {outcome}"
    assert reading.all_are(REUSED)
    client.remove(late, 10.0, force=True)


def test_a_stop_in_the_middle_of_a_transfer_harms_nothing(
    group: RunningGroup, connect: Callable[..., StoreClient]
) -> None:
    client = connect()
    keys = [f"body-{i}" for i in range(6)]
    store(client, keys, 4 << 20)
    for n in range(2):
        stop_in_the_middle(group, client, keys, [f"body-late-{n}-{i}" for i in range(2)], 4 << 20)


def test_zero_copy_calls_end_by_mooncakes_own_timeouts(
    group: RunningGroup, connect: Callable[..., StoreClient]
) -> None:
    client = connect()
    there = [f"direct-{i}" for i in range(128)]
    late = [f"direct-late-{i}" for i in range(128)]
    store(client, there)
    reading, writing = Memory(128, SIZE), Memory(128, SIZE)
    for memory in (reading, writing):
        assert client.register_buffer(memory.ptrs[0], memory.array.nbytes) == 0
    with frozen(group, "store-0"):
        with Timed() as timed:
            got = client.get_into_direct(there, reading.ptrs, reading.sizes)
        timed.check(6.0, "a zero-copy get")
        reading.fill_byte(REUSED)
        assert {o.error_name for o in got} == {"TRANSFER_FAIL"}
        writing.fill(late)
        with Timed() as timed:
            put = client.put_from_direct(late, writing.ptrs, writing.sizes)
        timed.check(6.0, "a zero-copy put")
        assert {o.error_name for o in put} == {"TRANSFER_FAIL"}
        writing.fill_byte(REUSED)
    check_blocks(client, there, late)
    assert reading.all_are(REUSED), "Mooncake wrote to memory after it had returned"
    with frozen(group, "master"):
        with Timed() as timed:
            got = client.get_into_direct(there, reading.ptrs, reading.sizes)
        timed.check(1.0, "a zero-copy get without a master")
        assert {o.error_name for o in got} == {"RPC_TIMEOUT"}
        assert statuses(got) == {Status.TIMEOUT}
    assert client.unregister_buffer(reading.ptrs[0]) == 0
    assert client.unregister_buffer(writing.ptrs[0]) == 0


def test_the_first_contact_with_a_frozen_node_has_a_deadline(
    group: RunningGroup, connect: Callable[..., StoreClient]
) -> None:
    keys = [f"cold-{i}" for i in range(8)]
    store(connect(), keys)
    client = connect(StoreLimits(first_contact_s=DEADLINE))
    memory = Memory(8, SIZE)
    with frozen(group, "store-0"):
        with Timed() as timed:
            got = client.get_into_direct(keys, memory.ptrs, memory.sizes)
        timed.check(DEADLINE, "the first direct call")
        assert statuses(got) == {Status.TIMEOUT}
        memory.fill_byte(REUSED)
    wait_for(lambda: drained(client), MOONCAKE_ENDS, "the handshake to end")
    assert memory.all_are(REUSED)
    check_blocks(client, keys, [])


def test_the_breaker_opens_answers_at_once_and_recovers(
    group: RunningGroup, connect: Callable[..., StoreClient]
) -> None:
    client = connect(
        StoreLimits(breaker=BreakerLimits(failures=3, window=6, open_s=0.5, open_max_s=1.0))
    )
    keys = [f"breaker-{i}" for i in range(8)]
    store(client, keys)
    memory = Memory(8, SIZE)

    def opens() -> bool:
        client.get_into(keys, memory.ptrs, memory.sizes, DEADLINE)
        return client.stats().breaker == "open"

    with frozen(group, "store-0"):
        wait_for(opens, 10, "the breaker to open")
        with Timed() as timed:
            got = client.get_into(keys, memory.ptrs, memory.sizes, 5.0)
            exists = client.exists(keys, 5.0)
        if client.stats().breaker == "open":
            timed.check(0.0, "calls with the breaker open")
            assert {o.error_name for o in got + exists} == {"BREAKER_OPEN"}

    def recovered() -> bool:
        got = client.get_into(keys, memory.ptrs, memory.sizes, 1.0)
        return statuses(got) == {Status.HIT}

    wait_for(recovered, 30, "reads to come back by themselves", every=0.1)
    assert client.stats().breaker == "closed"
    assert all(memory.place(i) == block_bytes(key, SIZE) for i, key in enumerate(keys))


async def test_awaited_calls_keep_their_deadline_and_the_loop_runs_on(
    group: RunningGroup, connect: Callable[..., StoreClient]
) -> None:
    client = connect()
    keys = [f"await-{i}" for i in range(16)]
    items = [(key, block_bytes(key, SIZE)) for key in keys]
    assert statuses(await client.write(items, 20.0)) == {Status.STORED}
    late = [(f"{key}-late", block_bytes(f"{key}-late", SIZE)) for key in keys]
    with frozen(group, "store-0"):
        with Timed() as timed:
            batch, put = await asyncio.gather(
                client.read(keys, [SIZE] * 16, DEADLINE), client.write(late, DEADLINE)
            )
        timed.check(DEADLINE, "read and write")
        batch.release()
        assert statuses(batch.outcomes) == statuses(put) == {Status.TIMEOUT}
        assert client.stats().stuck == 2
    await asyncio.to_thread(wait_for, lambda: drained(client), MOONCAKE_ENDS, "the quarantine")
    await asyncio.to_thread(check_blocks, client, keys, [key for key, _ in late])
    async with await client.read(keys, [SIZE] * 16, 10.0) as batch:
        assert [bytes(batch.view(i)) for i in range(16)] == [block for _, block in items]


EXITING = """
import os, signal, sys
import numpy as np
from local_group.store import StoreClient, StoreSettings
address, pid, close = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "close"
client = StoreClient.connect(StoreSettings(address))
memory = np.ones(65536, dtype=np.uint8)
put = client.put_from(["exit"], [memory.ctypes.data], [65536], 10.0)
os.kill(pid, signal.SIGSTOP)
got = client.get_into(["exit"], [memory.ctypes.data], [65536], 0.05)
put = client.put_from([f"exit-{os.getpid()}"], [memory.ctypes.data], [65536], 0.05)
assert client.stats().stuck == 2, client.stats()
if close:
    assert client.close(0.1) is False
print("leaving", flush=True)
sys.exit(7)
"""


@pytest.mark.parametrize("close", ["close", "leave"])
def test_the_interpreter_exits_at_once_with_calls_stuck(group: RunningGroup, close: str) -> None:
    arguments = [group.config.master_address, str(group.pid("store-0")), close]
    with subprocess.Popen(
        [sys.executable, "-c", EXITING, *arguments],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            with Timed() as timed:
                process.wait(20)
            assert line == "leaving\n", process.stderr.read() if process.stderr else ""
            assert process.returncode == 7, "the exit status is the program's, no signal"
            timed.check(0.5, "the exit")
        finally:
            process.kill()
            group.kill("store-0", signal.SIGCONT)
