"""Pulling processes: blocks come through them, and what happens to one costs its pulls at most."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from tests.support.federation import Federation, read, read_unhurried, write
from tests.support.wait import wait_for

pytestmark = [pytest.mark.real]

WORKERS = 2


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    own = {"west": {"pulling": {"workers": WORKERS}}, "east": {"serving": {"workers": 2}}}
    limits = {"peer_leased_bytes_min": "64 MiB"}
    folder = tmp_path_factory.mktemp("pulling")
    with Federation(folder, own=own, limits=limits, dram="512 MiB") as federation:
        yield federation


def workers(federation: Federation) -> list[dict[str, Any]]:
    return list(federation.status("west").get("pulling", []))


def all_well(federation: Federation) -> bool:
    return [each["state"] for each in workers(federation)] == ["pulling"] * WORKERS


def connections(pid: int) -> int:
    return len(psutil.Process(pid).net_connections("tcp"))


def written(pair: Federation, name: str, count: int) -> list[str]:
    """Keys of blocks in east, of which west knows."""
    keys = [f"{name}-{i}" for i in range(count)]
    for start in range(0, count, 200):
        write(pair.engine("east"), keys[start : start + 200])
    wait_for(lambda: read(pair.engine("west"), keys[-1:]) == ["peer"], 20, "west to see them")
    return keys[:-1]


def test_blocks_come_through_them(pair: Federation) -> None:
    wait_for(lambda: all_well(pair), 30, "them to start")
    keys = written(pair, "through", 401)
    for start in range(0, 400, 50):
        assert read(pair.engine("west"), keys[start : start + 50]) == ["peer"] * 50
    assert any(connections(each["pid"]) > 0 for each in workers(pair))
    assert pair.status("west")["staging"]["reserved"] == 0
    assert all(each["pulls"] == 0 for each in workers(pair))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_one_that_ends_or_hangs_costs_no_wrong_byte_and_not_its_peer(
    pair: Federation, number: signal.Signals
) -> None:
    """`read` compares each block with what was written."""
    wait_for(lambda: all_well(pair), 30, "them to be there")
    west = pair.engine("west", deadline_ms=5000)
    keys = written(pair, number.name, 1201)
    before = [each["pid"] for each in workers(pair)]
    tiers: list[str] = []
    with ThreadPoolExecutor(1) as beside:
        for start in range(0, 1200, 40):
            if start == 400:
                beside.submit(os.kill, before[0], number)
            tiers += read_unhurried(west, keys[start : start + 40])
    # One that is frozen has its pulls for two seconds, in which a busy machine's engines give up some calls.
    share = 0.9 if number is signal.SIGKILL else 0.5
    assert tiers.count("peer") >= share * len(tiers)
    wait_for(lambda: all_well(pair) and before[0] not in pids(pair), 30, "another one")
    assert before[1] in pids(pair), "the other one was not touched"
    status = pair.status("west")
    assert status["peers"][0]["breaker"] == "closed"
    wait_for(lambda: pair.status("west")["staging"]["reserved"] == 0, 10, "its places to be free")


def pids(federation: Federation) -> list[int]:
    return [each["pid"] for each in workers(federation)]


def test_all_end_with_their_gateway(pair: Federation) -> None:
    found = [psutil.Process(pid) for pid in pids(pair)]
    keeper = found[0].parent()
    assert keeper is not None
    gateway = keeper.parent()
    assert gateway is not None
    gateway.kill()
    psutil.wait_procs([*found, keeper], timeout=10)
    assert not any(each.is_running() for each in (*found, keeper))
    wait_for(lambda: all_well(pair), 60, "the next ones")
    keys = written(pair, "again", 41)
    assert read(pair.engine("west"), keys) == ["peer"] * 40
