"""The simulator: equal seeds are equal runs, and what is broken on purpose is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner

from chaos.sim import bench
from chaos.sim.convergence import Convergence
from chaos.sim.golden import GROUPS_MAX, ScriptError, difference, play
from chaos.sim.hostile import Guise
from chaos.sim.invariants import QUEUES, RAISES, REGRESS, SETTLED, TRUTH, WITNESS, Invariants
from chaos.sim.network import Conditions
from chaos.sim.presets import PRESETS, preset
from chaos.sim.run import Request, follow_change, run_world
from chaos.sim.story import KEPT, SHOWN, Story
from chaos.sim.world import Setup, World
from federation.cli.main import app
from federation.errors import UsageError
from gossip.book import Book
from gossip.config import GossipConfig
from gossip.exchange import Exchange
from gossip.membership import Entry, Input, PeerState
from gossip.probes import Probes
from gossip.quarantine import Quarantine
from gossip.statement import Reason
from gossip.watch import Watch
from tests.support.groups import REPOSITORY

SEEDS_TO_FIND = 8
GOLDEN = sorted((REPOSITORY / "tests" / "data" / "gossip").glob("*.txt"))
SMALL = Request(groups=5, seed=11, rounds=60, faults="all")


def world(groups: int = 3, **options: Any) -> World:
    conditions = Conditions(delay=0.01)
    return World(
        Setup(groups=groups, seed=1, config=preset("wan"), conditions=conditions, **options)
    )


def states(simulated: World) -> set[PeerState]:
    return {
        group.process.engine.peer_state(peer)
        for group in simulated.groups.values()
        if group.process is not None
        for peer in simulated.groups
        if peer != group.name
    }


@pytest.mark.parametrize("real", [False, True])
def test_groups_meet_and_a_message_is_what_the_codec_makes_of_it(real: bool) -> None:
    simulated = world(real_signatures=real)
    simulated.run(3)
    assert states(simulated) == {PeerState.ALIVE}
    assert simulated.network.traffic.bytes > 0


def test_a_stalled_gateway_takes_what_has_waited_once_it_wakes() -> None:
    simulated = world()
    simulated.run(10)
    process = simulated.groups["g1"].process
    assert process is not None
    before = process.engine.versions["g0"]
    simulated.stall(process, 2.0)
    simulated.run(1.9)
    assert process.engine.versions["g0"] == before
    assert process.backlog
    simulated.run(0.2)
    assert process.engine.versions["g0"].seq >= before.seq + 2
    assert not process.backlog


def test_a_clock_that_is_set_goes_on_from_what_it_shows() -> None:
    simulated = world()
    simulated.run(5)
    process = simulated.groups["g1"].process
    assert process is not None
    shown = process.local(simulated.now)
    process.set_rate(1.5, simulated.now)
    assert process.local(simulated.now) == pytest.approx(shown)
    assert process.local(simulated.now + 2) == pytest.approx(shown + 3)
    assert process.world(process.local(12.5)) == pytest.approx(12.5)


def test_a_story_keeps_its_end_and_hashes_all() -> None:
    story, other = Story(), Story()
    for number in range(KEPT + 10):
        story.tell(float(number), "g1", f"step {number}")
        other.tell(float(number), "g1", f"step {number or 1}")
    assert story.digest != other.digest
    assert len(story.lines("g1")) == SHOWN
    assert story.lines()[-1].endswith(f"g1: step {KEPT + 9}")
    assert story.lines("g2") == []
    assert len(story.fetch()) == KEPT
    assert story.fetch() == []


# Determinism


def test_equal_seeds_are_equal_runs_in_every_process() -> None:
    code = f"from chaos.sim.run import Request, follow_change, run_world\nprint(run_world({SMALL!r}).digest)"
    here = run_world(SMALL)
    assert here.failure is None, here.failure
    for hash_seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        ran = subprocess.run(
            [sys.executable, "-c", code],
            env=env, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        assert ran.stdout.strip() == here.digest
    other = run_world(Request(groups=5, seed=12, rounds=60, faults="all"))
    assert other.digest != here.digest


# What is broken is found


def break_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older statement is taken for a newer one."""
    monkeypatch.setattr(Book, "_is_old", staticmethod(lambda *_: False))


