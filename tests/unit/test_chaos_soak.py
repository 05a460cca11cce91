"""A soak: the trace that engines go through, and what counts as growth."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from chaos.cli import app
from chaos.drawing.growth import course
from chaos.drawing.page import page
from chaos.load.replayed import CHAIN_BLOCKS, Replayed
from chaos.report import as_dict
from chaos.runner import Outcome, Result
from chaos.soak.report import soak_dict
from chaos.soak.trend import SAMPLES_MIN, WARM_UP, Trend, trend
from chaos.soak.watching import Watch
from chaos.suites import find, load_scenario
from local_group.config import MIB

HOUR = [2.0 * n for n in range(1800)]


def line(blocks: list[int]) -> str:
    return f'{{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": {blocks}}}'


def traced(folder: Path, *chains: list[int]) -> str:
    file = folder / "trace.jsonl"
    file.write_text("\n".join(map(line, chains)))
    return str(file)


# The trace


def test_every_request_falls_to_one_group_whoever_asks(tmp_path: Path) -> None:
    path = traced(tmp_path, *([n] for n in range(200)))
    taken: dict[str, list[str]] = {}
    for group in ("east", "west"):
        replayed = Replayed(path, ("east", "west"), group)
        keys: list[str] = []
        while not keys or keys[-1].startswith("trace.0."):
            keys += replayed.next()
        taken[group] = keys[:-1]
        assert keys[-1].startswith("trace.1."), "after the last request it begins anew"
    both = taken["east"] + taken["west"]
    assert sorted(both) == sorted(f"trace.0.{n}" for n in range(200))
    assert 60 < len(taken["east"]) < 140


def test_a_prompt_is_read_to_its_limit(tmp_path: Path) -> None:
    path = traced(tmp_path, list(range(CHAIN_BLOCKS + 1)))
    keys = Replayed(path, ("east",), "east").next()
    assert keys == [f"trace.0.{n}" for n in range(CHAIN_BLOCKS)]


# What grows


def noisy(value: float, slope: float, noise: float, seed: int = 1) -> list[float]:
    rng = random.Random(seed)
    return [value + slope * t + rng.uniform(-noise, noise) for t in HOUR]


def told(figure: str, values: list[float]) -> Trend:
    found = trend("p", figure, HOUR, values)
    assert found is not None
    return found


def test_what_stays_has_no_trend() -> None:
    found = told("rss", noisy(90 * MIB, 0, 8 * MIB))
    assert found.held
    assert abs(found.growth) < 2 * MIB


def test_a_leak_below_the_peaks_is_seen() -> None:
    """5 MiB an hour under noise of 8: no single sample shows it."""
    found = told("rss", noisy(90 * MIB, 5 * MIB / 3600, 4 * MIB))
    assert not found.held
    assert found.growth == pytest.approx(5 * MIB * (1 - WARM_UP), rel=0.3)


def test_a_descriptor_a_quarter_of_an_hour_is_a_trend() -> None:
    found = told("descriptors", [40 + t // 900 for t in HOUR])
    assert not found.held


@pytest.mark.parametrize("at", range(1300, 3600, 200))
def test_one_descriptor_more_is_none_whenever_it_comes(at: int) -> None:
    assert told("descriptors", [40 + (t > at) for t in HOUR]).held


def test_two_descriptors_more_are_one() -> None:
    found = told("descriptors", [40 + (t > 1900) + (t > 2700) for t in HOUR])
    assert not found.held
    assert found.share > 1


def test_what_fills_in_the_first_minutes_is_no_growth() -> None:
    found = told("rss", [min(1.0, t / 500) * 90 * MIB for t in HOUR])
    assert found.held
    assert found.growth == 0


def test_what_becomes_less_is_no_growth() -> None:
    found = told("threads", [40 - t / 300 for t in HOUR])
    assert found.held


def test_of_few_samples_nothing_is_said() -> None:
    times = [float(n) for n in range(SAMPLES_MIN)]
    assert trend("p", "rss", times, times) is None
    assert trend("p", "rss", [], []) is None


# What is looked at


class Engine:
    def __init__(self, pid: int) -> None:
        self.pid = pid


class Stage:
    """A topology of one group, whose gateway is this very process."""

    def __init__(self, *pids: int) -> None:
        self.topology = type("T", (), {"groups": ("east",)})()
        self.engines = {f"east{n}": Engine(pid) for n, pid in enumerate(pids)}

    def gateway_processes(self, name: str) -> list[psutil.Process]:
        return [psutil.Process()]

    def everyone(self) -> dict[str, Engine]:
        return self.engines


def test_a_process_that_lives_is_told_and_one_that_was_killed_forgotten() -> None:
    async def run() -> tuple[Watch, int]:
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=-1)
        stage: Any = Stage(child.pid)
        watch = Watch(duration=400)
        for n in range(50):
            watch.look(stage, float(n))
        child.kill()
        await child.wait()
        for n in range(50, 250):
            watch.look(stage, float(n))
        return watch, child.pid

    watch, _ = asyncio.run(run())
    assert watch.short == 1
    told = watch.trends()
    assert [t.figure for t in told] == ["rss", "descriptors", "threads"]
    assert {t.process for t in told} == {f"east: {psutil.Process().name()}"}
    assert told[0].begin == pytest.approx(psutil.Process(os.getpid()).memory_info().rss, rel=0.5)


def test_a_soak_that_goes_on_for_ever_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> int:
        stage: Any = Stage()
        watch = Watch(duration=0.02)
        monkeypatch.setattr(watch, "_interval", 0.001)
        looks = 0
        look = watch.look

        def counted(stage: Any, now: float) -> None:
            nonlocal looks
            looks += 1
            look(stage, now)

        monkeypatch.setattr(watch, "look", counted)
        task = asyncio.create_task(watch.watch(stage))
        seen = -1
        while seen != looks or not looks:
            seen = looks
            await asyncio.sleep(0.1)
        task.cancel()
        return looks

    assert 0 < asyncio.run(run()) <= 31


# What is said


def result(held: bool = True) -> Result:
    return Result("soak", "", "process/soak", 1, 0, error="" if held else "it did not start")


def test_nothing_that_could_be_told_is_no_success() -> None:
    assert not soak_dict(Outcome([result()]), 1, 30, [], 0)["held"]


def test_growth_in_one_process_is_what_the_soak_says() -> None:
    good = told("rss", noisy(90 * MIB, 0, MIB))
    bad = told("threads", [40 + t / 300 for t in HOUR])
    assert soak_dict(Outcome([result()]), 1, 30, [good], 3)["held"]
    report = soak_dict(Outcome([result()]), 1, 30, [good, bad], 3)
    assert not report["held"]
    targets = {t["name"].split(",")[0]: t["met"] for t in report["targets"]}
    assert targets["growth of rss in any process"] is True
    assert targets["growth of threads in any process"] is False
    assert targets["growth of descriptors in any process"] is None


def test_the_page_shows_each_process_and_escapes_its_name() -> None:
    bad = replace(told("threads", [40 + t / 300 for t in HOUR]), process="<b>")
    shown = page(soak_dict(Outcome([result()]), 1, 30, [bad], 3))
    assert "&lt;b&gt;<td>threads" in shown
    assert '<span class="mark broken">grows</span>' in shown
    assert shown.count("<polyline") == 1
    assert "What grew" not in page(as_dict(Outcome([result()]), 1))


def test_what_hardly_moves_looks_like_it() -> None:
    points = course([40.0, 41.0], 1).split('points="')[1].split('"')[0]
    heights = {point.split(",")[1] for point in points.split()}
    assert heights == {"15.2", "12.8"}
    assert course([1.0], 1) == ""


def test_its_scenario_lets_one_group_live() -> None:
    (path,) = find(["process/soak"])
    scenario = load_scenario(path)
    killed = {s.group for s in scenario.steps if s.do == "kill"}
    assert killed == {"west"}
    assert scenario.workload.trace_rate == 30


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["--trace", "/nowhere.jsonl"], "cannot be read", 2),
        (["--trace", __file__], "not JSON", 1),
        (["--duration", "5"], "20", 2),
        (["--rate", "0"], "0.1", 2),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(
    arguments: list[str], said: str, code: int
) -> None:
    done = CliRunner().invoke(app, ["soak", *arguments])
    assert getattr(done.exception, "exit_code", done.exit_code) == code
    assert said in done.output + str(done.exception)
