"""What holds for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from local_group.scheduling import one_share


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Shows what tests have measured: `record_property("figure", text)`."""
    reports = [r for kind in ("passed", "failed") for r in terminalreporter.getreports(kind)]
    said = [v for r in reports if r.when == "call" for k, v in r.user_properties if k == "figure"]
    if said:
        terminalreporter.section("figures")
        for line in said:
            terminalreporter.write_line(str(line))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Chaos runs take most of a machine: their modules are spread among those of other real groups, so that
    modules that run at once are seldom two of them."""
    modules: dict[Path, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.path, []).append(item)
    real = [path for path in modules if path.parent.name == "integration"]
    chaos = [path for path in real if path.name.startswith("test_chaos")]
    order = [path for path in modules if path not in chaos]
    if chaos and len(real) > len(chaos):
        first = min(order.index(path) for path in real if path not in chaos)
        apart = len(real) // len(chaos)
        for place, path in enumerate(chaos):
            order.insert(first + place * apart, path)
        items[:] = [item for path in order for item in modules[path]]


@pytest.fixture(scope="session", autouse=True)
def _one_share_of_the_cores() -> Iterator[None]:
    """The processes of tests are in one CPU cgroup, where that is permitted: timing depends on it."""
    with one_share():
        yield
