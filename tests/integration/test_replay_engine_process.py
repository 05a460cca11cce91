"""Engine processes of a replay, on a store in their own memory: no Mooncake is started."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from federation.bench.engines import BenchError, EngineProcess

pytestmark = pytest.mark.real


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
