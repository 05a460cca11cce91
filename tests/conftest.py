"""What holds for all tests."""

from __future__ import annotations

from collections.abc import Iterator

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


@pytest.fixture(scope="session", autouse=True)
def _one_share_of_the_cores() -> Iterator[None]:
    """The processes of tests are in one CPU cgroup, where that is permitted: timing depends on it."""
    with one_share():
        yield
