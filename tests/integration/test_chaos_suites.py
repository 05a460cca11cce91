"""Faults of one host on real groups, the page of a run, and faults on a group that runs already."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from federation.limits.orders import Order
from federation.order_file import OrderFile
from tests.support.federation import Federation
from tests.support.groups import CHAOS_PORTS, command, environment

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

CHEAP = (
    "network/jitter",
    "process/two-at-once",
    "storage/file-size",
    "operations/peer-paused",
    "process/descriptors",
)
"""One of each suite that needs no privileges, on one topology."""


def chaos(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("chaos", *map(str, args)),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=220,
        stdin=subprocess.DEVNULL,
    )


def scenarios(file: Path) -> dict[str, dict[str, Any]]:
    """The last run of each scenario in a report."""
    return {one["name"]: one for one in json.loads(file.read_text())["scenarios"]}


def test_faults_of_one_host_are_made_felt_and_drawn(tmp_path: Path) -> None:
    report, page = tmp_path / "report.json", tmp_path / "page.html"
    done = chaos(
        *("run", *CHEAP, "--seed", 3, "--port-base", CHAOS_PORTS),
        *("--retries", 2, "--forgive-time", "--json", report, "--html", page),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = scenarios(report)
    assert set(found) == {name.split("/")[1] for name in CHEAP}
    for name, one in found.items():
        assert not one["error"], f"{name}: {one['error']}"
        assert one["figures"]["story"]["faults"], name
        assert one["figures"]["wrong_bytes"] == 0
    assert found["peer-paused"]["figures"]["books"]["switch"]["orders"] == 1
    drawn = found["two-at-once"]["figures"]["story"]["faults"]
    assert len(drawn) == 2
    assert all(what in found["two-at-once"]["summary"] for what, _, _ in drawn)
    text = page.read_text()
    assert all(what in text for what, _, _ in drawn)
    assert text.count("<svg") == len(json.loads(report.read_text())["scenarios"])
    again = chaos("report", report, "--html", tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text() == text, again.stderr


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with Federation(tmp_path_factory.mktemp("own")) as federation:
        yield federation


def test_nothing_is_done_to_a_running_group_unless_somebody_says_yes(pair: Federation) -> None:
    peering = pair.groups["east"].path.with_name("peering.toml")
    began = pair.status("east")
    done = chaos("run", "--against", peering)
    assert done.returncode == 2
    said = done.stdout + done.stderr
    for what in ("pause west for 2 s", "drain west", "the federation is off", "is restarted"):
        assert what in said
    assert "nothing was done" in said
    for words in (["cut"], ["smoke"]):
        refused = chaos("run", *words, "--against", peering, "--yes")
        assert refused.returncode == 2
        assert "nothing that may be done to a running group" in refused.stderr
    assert pair.status("east")["counters"].get("moonmesh_orders_total") == began["counters"].get(
        "moonmesh_orders_total"
    )


def test_a_running_group_keeps_what_its_operator_has_ordered(
    pair: Federation, tmp_path: Path
) -> None:
    group = pair.groups["east"]
    orders = OrderFile(group.config.data_dir)
    orders.change(lambda held: held.with_peer("west", Order.DRAINED, 1.0))
    report = tmp_path / "report.json"
    peering = group.path.with_name("peering.toml")
    done = chaos(
        *("run", "pause", "off", "restart", "--against", peering, "--yes"),
        *("--json", report, "--retries", 2, "--forgive-time"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = scenarios(report)
    assert set(found) == {"pause-west", "federation-off", "gateway-restarted"}
    for name, one in found.items():
        assert not one["error"], f"{name}: {one['error']}"
        assert one["figures"]["verified_bytes"] > 5_000_000
        assert one["figures"]["wrong_bytes"] == 0
    assert orders.read().peers == {"west": Order.DRAINED}
    assert not orders.read().off
    orders.change(lambda held: held.with_peer("west", Order.ON, 2.0))
