"""Suites: what belongs to which, users' own folders, faults that a seed draws, what cannot be made."""

from __future__ import annotations

import errno
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from chaos import possible
from chaos.faults import clocks
from chaos.faults.squeezing import below
from chaos.scenario import DRAWN_LATER_S, Scenario
from chaos.steps import Herd, Squeeze, told
from chaos.suites import find, load_scenario, suites
from federation.errors import ConfigError, UsageError
from tests.unit.test_chaos_scenarios import GOOD, proofs, write

HERE = Path(__file__).parents[2] / "chaos" / "scenarios"


def packaged(name: str) -> Scenario:
    (path,) = find([name])
    return load_scenario(path)


def test_all_has_every_packaged_scenario_once() -> None:
    found = find(["all"])
    assert sorted(found) == sorted(
        path
        for path in HERE.glob("*/*.toml")
        if path.parent.name != "topologies" and path.name != "suite.toml"
    )
    assert len(found) >= 35
    names = Counter(path.stem for path in found)
    assert [name for name, count in names.items() if count > 1] == []


def test_the_promised_suites_are_there_and_byzantine_names_hostile_peers_of_others() -> None:
    assert {"smoke", "network", "process", "storage", "byzantine", "operations"} <= set(suites())
    for path in find(["byzantine"]):
        steps = load_scenario(path).steps
        assert any(step.do == "hostile" for step in steps), path.stem


LONG = ("partition-60", "config-rolled-back")
"""A cut of a minute, and a trial, for as long as an operator's takes."""


@pytest.mark.parametrize(
    "path", find(["network", "process", "storage", "operations"]), ids=lambda path: path.stem
)
def test_every_fault_is_shown_to_be_felt_and_hits_to_return(path: Path) -> None:
    scenario = load_scenario(path)
    wanted = scenario.invariants
    drawn = scenario.draws is not None  # of what is drawn, nothing is known beforehand
    assert drawn or proofs(wanted) or path.stem == "lossy-link"
    assert wanted.returns is not None
    assert scenario.window is not None
    assert scenario.workload.seconds <= 20 or path.stem in LONG
    for name in ("wrong_bytes", "late_writes", "deadlines", "bounded", "healthy", "leftovers"):
        assert getattr(wanted, name).off is None, f"{path.stem} has no {name}"


def test_a_folder_of_ones_own_with_topologies_in_it(tmp_path: Path) -> None:
    (tmp_path / "topologies").mkdir()
    (tmp_path / "topologies" / "mine.toml").write_text('groups = ["east", "west"]\n')
    head, _, rest = GOOD.partition("[topology]")
    steps = rest[rest.index("[[steps]]") :]
    write(tmp_path, f'topology = "mine"\n{head}{steps}')
    (path,) = find([str(tmp_path)])
    assert load_scenario(path).topology.groups == ("east", "west")


def test_a_folder_may_name_packaged_scenarios_as_well(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    suite = tmp_path / "suite.toml"
    suite.write_text('also = ["smoke/baseline"]\n')
    assert [path.stem for path in find([str(tmp_path)])] == ["one", "baseline"]
    suite.write_text('also = ["smoke/none-such"]\n')
    with pytest.raises(ConfigError, match="no packaged scenario 'smoke/none-such'") as caught:
        find([str(tmp_path)])
    assert caught.value.where == f"{suite}:1"
    suite.write_text("also = 1\n")
    with pytest.raises(ConfigError, match=r"suite\.toml"):
        find([str(tmp_path)])


def test_two_scenarios_of_one_name_are_refused_wherever_they_are(tmp_path: Path) -> None:
    one, other = write(tmp_path, GOOD), tmp_path / "other.toml"
    other.write_text(GOOD)
    with pytest.raises(ConfigError, match="has the name 'one'") as caught:
        find([str(tmp_path)])
    assert (caught.value.where, caught.value.exit_code) == (f"{other}:2", 2)
    assert str(one) in caught.value.what
    other.write_text(GOOD.replace('name = "one"', 'name = "partition"'))
    assert find([str(tmp_path), str(one)]) == [one, other]
    assert find([str(other), "smoke/baseline"])
    with pytest.raises(ConfigError, match="has the name 'partition'") as caught:
        find([str(tmp_path), "smoke"])
    assert str(other) in str(caught.value)
    assert str(HERE / "smoke" / "partition.toml") in str(caught.value)
    for file in (one, other):
        file.write_text("name = [1]\n")
    assert find([str(tmp_path)]) == [one, other], "what is wrong is told when they are loaded"


def test_the_docs_say_how_many_there_are() -> None:
    root = Path(__file__).parents[2]
    docs = (root / "docs" / "chaos.md").read_text()
    for suite in (*suites(), "all"):
        assert re.search(rf"(?m)^\| `{suite}` \| {len(find([suite]))} \|", docs), suite
    assert f"{len(find(['all']))} scenarios" in (root / "README.md").read_text()


def test_a_folder_without_scenarios_says_what_is_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no scenario") as caught:
        find([str(tmp_path)])
    assert "NAME.toml" in str(caught.value.hint)


def test_the_seed_draws_the_faults_and_no_others() -> None:
    scenario = packaged("process/two-at-once")
    assert scenario.drawn(3) == scenario.drawn(3)
    pairs = set()
    for seed in range(200):
        steps = scenario.drawn(seed).steps
        assert len(steps) == 2
        assert abs(steps[0].at - steps[1].at) <= DRAWN_LATER_S
        pairs.add(frozenset(map(told, steps)))
        assert all(told(step) in scenario.drawn(seed).summary for step in steps)
    pool = len(scenario.steps)
    assert len(pairs) > pool * (pool - 1) / 2 * 0.9, "nearly every pair is drawn by some seed"


def test_more_faults_than_there_are_cannot_be_drawn(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="draws 2 of 1 steps"):
        load_scenario(write(tmp_path, "draws = 2\n" + GOOD))


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ('do = "disk"\nmode = "full"\ngroup = "east"', 'disk needs disk = "own"'),
        ('do = "disk"\nmode = "errors"\ngroup = "east"', 'disk needs disk = "faulty"'),
        ('do = "clock"\nhours = 2\ngroup = "east"', "clock needs clock = true"),
        ('do = "collector"\nmode = "dead"', "collector needs collector = true"),
        ('do = "herd"\ngroup = "east"\nowner = "east"', "chains of another group"),
        ('do = "herd"\ngroup = "east"\nowner = "evil"', "herd needs real groups"),
        ('do = "squeeze"\ngroup = "evil"\nwhat = "cpu"', "squeeze needs real groups"),
    ],
)
def test_a_step_says_what_it_lacks(tmp_path: Path, step: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_scenario(write(tmp_path, f"{GOOD}[[steps]]\nat = 0\nlasts = 1\n{step}\n"))
    assert says in str(caught.value)


def test_books_are_kept_by_steps_that_count(tmp_path: Path) -> None:
    step = '[[steps]]\ndo = "squeeze"\nat = 0\nlasts = 1\nwhat = "cpu"\ngroup = "east"\n'
    books = '[invariants]\nbooks = [{ name = "squeeze", what = "throttled" }]\n'
    assert load_scenario(write(tmp_path, GOOD + step + books)).invariants.books
    with pytest.raises(ConfigError, match="books: name: there is no 'squeeze'"):
        load_scenario(write(tmp_path, GOOD + books))


def test_what_cannot_be_made_here_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "compiler", lambda: None)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    ahead = possible.why_not(packaged("operations/clock-ahead"), "loopback")
    assert ahead is not None
    assert "apt-get install gcc" in ahead
    full = possible.why_not(packaged("storage/disk-full"), "loopback")
    assert full is not None
    assert "root" in full
    assert possible.why_not(packaged("smoke/partition"), "loopback") is None


