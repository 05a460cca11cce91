"""The table of what each guard is for: nothing in it that was not seen, nothing left out silently."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

import pytest

from chaos.ablate import NONE, NOT_RUN, UNIT_TESTS, Row, ablate, as_markdown, machine_line
from chaos.invariants.verdict import Verdict
from chaos.runner import Outcome, Result
from federation.limits.names import GuardName
from tests.support.groups import REPOSITORY

LATE = Verdict("hits", False, 0.25, ">= 0.8")


def result(name: str, *verdicts: Verdict, error: str = "") -> Result:
    made = Result(name, "a test", f"guards/{name}", 1, 0)
    made.verdicts, made.error = list(verdicts), error
    return made


def runs(found: dict[str, Outcome]) -> Callable[[str], Outcome]:
    return lambda off: found.get(off, Outcome(results=[result("a")]))


def table(*rows: Row) -> str:
    return as_markdown(rows, "moonmesh chaos ablate guards", 7, "2 cores, load 0.1")


def test_a_row_has_the_figure_and_what_it_should_have_been() -> None:
    rows = list(ablate([GuardName.STALL], runs({"stall": Outcome(results=[result("a", LATE)])})))
    text = table(*rows)
    assert f"| {NONE} | nothing |" in text
    assert "| stall | a (hits: 0.25, and not >= 0.8) |" in text
    assert "`moonmesh chaos ablate guards`, seed 7, on 2 cores, load 0.1." in text


def test_where_nothing_broke_the_unit_test_is_named() -> None:
    rows = list(ablate([GuardName.STALL], runs({})))
    assert "| stall | no scenario; `test_guard_link: nothing_comes` does |" in table(*rows)


def test_what_could_not_be_run_is_no_broken_invariant() -> None:
    failed = Outcome(results=[result("a", error="no free ports\nlook there")])
    (_, row) = ablate([GuardName.STALL], runs({"stall": failed}))
    assert row.broken == {"a": [NOT_RUN]}
    assert f"a ({NOT_RUN}: no free ports)" in table(row)


def test_an_interrupted_row_says_so_and_is_the_last() -> None:
    ended = Outcome(results=[result("a")], interrupted=signal.SIGINT)
    rows = list(ablate([GuardName.STALL, GuardName.SLOW], runs({"stall": ended})))
    assert [row.guard for row in rows] == [NONE, "stall"]
    assert "| stall | interrupted: not all scenarios were run |" in table(*rows)


@pytest.mark.parametrize("guard", list(GuardName))
def test_the_unit_test_of_every_guard_exists(guard: GuardName) -> None:
    module, name = UNIT_TESTS[guard]
    text = (REPOSITORY / "tests" / "unit" / f"{module}.py").read_text("utf-8")
    assert re.search(rf"def test_\w*{name}", text)


def test_the_machine_is_told_by_its_cores_and_load_alone() -> None:
    assert re.fullmatch(r"\d+ cores, load \d+\.\d before it began", machine_line())
