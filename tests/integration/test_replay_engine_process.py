"""Engine processes of a replay, on a store in their own memory: no Mooncake is started."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from federation.bench.delay import MachineDelay
from federation.bench.engines import BenchError, EngineProcess
from tests.support.wait import wait_for

pytestmark = [pytest.mark.real, pytest.mark.alone]


def a_spec(tmp_path: Path, **change: Any) -> dict[str, Any]:
    base = {
        "factory": "tests.support.memory_store:open_memory",
        "settings": {},
        "namespace": "00" * 16,
        "block_bytes": 4096,
        "chain_blocks": 64,
        "threads": 4,
        "deadline_ms": 1000,
        "service": "engine",
        "group": "east",
        "traces": str(tmp_path / "traces"),
    }
    return base | change


async def test_it_answers_many_at_once_and_ends_with_its_stats(tmp_path: Path) -> None:
    engine = await EngineProcess.start(a_spec(tmp_path), tmp_path / "log")
    try:
        chains = [tuple(f"{i % 5}-{j}" for j in range(10)) for i in range(50)]
        answers = await asyncio.gather(*(engine.ask(i, c, 20) for i, c in enumerate(chains)))
    finally:
        stats = await engine.finish()
    assert [a.number for a in answers] == list(range(50))
    assert sum(a.wrong_bytes + len(a.errors) for a in answers) == 0
    assert sum(a.local for a in answers) > 0
    assert stats["blocks"] == 50
    assert stats["spans_dropped"] == 0
    assert 0 <= stats["machine_delay_ms"] < 10_000
    assert 0 < stats["thread_delay_ms"] < 10_000


async def test_a_store_that_does_not_open_is_told_with_its_reason(tmp_path: Path) -> None:
    spec = a_spec(tmp_path, settings={"refuse": True})
    with pytest.raises(BenchError, match="refused, as asked"):
        await EngineProcess.start(spec, tmp_path / "log")


async def test_an_engine_that_crashes_is_told_with_its_last_words(tmp_path: Path) -> None:
    spec = a_spec(tmp_path, factory="tests.support.memory_store:open_dying")
    engine = await EngineProcess.start(spec, tmp_path / "log")
    with pytest.raises(BenchError, match="about to crash"):
        await engine.ask(0, ("a",), 20)
    with pytest.raises(BenchError):
        await engine.ask(1, ("a",), 20)
    assert await engine.finish() == {}


async def test_an_engine_that_hangs_is_told_and_killed(tmp_path: Path) -> None:
    engine = await EngineProcess.start(a_spec(tmp_path), tmp_path / "log")
    (pid,) = [p.pid for p in psutil.Process().children() if p.status() != psutil.STATUS_ZOMBIE]
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(BenchError, match="did not answer request 7"):
        await engine.ask(7, ("a",), 0.3)
    await engine.kill()
    assert not psutil.pid_exists(pid)


@pytest.fixture
def machine() -> Iterator[MachineDelay]:
    made = MachineDelay()
    yield made
    made.close()
    assert not psutil.pid_exists(made.pid)


def test_a_machine_that_stalls_is_seen_from_another_process(machine: MachineDelay) -> None:
    before = time.monotonic()
    os.kill(machine.pid, signal.SIGSTOP)  # to the sleeper it is the same
    stopped = time.monotonic()
    time.sleep(0.4)
    middle = time.monotonic()
    assert machine.within(stopped, middle) >= 0.35  # under way
    os.kill(machine.pid, signal.SIGCONT)
    wait_for(lambda: machine.worst() >= 0.35, 10, "the delay to be noted")
    after = time.monotonic()
    assert 0.35 <= machine.within(before, after) <= after - before
    # Of a stall that a call saw a part of, that part alone is its excuse.
    assert machine.within(middle - 0.1, middle) == pytest.approx(0.1)
    assert machine.within(before - 10, before - 5) == 0
    machine.restart()
    assert machine.worst() < 0.35


def test_a_call_that_holds_the_interpreters_lock_is_no_stall_of_the_machine(
    machine: MachineDelay,
) -> None:
    before = time.monotonic()
    ctypes.PyDLL(None).usleep(500_000)
    assert machine.within(before, time.monotonic()) < 0.4


def test_without_its_process_nothing_is_excused(machine: MachineDelay) -> None:
    os.kill(machine.pid, signal.SIGKILL)
    died = time.monotonic()
    wait_for(lambda: psutil.Process(machine.pid).status() == psutil.STATUS_ZOMBIE, 10, "its end")
    time.sleep(0.3)
    assert machine.within(died, time.monotonic()) < 0.1


async def test_what_measures_the_machine_ends_with_a_killed_engine(tmp_path: Path) -> None:
    engine = await EngineProcess.start(a_spec(tmp_path), tmp_path / "log")
    (process,) = [p for p in psutil.Process().children() if p.status() != psutil.STATUS_ZOMBIE]
    sleepers = [p for p in process.children() if any("sleeper" in arg for arg in p.cmdline())]
    assert len(sleepers) == 1
    os.kill(process.pid, signal.SIGKILL)
    await engine.kill()
    wait_for(lambda: not sleepers[0].is_running(), 10, "the sleeper to be gone")
