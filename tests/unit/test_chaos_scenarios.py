"""Scenario files: what is packaged can be used, and what cannot be used is explained."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.execution import QUIET_CALLS, wants_quiet
from chaos.invariants.parameters import Invariants
from chaos.runner import Planned, _by_topology
from chaos.scenario import Scenario
from chaos.steps import FAULTS, Hostile
from chaos.suites import find, load_scenario, suites
from chaos.timeline import JITTER_S, jitter
from federation.errors import ConfigError, UsageError
from federation.limits.names import GuardName

GOOD = """
name = "one"
summary = "a test"
workload = { seconds = 3 }
[topology]
groups = ["east", "west"]
hostile = { evil = ["demo"] }
[[steps]]
do = "freeze"
at = 1
lasts = 1
group = "east"
part = "gateway"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "one.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", find(suites()), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_packaged_scenario_can_be_used(path: Path) -> None:
    scenario = load_scenario(path)
    assert scenario.name == path.stem
    for step in scenario.steps:
        assert not isinstance(step, Hostile) or step.name in scenario.topology.hostile


def test_reads_with_nothing_broken_are_timed_where_they_are_compared(tmp_path: Path) -> None:
    scenario = load_scenario(write(tmp_path, GOOD))
    assert wants_quiet(scenario, [])
    assert wants_quiet(scenario, [[1.0] * (QUIET_CALLS - 1)])
    assert not wants_quiet(scenario, [[1.0], [1.0] * (QUIET_CALLS - 1)]), "there are enough"
    assert not wants_quiet(scenario.model_copy(update={"steps": ()}), []), "nothing is broken"
    off = GOOD + '[invariants]\nlocal_p99 = { off = "not compared" }\n'
    assert not wants_quiet(load_scenario(write(tmp_path, off)), [])
    burnt = GOOD + "[invariants]\nlocal_p99 = { burner_rounds = 1 }\n"
    assert not wants_quiet(load_scenario(write(tmp_path, burnt)), []), "compared with burners"


def test_smoke_has_what_it_promises() -> None:
    scenarios = [load_scenario(path) for path in find(["smoke"])]
    assert len(scenarios) >= 15
    assert len({s.name for s in scenarios}) == len(scenarios)
    hostile = [s for one in scenarios for s in one.steps if isinstance(s, Hostile)]
    attacks = {step.attack for step in hostile}
    answers = {step.answer for step in hostile}
    assert {"greetings", "requests", "pin"} <= attacks
    assert {"nothing", "wrong-bytes", "wrong-length", "wrong-namespace", "poison"} <= answers
    assert {"wrong-digest", "garbage", "cut", "stall", "stall-midway", "drip"} <= answers
    assert {step.statements for step in hostile} == {"honest", "replay", "equivocate"}


def test_every_invariant_that_always_holds_is_on_unless_a_reason_is_given() -> None:
    for path in find(["smoke"]):
        wanted = load_scenario(path).invariants
        for name in ("wrong_bytes", "late_writes", "bounded", "healthy", "leftovers"):
            assert getattr(wanted, name).off is None, f"{path.stem} has no {name}"


def proofs(wanted: Invariants) -> list[str]:
    """What of a scenario would not hold, had its fault not taken place."""
    judged = {
        "felt": wanted.felt is not None and wanted.felt.off is None,
        "contained": wanted.contained is not None,
        "leased": wanted.leased is not None,
        "refused": bool(wanted.refused),
        "counters": any(counter.at_least for counter in wanted.counters),
        "books": any(booked.at_least for booked in wanted.books),
    }
    return [name for name, there in judged.items() if there]


def test_every_fault_of_smoke_is_shown_to_be_felt_and_peer_hits_to_return() -> None:
    broken = [s for s in (load_scenario(path) for path in find(["smoke"])) if s.steps]
    assert len(broken) >= 20
    assert [s.name for s in broken if s.invariants.returns is None] == []
    assert [s.name for s in broken if not proofs(s.invariants)] == []
    # Off is for where there is nobody whose chains could return.
    for one in broken:
        assert one.invariants.returns is not None
        real_peers = len(one.topology.groups) > 1
        assert (one.invariants.returns.off is None) == real_peers, one.name