def test_descriptors_are_counted_from_the_lowest_that_is_free() -> None:
    assert below(set(), 0) == 0
    assert below({0, 1, 2}, 2) == 5
    assert below({0, 2, 3, 900}, 2) == 5  # 1 and 4 are free below it
    rng = random.Random(1)
    for _ in range(50):
        taken = set(rng.sample(range(100), 30))
        limit = below(taken, 7)
        assert len(set(range(limit)) - taken) == 7


@pytest.mark.skipif(clocks.compiler() is None, reason="no C compiler")
def test_a_clock_that_was_set_is_believed_and_no_monotonic_one(tmp_path: Path) -> None:
    file = tmp_path / "clock"
    clocks.put(file, 7200)
    program = "import time; a = time.monotonic(); time.sleep(0.01); print(time.time(), a)"
    environment = {**os.environ, **clocks.environment(clocks.make(tmp_path), file)}
    said = subprocess.check_output([sys.executable, "-c", program], env=environment, timeout=20)
    wall, monotonic = map(float, said.split())
    assert wall - time.time() == pytest.approx(7200, abs=5)
    assert monotonic - time.monotonic() == pytest.approx(0, abs=5)


WAITS = """
import ctypes, time
libc = ctypes.CDLL(None)

class Time(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("ns", ctypes.c_long)]

def in_300_ms(now):
    whole, rest = divmod(now + 300_000_000, 1_000_000_000)
    return ctypes.byref(Time(whole, rest))

def waited(call, *arguments):
    mutex = ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    began = time.monotonic()
    code = call(mutex, *arguments)
    print(code, time.monotonic() - began)

wall, monotonic = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
kind = ctypes.create_string_buffer(16)
libc.pthread_condattr_init(kind)
libc.pthread_condattr_setclock(kind, time.CLOCK_MONOTONIC)
libc.pthread_cond_init(monotonic, kind)
timedwait, clockwait = libc.pthread_cond_timedwait, libc.pthread_cond_clockwait
waited(lambda mutex: timedwait(wall, mutex, in_300_ms(time.time_ns())))
waited(lambda mutex: timedwait(monotonic, mutex, in_300_ms(time.monotonic_ns())))
for clock in (time.CLOCK_REALTIME, time.CLOCK_MONOTONIC):
    waited(lambda mutex: clockwait(wall, mutex, clock, in_300_ms(time.clock_gettime_ns(clock))))
"""


@pytest.mark.skipif(clocks.compiler() is None, reason="no C compiler")
@pytest.mark.parametrize("hours", [-2, 2])
def test_a_wait_by_a_clock_that_was_set_takes_as_long_as_ever(tmp_path: Path, hours: int) -> None:
    file = tmp_path / "clock"
    clocks.put(file, 3600 * hours)
    environment = {**os.environ, **clocks.environment(clocks.make(tmp_path), file)}
    command = [sys.executable, "-c", WAITS]
    said = subprocess.check_output(command, env=environment, timeout=20, text=True)
    waits = [line.split() for line in said.splitlines()]
    assert [int(code) for code, _ in waits] == [errno.ETIMEDOUT] * 4
    assert all(0.29 <= float(seconds) < 5 for _, seconds in waits), waits


def test_each_step_is_told_in_a_few_words() -> None:
    for path in find(["all"]):
        for step in load_scenario(path).steps:
            assert 3 < len(told(step)) < 60, path.stem
    herd = Herd(do="herd", at=0, lasts=1, group="west", owner="east", clients=7)
    assert told(herd) == "7 clients at west"
    squeezed = Squeeze(do="squeeze", at=0, lasts=1, group="west", what="memory")
    assert told(squeezed) == "memory of west"
