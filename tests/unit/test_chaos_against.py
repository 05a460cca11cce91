"""Faults on a group that runs already: which ones there are, what they are judged by, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.against import FAULTS, Theirs, group_of, plan
from chaos.errors import ChaosError
from chaos.network.base import CLEAR, Places
from chaos.runner import Planned
from chaos.steps import Signal, Switch
from federation.errors import UsageError
from tests.support.groups import write_group

PEERING = """
federation = "f"
[self]
group = "east"
credentials = "credentials"
[[peers]]
name = "west"
address = "127.0.0.1:1"
key = "ed25519:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
export = []
import = []
[[peers]]
name = "north"
address = "127.0.0.1:2"
key = "ed25519:AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
export = []
import = []
"""


@pytest.fixture
def peering(tmp_path: Path) -> Path:
    (tmp_path / "peering.toml").write_text(PEERING)
    write_group(tmp_path, port_base=20_000, gateway={"enabled": True, "peering": "peering.toml"})
    return tmp_path / "peering.toml"


def test_of_a_group_without_peers_nothing_can_be_asked(peering: Path) -> None:
    peering.write_text(PEERING.partition("[[peers]]")[0])
    with pytest.raises(UsageError, match="no peers"):
        planned(peering, "pause")
    assert planned(peering, "off")


def planned(peering: Path, *faults: str) -> list[Planned]:
    return plan(*group_of(peering), faults, f"--against {peering} --yes")


def test_a_group_is_found_by_its_peering_file(peering: Path) -> None:
    path, group = group_of(peering)
    assert (path.name, group.name) == ("group.toml", "east")
    with pytest.raises(UsageError, match=r"no such peering\.toml"):
        group_of(peering.with_name("other.toml"))
    other = peering.parent / "other"
    other.mkdir()
    (other / "peering.toml").write_text(PEERING)
    with pytest.raises(UsageError, match=r"no group\.toml beside it"):
        group_of(other / "peering.toml")


def test_all_that_is_done_is_what_an_operator_may_do_himself(peering: Path) -> None:
    every = planned(peering)
    assert [item.scenario.name for item in every] == [
        "pause-west", "pause-north", "drain-west", "drain-north", "federation-off",
        "gateway-restarted",
    ]  # fmt: skip
    for item in every:
        (step,) = item.scenario.steps
        restart = isinstance(step, Signal) and (step.do, step.part) == ("restart", "gateway")
        assert restart or isinstance(step, Switch)
        assert item.word.split()[0] in FAULTS
        assert item.word.endswith("--yes")
        assert item.scenario.workload.peer_rate == 0
        for name in ("wrong_bytes", "deadlines", "errors", "acknowledged", "healthy", "leftovers"):
            assert getattr(item.scenario.invariants, name).off is None


def test_single_faults_can_be_named_and_others_are_refused(peering: Path) -> None:
    assert [i.scenario.name for i in planned(peering, "off")] == ["federation-off"]
    for word in ("cut", "smoke", "kill"):
        with pytest.raises(UsageError, match="nothing that may be done to a running group"):
            planned(peering, word)


async def test_the_links_of_a_running_group_cannot_be_broken() -> None:
    network = Theirs(Places(("east",), (), 0))
    with pytest.raises(ChaosError, match="not ours to break"):
        await network.change("east", "west", CLEAR)
    assert await network.down() == []
