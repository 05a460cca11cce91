"""Several serving processes at one port: each serves all, fails by itself, and holds to one set of limits."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from federation.config import load_group
from federation.errors import MoonmeshError
from federation.peers import processes
from tests.support.federation import Federation, read, read_unhurried, write
from tests.support.wait import wait_for

pytestmark = [pytest.mark.real]

WORKERS = 2
MESSAGE_BYTES = 1 << 20
MOVED = "moonmesh_peer_bytes_total"
RATE = 8 << 20
"""Bytes a second that a peer may have of east, and that may come at once."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    limits = {
        "hello_interval_ms": 200,
        "peer_leased_bytes_min": "64 MiB",
        "peer_bytes_per_s": RATE,
    }
    own = {"east": {"serving": {"workers": WORKERS}, "limits": limits}}
    folder = tmp_path_factory.mktemp("workers")
    with Federation(folder, own=own, dram="512 MiB") as federation:
        yield federation


def workers(federation: Federation, name: str = "east") -> list[dict[str, Any]]:
    status = federation.status(name)
    return [status["serving"], *status["serving_others"]] if status else []


def test_each_listens_and_offers_all(pair: Federation) -> None:
    keys = [f"all-{i}" for i in range(8)]
    write(pair.engine("east"), keys)
    found = workers(pair)
    assert [each["state"] for each in found] == ["serving"] * WORKERS
    assert len({each["pid"] for each in found}) == WORKERS
    wait_for(lambda: {w["blocks"] for w in workers(pair)} == {8}, 20, "both to be told of all")
    wait_for(lambda: read(pair.engine("west"), keys[:1]) == ["peer"], 20, "west to see them")
    assert read(pair.engine("west"), keys) == ["peer"] * 8
    assert [each["state"] for each in (pair.status("west")["serving"],)] == ["serving"]
    assert pair.status("west")["serving_others"] == []


def test_one_that_is_killed_under_load_costs_no_byte_and_its_peer_is_not_shut_out(
    pair: Federation,
) -> None:
    """`read` compares each block with what was written."""
    west = pair.engine("west", deadline_ms=5000)
    keys = [f"kill-{i}" for i in range(1200)]
    for start in range(0, len(keys), 200):
        write(pair.engine("east"), keys[start : start + 200])
    wait_for(lambda: read(west, keys[-1:]) == ["peer"], 20, "west to see them")
    before = {each["pid"]: each["restarts"] for each in workers(pair)}
    victim = next(iter(before))
    tiers: list[str] = []
    with ThreadPoolExecutor(1) as beside:
        for start in range(0, len(keys) - 1, 40):
            if start == 400:
                beside.submit(os.kill, victim, signal.SIGKILL)
            tiers += read_unhurried(west, keys[start : start + 40])
    assert tiers.count("peer") + tiers.count("local") >= 0.9 * len(tiers), "the other one serves"
    wait_for(lambda: all(each["state"] == "serving" for each in workers(pair)), 30, "both to serve")
    after = {each["pid"] for each in workers(pair)}
    assert victim not in after
    assert len(after & set(before)) == WORKERS - 1, "the other one was not touched"
    (peer,) = pair.status("west")["peers"]
    assert peer["breaker"] == "closed"


def test_what_a_peer_may_have_it_has_of_all_of_them_together(pair: Federation) -> None:
    keys = [f"rate-{i}" for i in range(2401)]
    for start in range(0, len(keys), 200):
        write(pair.engine("east"), keys[start : start + 200])
    readers = [pair.engine("west", deadline_ms=10_000 + i) for i in range(4)]
    wait_for(lambda: read(readers[0], keys[-1:]) == ["peer"], 20, "west to see them")
    before, moved = served(pair), pair.counter("west", MOVED)
    began = time.monotonic()

    def chain(place: int) -> None:
        mine = keys[place : len(keys) - 1 : len(readers)]
        for start in range(0, len(mine), 50):
            part = mine[start : start + 50]
            wait_for(lambda part=part: "miss" not in read(readers[place], part), 30, "its turn")  # type: ignore[misc]

    with ThreadPoolExecutor(len(readers)) as threads:
        list(threads.map(chain, range(len(readers))))
    allowed = RATE * (1 + time.monotonic() - began) + WORKERS * MESSAGE_BYTES
    moved = pair.counter("west", MOVED) - moved
    assert 2 * RATE < moved <= allowed
    # Which of them a connection leads to is for the kernel to say; it is made anew until each has one.
    # What is asked one after the other goes over the first: so all ask at once.
    rounds = itertools.count()

    def of_both() -> bool:
        number = next(rounds)
        chains = [
            [f"more-{number}-{place}-{i}" for i in range(25)] for place in range(len(readers))
        ]
        write(pair.engine("east"), [key for keys in chains for key in keys])
        with ThreadPoolExecutor(len(readers)) as threads:
            list(threads.map(read, readers, chains))
        return all(now > then for now, then in zip(served(pair), before, strict=True))

    wait_for(of_both, 20, "both to serve", every=0.2)


def served(federation: Federation) -> list[int]:
    """Blocks that each has read for peers."""
    return [
        sum(n for what, n in each["store"]["outcomes"].items() if what.endswith(".hit"))
        for each in workers(federation)
    ]


async def test_a_port_that_others_share_is_found_taken(
    pair: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel would let another gateway of this user in."""
    monkeypatch.setattr(processes, "PORT_WAIT_SECONDS", 0.2)
    with pytest.raises(MoonmeshError, match="cannot listen there"):
        await processes.nobody_listens(load_group(pair.folder / "east" / "group.toml"))


def test_all_end_with_their_gateway(pair: Federation) -> None:
    found = [psutil.Process(each["pid"]) for each in workers(pair)]
    gateway = found[0].parent()
    assert gateway is not None
    gateway.kill()
    psutil.wait_procs(found, timeout=10)
    assert not any(each.is_running() for each in found)
    wait_for(
        lambda: [w["state"] for w in workers(pair)] == ["serving"] * WORKERS, 60, "the next ones"
    )
