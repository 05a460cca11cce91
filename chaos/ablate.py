"""Shows what each guard is for: a suite with one guard off at a time, and what breaks then.

Guards are switched off by an environment variable that gateways and engines accept in tests alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from chaos.runner import Outcome
from federation.limits.names import GuardName
from federation.limits.switches import PERMIT, VARIABLE

NONE = "(all guards on)"


@dataclass(frozen=True)
class Row:
    """What broke with one guard off: scenario to the invariants, or to why it could not be run."""

    guard: str
    broken: dict[str, list[str]]


def ablate(guards: Sequence[GuardName], run: Callable[[str], Outcome]) -> Iterator[Row]:
    """Runs with all guards on, then with each off; a row as soon as it is known.

    What breaks with all on is no finding about a guard, so it is left out of the rows after the first.

    Args:
        run: runs the scenarios; told the name of what is off.
    """
    already: set[tuple[str, str]] = set()
    for guard in (None, *guards):
        name = NONE if guard is None else guard.value
        with _off(guard):
            outcome = run(name)
        broken: dict[str, list[str]] = {}
        for result in outcome.results:
            names = ["could not be run"] if result.error else [v.name for v in result.broken]
            fresh = [n for n in names if guard is None or (result.name, n) not in already]
            if fresh:
                broken[result.name] = fresh
            if guard is None:
                already |= {(result.name, n) for n in names}
        yield Row(name, broken)
        if outcome.interrupted:
            return


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


def as_markdown(rows: Sequence[Row], command: str) -> str:
    """The table for docs/."""
    lines = [
        "| guard off | what breaks: scenario (invariants) |",
        "| --- | --- |",
    ]
    for row in rows:
        cells = [f"{name} ({', '.join(broken)})" for name, broken in row.broken.items()]
        lines.append(f"| {row.guard} | {'; '.join(cells) or 'nothing'} |")
    return "\n".join([*lines, "", f"Made by `{command}`."]) + "\n"
