from __future__ import annotations

import re
import shutil
import socket
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from federation.bench.session import Outcome
from federation.bench.tally import Tally
from federation.cli import demo, main
from local_group.process_errors import PortInUse
from tests.support.groups import free_port_base

REQUESTS = 100


def outcome(isolated: int = 30, federated: int = 40, pool: int = 42, peer: int = 10) -> Outcome:
    def tally(mode: str, hits: int, peer_hits: int = 0) -> Tally:
        return Tally(
            mode, requests=REQUESTS, local_hits=hits - peer_hits, peer_hits=peer_hits,
            misses=100 - hits,
        )  # fmt: skip

    return Outcome(
        {
            "federated": tally("federated", federated, peer),
            "isolated": tally("isolated", isolated),
            "one-pool": tally("one-pool", pool),
        }
    )


def test_what_a_demo_is_to_show() -> None:
    assert demo.find_problem(outcome(), REQUESTS) == ""
    assert demo.find_problem(outcome(federated=36), REQUESTS) == ""  # half of the gain


@pytest.mark.parametrize(
    ("mode", "change", "what"),
    [
        ("one-pool", {"wrong_bytes": 3}, "3 bytes were wrong"),
        ("isolated", {"errors": 1, "first_errors": ["get: no"]}, "isolated: get: no"),
        ("federated", {"deadline_overruns": 2, "worst_overrun_ms": 70.0}, "2 calls .* by 70 ms"),
        ("one-pool", {"requests": 99}, "one-pool: 99 of 100 requests"),
        ("federated", {"peer_hits": 0, "local_hits": 40}, "no block came from the other group"),
    ],
)
def test_what_went_wrong_is_a_problem(mode: str, change: dict[str, object], what: str) -> None:
    found = outcome()
    for name, value in change.items():
        setattr(found.tallies[mode], name, value)
    assert re.search(what, demo.find_problem(found, REQUESTS))


def test_a_hit_rate_that_hardly_rose_is_a_problem() -> None:
    found = demo.find_problem(outcome(federated=35), REQUESTS)
    assert "from 30.0% to 35.0% only, where one pool has 42.0%" in found


@pytest.mark.parametrize("offset", [0, 2, 10, 11])  # master, gateway, store, the pool's second
def test_a_taken_port_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    bases = free_port_base(), free_port_base()
    example = tmp_path / "example"
    shutil.copytree(demo.find_example(), example)
    for name, base, free in zip(demo.GROUPS, (7400, 7500), bases, strict=True):
        path = example / name / "group.toml"
        path.write_text(path.read_text().replace(f"port_base = {base}", f"port_base = {free}"))
    monkeypatch.setattr(demo, "find_example", lambda: example)
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    with socket.socket() as server:
        server.bind(("127.0.0.1", bases[0] + offset))
        server.listen()
        result = CliRunner().invoke(main.app, ["demo"])
    assert isinstance(result.exception, PortInUse)
    assert result.exception.exit_code == 1
    assert f"port {bases[0] + offset}, needed for" in result.exception.what
    assert "pid" in result.exception.what
    assert "moonmesh down" in result.exception.hint
    assert result.output == ""
    assert list(place.iterdir()) == []
