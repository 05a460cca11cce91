"""Shows what each guard is for: a suite with one guard off at a time, and what breaks then.

Guards are switched off by an environment variable that gateways and engines accept in tests alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from chaos.runner import Outcome, Result
from federation.limits.names import GuardName
from federation.limits.switches import PERMIT, VARIABLE

NONE = "(all guards on)"
NOT_RUN = "could not be run"

UNIT_TESTS: Mapping[GuardName, tuple[str, str]] = {
    GuardName.BREAKER: ("test_guard", "failures_open_the_breaker"),
    GuardName.RETRY_AFTER: ("test_guard", "who_says_when"),
    GuardName.REQUESTS: ("test_guard", "calls_of_all_kinds"),
    GuardName.STREAMS: ("test_guard_wire", "one_stream_too_many"),
    GuardName.CATALOGS: ("test_guard_wire", "catalog_questions"),
    GuardName.STAGING: ("test_guard_puller", "blocks_of_one_peer"),
    GuardName.WINDOW: ("test_guard", "memory_for_serves"),
    GuardName.CATALOG_BYTES: ("test_guard_link", "a_catalog_without_end"),
    GuardName.REQUEST_RATE: ("test_guard", "requests_a_second"),
    GuardName.HELLO_RATE: ("test_guard_hellos", "hellos_above_the_rate"),
    GuardName.BYTE_RATE: ("test_guard_wire", "a_serve_is_no_faster"),
    GuardName.CATALOG_RATE: ("test_guard_wire", "snapshots"),
    GuardName.RETRIES: ("test_guard_puller", "retries"),
    GuardName.LEASES: ("test_guard_wire", "leased_bytes"),
    GuardName.HOPS: ("test_guard_puller", "too_many_borders"),
    GuardName.DIGEST: ("test_puller", "a_wrong_digest"),
    GuardName.SLOW: ("test_guard_verdict", "too_slowly"),
    GuardName.STALL: ("test_guard_link", "nothing_comes"),
    GuardName.HONESTY: ("test_guard_verdict", "a_liar"),
    GuardName.GIVING_WAY: ("test_shedding", "comes_back_when_the_load_is_gone"),
    GuardName.FEDERATION: ("test_federation_breaker", "slow_answers_open_it"),
    GuardName.SWITCH: ("test_orders", "switched_off_may_say_hello"),
}
"""Module and part of the name of the test that holds each guard at its limit: what stands in the table
where no scenario broke."""


@dataclass(frozen=True)
class Row:
    """What broke with one guard off: scenario to the invariants, or to why it could not be run."""

    guard: str
    broken: dict[str, list[str]]
    found: dict[tuple[str, str], str] = field(default_factory=dict)
    """Scenario and invariant to the figure, and what it should have been."""
    whole: bool = True
    """False: interrupted before all scenarios were run."""


def ablate(
    guards: Sequence[GuardName], run: Callable[[GuardName | None], Outcome]
) -> Iterator[Row]:
    """Runs with all guards on, then with each off; a row as soon as it is known.

    What breaks with all on is no finding about a guard, so it is left out of the rows after the first.

    Args:
        run: runs the scenarios; told what is off, None for nothing.
    """
    already: set[tuple[str, str]] = set()
    for guard in (None, *guards):
        name = NONE if guard is None else guard.value
        with _off(guard):
            outcome = run(guard)
        broken: dict[str, list[str]] = {}
        found: dict[tuple[str, str], str] = {}
        for result in outcome.results:
            wrong = _wrong(result)
            fresh = [n for n in wrong if guard is None or (result.name, n) not in already]
            if fresh:
                broken[result.name] = fresh
                found |= {(result.name, n): wrong[n] for n in fresh}
            if guard is None:
                already |= {(result.name, n) for n in wrong}
        yield Row(name, broken, found, whole=not outcome.interrupted)
        if outcome.interrupted:
            return


def _wrong(result: Result) -> dict[str, str]:
    """What did not hold, with its figure."""
    if result.interrupted:
        return {}
    if result.error:
        return {NOT_RUN: result.error.splitlines()[0][:80]}
    return {
        v.name: f"{'nothing' if v.value is None else f'{v.value:.6g}'}, and not {v.limit}"
        + (f" ({v.detail[:80]})" if v.name == "bounded" else "")  # its value is one of many rows
        for v in result.broken
    }


@contextmanager
def _off(guard: GuardName | None) -> Iterator[None]:
    kept = {name: os.environ.get(name) for name in (PERMIT, VARIABLE)}
    if guard is not None:
        os.environ.update({PERMIT: "1", VARIABLE: guard.value})
    try:
        yield
    finally:
        for name, value in kept.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def machine_line() -> str:
    """Cores, and how busy they are now: who else runs decides how late calls are."""
    return f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f} before it began"


def as_markdown(rows: Sequence[Row], command: str, seed: int, machine: str) -> str:
    """The table for docs/."""
    lines = [
        "| guard off | what breaks: scenario (invariant: what was found) |",
        "| --- | --- |",
        *(f"| {row.guard} | {_cell(row)} |" for row in rows),
        "",
        f"Made by `{command}`, seed {seed}, on {machine}.",
    ]
    return "\n".join(lines) + "\n"


def _cell(row: Row) -> str:
    cells = []
    for scenario, names in row.broken.items():
        each = [
            f"{name}: {row.found[scenario, name]}" if (scenario, name) in row.found else name
            for name in names
        ]
        cells.append(f"{scenario} ({'; '.join(each)})")
    if not row.whole:
        cells.append("interrupted: not all scenarios were run")
    if not cells and row.guard != NONE:
        module, test = UNIT_TESTS[GuardName(row.guard)]
        cells.append(f"no scenario; `{module}: {test}` does")
    return "<br>".join(cells).replace("|", r"\|") or "nothing"
