"""A run that a signal ends: what it was at is told, and nothing is said to have held."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos.cleanup import Run
from chaos.runner import Planned, Result, Runner
from chaos.section import Topology
from chaos.suites import find, load_scenario
from chaos.topology import Stage
from tests.support.own_tmp import own_tmp


class Stopped(Runner):
    """Gets a signal while its groups start."""

    async def _up(self, topology: Topology, folder: Path, run: Run) -> tuple[Stage | None, str]:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()
        return None, ""


class Heard:
    def __init__(self) -> None:
        self.results: list[Result] = []

    def say(self, line: str) -> None:
        pass

    def begin(self, name: str, round_: int) -> None:
        pass

    def result(self, result: Result) -> None:
        self.results.append(result)


@pytest.fixture(autouse=True)
def _own_tmp() -> Iterator[None]:
    with own_tmp():
        yield


def test_the_scenario_that_was_interrupted_is_in_the_outcome() -> None:
    (path,) = find(["smoke/baseline"])
    planned = [Planned(load_scenario(path), "smoke/baseline")] * 2
    heard = Heard()
    options: dict[str, Any] = {"repeat": 1, "keep": False, "port_base": 21_000}
    outcome = asyncio.run(Stopped(planned, seed=7, progress=heard, **options).run())
    assert outcome.interrupted == signal.SIGTERM
    assert [(r.name, r.error, r.held) for r in outcome.results] == [
        ("baseline", "interrupted", False)
    ]
    assert heard.results == outcome.results
    assert not outcome.held
    assert outcome.kept is None
    assert not list(Path(tempfile.gettempdir()).glob("chaos-*"))
