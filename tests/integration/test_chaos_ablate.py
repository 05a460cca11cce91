"""A guard that is switched off is missed, on real groups: the flood that it holds back gets through."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.groups import CHAOS_PORTS, moonmesh

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]


def test_without_its_guard_a_flood_of_hellos_is_answered(tmp_path: Path) -> None:
    table = tmp_path / "guards.md"
    done = moonmesh(
        "chaos", "ablate", "guards/lagging", "--guard", "hello_rate",
        "--markdown", table, "--port-base", CHAOS_PORTS,
        timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    every, without = table.read_text().splitlines()[2:4]
    assert "books evil served" not in every, "it holds with the guard on"
    assert without.startswith("| hello_rate | lagging (")
    assert "books evil served" in without
    assert "seed 1" in table.read_text()