def break_signatures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at signatures."""
    monkeypatch.setattr("gossip.book.verify", lambda signed, **_: signed.said())


def break_witnesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer is DOWN as soon as one group has not heard it for long."""

    def give_up(self: Watch, entry: Entry, now: float) -> None:
        self._events.add(entry.move(Input.GONE, now))

    monkeypatch.setattr(Watch, "give_up", give_up)


def break_healing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is in quarantine stays there."""
    monkeypatch.setattr(Quarantine, "is_healed_by", lambda *_, **__: False)


def break_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions of others are never closed."""
    monkeypatch.setattr(GossipConfig, "wan", lambda: GossipConfig(max_probed=1))
    monkeypatch.setattr(Probes, "__len__", lambda self: self._count + self.refused)


def break_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups that nobody knows are looked for as if they were there."""
    monkeypatch.setattr(Exchange, "_take_silent", lambda self, *_: self._entries["nobody"])


@pytest.mark.parametrize(
    ("defect", "invariant"),
    [
        (break_order, REGRESS),
        (break_signatures, TRUTH),
        (break_witnesses, WITNESS),
        (break_healing, SETTLED),
        (break_limit, QUEUES),
        (break_reading, RAISES),
    ],
)
def test_a_broken_engine_is_found_within_a_few_seeds(
    defect: Callable[[pytest.MonkeyPatch], None],
    invariant: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    defect(monkeypatch)
    monkeypatch.setitem(PRESETS, "wan", GossipConfig.wan)
    found = Counter[str]()
    for seed in range(SEEDS_TO_FIND):
        result = run_world(Request(groups=6, seed=seed, rounds=80, faults="all"))
        if result.failure is not None:
            found[result.failure.invariant] += 1
            assert result.failure.story
        if found[invariant]:
            return
    pytest.fail(f"not found, but {found}")


# The command


def sim(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["sim", *arguments])


def test_the_command_shows_and_writes_what_became_of_its_worlds(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    ran = sim(
        "gossip", "--groups", "3", "--rounds", "40", "--seeds", "2", "--seed", "5",
        "--processes", "1", "--json", str(file),
    )  # fmt: skip
    assert ran.exit_code == 0, ran.output
    assert "2 of 2" in ran.output
    report = json.loads(file.read_text())
    assert report["held"] is True
    assert [world["request"]["seed"] for world in report["seeds"]] == [5, 6]
    assert all(0 < rounds <= 1 for rounds in report["seeds"][0]["rounds_to_converge"])


def test_a_broken_world_is_told_with_its_seed_its_story_and_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    break_witnesses(monkeypatch)
    command = ["gossip", "--groups", "6", "--rounds", "80", "--faults", "all", "--processes", "1"]
    first, again = sim(*command), sim(*command)
    assert first.exit_code == 1
    assert first.output == again.output
    assert sim(*command, "--json", "/dev/full").exit_code == 1, "what broke comes first"
    for part in (
        "BROKEN, seed 0",
        WITNESS,
        "begins",
        "PeerDown(",
        f"again: moonmesh sim {' '.join(command[:3])}",
    ):
        assert part in first.output, part


def test_a_report_that_cannot_be_written_is_said_before_anything_runs(tmp_path: Path) -> None:
    ran = sim("gossip", "--json", str(tmp_path / "no" / "report.json"))
    assert ran.exit_code != 0
    assert "no such folder" in str(ran.exception)


def test_a_report_that_fails_at_the_end_is_an_error_where_all_held() -> None:
    ran = sim("gossip", "--groups", "2", "--rounds", "10", "--json", "/dev/full")
    assert isinstance(ran.exception, UsageError)
    assert "No space left" in str(ran.exception)


def test_too_few_rounds_for_all_faults_are_refused() -> None:
    ran = sim("gossip", "--faults", "all", "--rounds", "39")
    assert isinstance(ran.exception, UsageError)
    assert "at least 40 rounds" in str(ran.exception)


# Scenarios as text


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_scenario_goes_as_it_is_written(path: Path) -> None:
    found = difference(path)
    assert not found, f"{found}\nif that is as it should be: moonmesh sim golden --write"


def test_there_are_scenarios() -> None:
    assert len(GOLDEN) >= 8


@pytest.mark.parametrize(
    "script",
    ["> run 1", "> fly", "> world colour=red", f"> world groups={GROUPS_MAX + 1}", "> world\n> stop",
     "> world\n> stop g9", "> world\n> run -1", "> world\n> run 9999", "> world\n> hostile g0 sings",
     "> world\n> health g0 odd", "> world\n> thaw g0", ">"],
)  # fmt: skip
def test_a_script_that_cannot_be_played_is_refused_with_its_line(script: str) -> None:
    with pytest.raises(ScriptError) as error:
        play(f"# a comment\n{script}\n", "file.txt")
    assert error.value.where == f"file.txt:{script.count(chr(10)) + 2}"
    assert error.value.exit_code == 2


def test_the_command_writes_scenarios_anew(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("> world groups=2\n> run 2\nthis is not what happens\n")
    assert sim("golden", str(file)).exit_code == 1
    assert sim("golden", "--write", str(file)).exit_code == 0
    assert sim("golden", str(file)).exit_code == 0
    assert "PeerUp(g1)" in file.read_text()


def test_an_update_is_followed_from_what_it_says_to_the_last_who_hears_it() -> None:
    convergence, late = Convergence(), ("g0", "g3")
    setup = Setup(groups=4, seed=1, config=preset("wan"), conditions=Conditions(delay=0.3))
    checks = Invariants(convergence)
    world = World(setup, checks)
    checks.attach(world)
    world.run(5)
    world.network.link(*late).conditions = Conditions(delay=0.7)
    follow_change(world, "g0", convergence)
    world.run(5)
    (rounds,) = convergence.rounds(1.0)
    assert 0.7 <= rounds <= 0.85, "as long as the longest way, and a moment until it is said"
    world.network.heal_all()
    world.network.conditions = Conditions(delay=0.02)
    follow_change(world, "g0", convergence)
    world.run(5)
    again = min(convergence.rounds(1.0))
    assert 0 < again <= 0.11, "heard before it was followed: known at once, not by the next"


def test_one_figure_is_measured_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "MESH", 3)
    report = bench.gossip_report(bench.GossipBench(only=("bytes",)))
    (target,) = report.targets
    assert target.name == "64 groups, idle: bytes a second and group"
    assert 100 < (target.value or 0) < 2000


def test_a_figure_that_is_not_measured_is_refused_by_name() -> None:
    ran = CliRunner().invoke(app, ["bench", "gossip", "--only", "speed"])
    assert isinstance(ran.exception, UsageError)
    assert "'speed'" in str(ran.exception)
    assert "bytes" in (ran.exception.hint or "")


def test_the_bench_is_a_command_of_bench() -> None:
    ran = CliRunner().invoke(app, ["bench", "gossip", "--help"])
    assert ran.exit_code == 0
    assert "--link-hours" in ran.output


# What an operator sees of two stories told at once


def test_two_stories_are_found_in_a_full_mesh_and_the_messenger_is_not_blamed() -> None:
    simulated = world(groups=4)
    simulated.run(10)
    liar = simulated.groups["g2"].process
    assert liar is not None
    names = list(simulated.groups)
    liar.guise = Guise(("equivocates",), Random(1), liar, simulated.groups["g2"].signer, names)
    simulated.run(12)
    for name in ("g0", "g1", "g3"):
        process = simulated.groups[name].process
        assert process is not None
        for peer in process.engine.view(process.local(simulated.now)).peers:
            reason = None if peer.quarantine is None else peer.quarantine.reason
            assert reason is (Reason.EQUIVOCATION if peer.name == "g2" else None)
            assert peer.name == "g2" or not peer.rejected
