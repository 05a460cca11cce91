"""What holds for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from local_group.scheduling import one_share


@pytest.fixture(scope="session", autouse=True)
def _one_share_of_the_cores() -> Iterator[None]:
    """The processes of tests are in one CPU cgroup, where that is permitted: timing depends on it."""
    with one_share():
        yield