def test_no_step_of_smoke_lasts_until_too_late_to_see_peer_hits_return() -> None:
    for one in (load_scenario(path) for path in find(["smoke"])):
        returns = one.invariants.returns
        if returns is None or returns.off is not None or one.window is None:
            continue
        assert one.window[1] + JITTER_S + returns.within_s < one.workload.seconds, one.name


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('group = "east"', 'group = "north"', "names 'north', which the topology lacks"),
        ("lasts = 1", "lasts = 9", "ends after the load, at 3.0 s"),
        ("lasts = 1\n", "", "freeze needs lasts"),
        ('part = "gateway"', 'part = "disk"', "part"),
        ('group = "east"', 'group = "evil"', "freeze needs real groups"),
        ('do = "freeze"', 'do = "melt"', "melt"),
        ('summary = "a test"', 'summry = "a test"', "summary"),
        ("[topology]", "[invariants]\nhits = { atleast = 1 }\n[topology]", "at_least"),
    ],
)
def test_what_cannot_be_used_is_explained(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert load_scenario(write(tmp_path, GOOD)).name == "one"
    with pytest.raises(ConfigError) as caught:
        load_scenario(write(tmp_path, GOOD.replace(old, new)))
    assert says in str(caught.value)
    assert "one.toml" in str(caught.value)


def numbered(text: str, part: str) -> int:
    """The line, from 1, that has this."""
    return next(n for n, line in enumerate(text.splitlines(), 1) if part in line)


SECOND = '[[steps]]\ndo = "kill"\nat = 1\ngroup = "west"\npart = "store-0"\n'


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("at = 1\ngroup", "at = -1\ngroup", "at = -1", "step 2: at: must be at least 0.0, not -1"),
        (
            'do = "kill"',
            'do = "kill"\nprt = 1',
            "prt",
            'step 2: prt: is not a known key (did you mean "part"?)',
        ),
        (
            '"kill"',
            '"explode"',
            SECOND,
            "step 2: there is no fault 'explode'; there are: apply, burn,",
        ),
        ('do = "kill"\n', "", SECOND, "step 2: do is missing: add it; there are: apply, burn,"),
        ('group = "west"', 'group = "north"', SECOND, "step 2: names 'north', which the topology"),
        ("at = 1\ngroup", "at = 9\ngroup", SECOND, "step 2: ends after the load, at 3.0 s"),
        (
            '"store-0"',
            '"store-9"',
            SECOND,
            "step 2: part: there is no 'store-9' (known here: store-0)",
        ),
        ('"store-0"', '"etcd"', SECOND, 'step 2: kill needs coordination = "etcd" in the topology'),
        ("hostile =", "cores = { n = [0] }\nhostile =", "cores", "topology.cores: there is no 'n'"),
        (
            "hostile =",
            'elsewhere = ["east"]\nhostile =',
            "elsewhere",
            "topology.elsewhere: the topology has 'east' twice",
        ),
        ('name = "one"', 'name = "one"\ndraws = 8', "draws", "draws: draws 8 of 2 steps"),
        (
            SECOND,
            '[[invariants.counters]]\ngroup = "n"\nname = "x"\n',
            "[[inv",
            "invariants.counters: group: there is no 'n'",
        ),
    ],
)
def test_each_problem_is_told_with_its_line_and_steps_are_counted_from_one(
    tmp_path: Path, old: str, new: str, line: str, says: str
) -> None:
    assert load_scenario(write(tmp_path, GOOD + SECOND))
    text = (GOOD + SECOND).replace(old, new)
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_scenario(path)
    second = GOOD.count("\n") + 1 + text.count("draws")
    expected = second if line == SECOND else numbered(text, line)
    assert f"{path}:{expected}: {says}" in str(caught.value)


def test_every_fault_is_among_those_that_are_named() -> None:
    used = {step.do for path in find(["all"]) for step in load_scenario(path).steps}
    assert sorted(used) == FAULTS


def test_two_hostile_peers_in_one_place_are_refused(tmp_path: Path) -> None:
    step = '[[steps]]\ndo = "hostile"\nat = 0\nlasts = 1\nname = "evil"\ntarget = "west"\n'
    assert load_scenario(write(tmp_path, GOOD + step))
    with pytest.raises(ConfigError, match="step 3: a second hostile peer in one place"):
        load_scenario(write(tmp_path, GOOD + step + step))


HOSTILE = """
[[steps]]
do = "hostile"
at = 0
lasts = 1
name = "evil"
target = "west"
answer = "honest"
attack = "none"
claims = ["east"]
namespaces = ["demo", "guest"]
[invariants]
contained = { group = "west", origin = "evil" }
leased = { name = "evil" }
returns = { owners = ["east"] }
counters = [{ group = "west", name = "x" }]
refused = [{ group = "west", who = "evil", says = "x" }]
books = [{ name = "evil", what = "served", at_most = 1 }]
peaks = [{ group = "west", peer = "evil", what = "incoming.leased", at_most = 1 }]
"""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('answer = "honest"', 'answer = "rude"', "step 2: answer: there is no 'rude'"),
        ('attack = "none"', 'attack = "nuke"', "step 2: attack: there is no 'nuke'"),
        ('claims = ["east"]', 'claims = ["north"]', "step 2: names 'north'"),
        ('"demo", "guest"]', '"dmo"]', "step 2: namespace: there is no 'dmo'"),
        ('target = "west"', 'target = "evil"', "step 2: the target 'evil' is no real group"),
        ('part = "gateway"', 'part = "store-1"', "there is no 'store-1' (known here: store-0)"),
        ('hostile = { evil = ["demo"] }', 'hostile = { evil = ["x"] }', "namespace: there is no"),
        ('hostile = { evil = ["demo"] }', 'hostile = { east = ["demo"] }', "'east' twice"),
        ('groups = ["east", "west"]', 'groups = ["east", "west", "east"]', "'east' twice"),
        ('contained = { group = "west"', 'contained = { group = "w"', "contained: group: there"),
        ('origin = "evil"', 'origin = "e"', "contained: origin: there is no 'e'"),
        (
            'leased = { name = "evil"',
            'leased = { name = "east"',
            "leased: name: there is no 'east'",
        ),
        ('owners = ["east"]', 'owners = ["evil"]', "returns: owners: there is no 'evil'"),
        ('counters = [{ group = "west"', 'counters = [{ group = "w"', "counters: group: there"),
        ('refused = [{ group = "west"', 'refused = [{ group = "evil"', "refused: group: there"),
        ('books = [{ name = "evil"', 'books = [{ name = "e"', "books: name: there is no 'e'"),
        ('peaks = [{ group = "west"', 'peaks = [{ group = "w"', "peaks: group: there is no 'w'"),
        ('peer = "evil"', 'peer = "e"', "peaks: peer: there is no 'e'"),
    ],
)
def test_names_that_nothing_has_are_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert load_scenario(write(tmp_path, GOOD + HOSTILE)).name == "one"
    text = (GOOD + HOSTILE).replace(old, new)
    assert text != GOOD + HOSTILE
    with pytest.raises(ConfigError) as caught:
        load_scenario(write(tmp_path, text))
    assert says in str(caught.value)


