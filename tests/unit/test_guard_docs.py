"""docs/limits.md names every guard and every limit of theirs, and tests that exist."""

from __future__ import annotations

import re

import pytest

from federation.config import Limits
from federation.limits.names import Failure, GuardName
from tests.support.groups import REPOSITORY

TEXT = (REPOSITORY / "docs" / "limits.md").read_text("utf-8")
TABLE = TEXT.split("\n## The guards\n")[1].split("\n## ")[0]
ROWS = re.findall(r"^\| `(\w+)` \| (.*) \|$", TABLE, re.MULTILINE)


@pytest.mark.parametrize("guard", list(GuardName))
def test_every_guard_has_a_row(guard: GuardName) -> None:
    assert guard.value in [name for name, _ in ROWS]


def test_every_row_is_a_guards() -> None:
    assert {name for name, _ in ROWS} == {guard.value for guard in GuardName}


@pytest.mark.parametrize(
    "name", [name for name in Limits.model_fields if name.startswith(("peer_", "hop", "pulls_"))]
)
def test_every_limit_of_a_peer_is_explained(name: str) -> None:
    if name != "peer_request_keys_max":  # a check of a message, and no guard
        assert f"`{name}`" in TEXT


def test_no_row_names_a_limit_that_is_not_there() -> None:
    for _, row in ROWS:
        for name in re.findall(r"`([a-z]+(?:_[a-z]+)+)`", row.split(" | ")[1]):
            assert name in Limits.model_fields, name


@pytest.mark.parametrize("failure", list(Failure))
def test_every_failure_is_explained(failure: Failure) -> None:
    assert f"`{failure.value}`" in TEXT


def test_every_test_that_is_named_exists() -> None:
    found = 0
    tests = {path.stem: path.read_text("utf-8") for path in REPOSITORY.glob("tests/*/test_*.py")}
    for _, row in ROWS:
        module = ""
        for name in re.findall(r"`([^`]+)`", row.split(" | ")[-1]):
            module, _, part = (
                name.partition(": ") if name.startswith("test_") else (module, "", name)
            )
            assert module in tests, name
            assert not part or re.search(rf"def test_\w*{part}", tests[module]), name
            found += 1
    assert found > 25
