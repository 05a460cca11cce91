"""A session of a replay and signals: it ends early, with what it has, whichever signal it is."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from federation.bench import session as sessions
from federation.bench.replay import Options, Plan
from federation.bench.tally import Tally
from federation.bench.workload import Workload


class Said:
    """Progress that is kept."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def begin(self, mode: str, requests: int) -> None:
        raise AssertionError("the mode is not really run")

    def advance(self, tally: Tally) -> None:
        raise AssertionError("the mode is not really run")

    def say(self, text: str) -> None:
        self.lines.append(text)


@contextmanager
def shared() -> Iterator[bool]:
    yield True


@pytest.mark.parametrize("number", sessions.SIGNALS)
async def test_a_signal_ends_a_session_early(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    ran: list[str] = []

    async def run_mode(
        mode: str,
        plan: Plan,
        workload: Workload,
        options: Options,
        tally: Tally,
        *,
        stop: asyncio.Event,
        progress: Said,
    ) -> list[Path]:
        ran.append(mode)
        tally.requests = 3
        os.kill(os.getpid(), number)
        await asyncio.wait_for(stop.wait(), 5)
        return [Path(mode)]

    monkeypatch.setattr(sessions, "run_mode", run_mode)
    monkeypatch.setattr(sessions, "one_share", shared)
    said = Said()
    outcome = await sessions.session(
        ("federated", "isolated"),
        Plan(Path("unused")),
        Workload((), 2, 1),
        Options(),
        said,
    )
    assert outcome.signal == number
    assert ran == ["federated"], "nothing begins after it"
    assert outcome.tallies["federated"].requests == 3, "what was measured is kept"
    assert outcome.error is None
    assert said.lines == ["stopping: what runs is taken down first"]