TRIED = """
[[steps]]
do = "apply"
at = 0
lasts = 2
group = "west"
peer = "east"
[[steps]]
do = "throttle"
at = 0
lasts = 2
group = "west"
part = "master"
[invariants]
books = [{ name = "apply", what = "taken_back" }, { name = "throttle", what = "stops" }]
"""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('peer = "east"', 'peer = "north"', "step 2: names 'north', which the topology lacks"),
        ('peer = "east"', 'peer = "west"', "west is no peer of its own"),
        ('group = "west"\npeer', 'group = "evil"\npeer', "step 2: group: there is no 'evil'"),
        ("lasts = 2\n", "", "apply needs lasts"),
        ('part = "master"', 'part = "store-1"', "there is no 'store-1' (known here: store-0)"),
        ('part = "master"', 'part = "etcd"', 'throttle needs coordination = "etcd"'),
        ('part = "master"', 'part = "master"\nruns_ms = 0', "runs_ms"),
    ],
)
def test_trials_and_throttles_that_cannot_be_are_refused(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    assert load_scenario(write(tmp_path, GOOD + TRIED)).name == "one"
    text = GOOD + TRIED.replace(old, new)
    with pytest.raises(ConfigError) as caught:
        load_scenario(write(tmp_path, text))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "text", ["x = " + "[" * 5000, "x" + ".x" * 5000 + " = 1", "[" + "x." * 5000 + "x]"]
)
def test_a_file_that_is_nested_too_deep_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"one\.toml"):
        load_scenario(write(tmp_path, text))


def test_an_unknown_topology_names_the_places_that_were_looked_in(tmp_path: Path) -> None:
    head, _, _ = GOOD.partition("[topology]")
    text = head.replace("workload", 'topology = "square"\nworkload')
    with pytest.raises(ConfigError, match=r"one\.toml:4: there is no topology 'square'"):
        load_scenario(write(tmp_path, text))


def test_find_takes_suites_scenarios_files_and_folders(tmp_path: Path) -> None:
    file = write(tmp_path, GOOD)
    assert find([str(file)]) == [file]
    assert find([str(tmp_path)]) == [file]
    assert [path.stem for path in find(["smoke/baseline", "smoke/baseline"])] == ["baseline"]
    with pytest.raises(UsageError, match="no suite, scenario or file"):
        find(["smoke/none-such"])


def test_the_seed_moves_the_steps_and_nothing_else(tmp_path: Path) -> None:
    steps = load_scenario(write(tmp_path, GOOD)).steps
    assert jitter(steps, 7) == jitter(steps, 7)
    moved = {jitter(steps, seed)[0].at for seed in range(20)}
    assert len(moved) > 10
    assert all(1 <= at <= 1 + JITTER_S for at in moved)


def test_scenarios_of_one_topology_share_it_and_spoilers_run_last() -> None:
    planned = [Planned(load_scenario(path), path.stem) for path in find(["smoke"])]
    groups = _by_topology(planned)
    assert sum(len(items) for _, items in groups) == len(planned)
    for topology, items in groups:
        assert all(item.scenario.topology == topology for item in items)
        order = [item.scenario.spoils for item in items]
        assert order == sorted(order)


def test_the_window_of_a_scenario_spans_its_faults(tmp_path: Path) -> None:
    scenario: Scenario = load_scenario(write(tmp_path, GOOD))
    assert scenario.window == (1.0, 2.0)


def test_guards_can_be_named_for_the_ablation() -> None:
    assert {"breaker", "digest", "request_rate"} <= {guard.value for guard in GuardName}


def test_the_suite_guards_has_a_scenario_for_each_guard() -> None:
    shown = [guard for path in find(["guards"]) for guard in load_scenario(path).shows]
    assert sorted(shown) == sorted(GuardName)
