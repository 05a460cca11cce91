"""What faces peers is a process of its own: engines and pulls do not feel that it dies, or hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.clock import Punctuality
from tests.support.federation import Federation, read, write
from tests.support.groups import environment
from tests.support.wait import wait_for

pytestmark = [pytest.mark.real, pytest.mark.alone]

BACK_SECONDS = 5.0
IDLE_LOADING = 1.0
"""What Python takes to load a serving process where two cores have nothing else to do."""
DEADLINE = 1.5


def loading_seconds() -> float:
    """What it takes now: by how much the machine, not the gateway, delays a new process."""
    began = time.monotonic()
    code = [sys.executable, "-c", "import federation.serving"]
    subprocess.run(code, env=environment(), check=True)
    return time.monotonic() - began


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with Federation(tmp_path_factory.mktemp("serving")) as federation:
        yield federation


class Load(threading.Thread):
    """An engine of a group that reads local and peer blocks, and notes errors and overruns."""

    def __init__(
        self, federation: Federation, name: str, local: list[str], peer: list[str]
    ) -> None:
        super().__init__(daemon=True)
        self._store = federation.store(name, deadline_ms=int(1000 * DEADLINE))
        self._local, self._peer = local, iter(peer)
        self._ends = threading.Event()
        self._timed = Punctuality()
        self.from_peer = 0
        self.missed = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with self._timed:
                while not self._ends.wait(0.05):
                    keys = [next(self._peer), next(self._peer)]
                    tiers = read(self._store, [*self._local, *keys], timed=self._timed)
                    assert tiers[: len(self._local)] == ["local"] * len(self._local), tiers
                    self.from_peer += tiers.count("peer")
                    self.missed += tiers.count("miss")
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        """Ends it. Raises what it met; AssertionError if a deadline was not kept."""
        self._ends.set()
        self.join(30)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        self._timed.check(DEADLINE)


def wait_until_all_is_seen(federation: Federation, name: str, peer: str) -> None:
    """`name` believes that `peer` has all that it offers: none of it is a miss for a late catalog."""

    def seen() -> bool:
        views = [v for p in federation.status(name).get("peers", []) for v in p["views"]]
        return bool(sum(v["blocks"] for v in views) == federation.serving(peer).get("blocks"))

    wait_for(seen, 30, f"{name} to see all of {peer}")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_engines_and_pulls_of_its_group_do_not_notice(
    pair: Federation, number: signal.Signals
) -> None:
    """`east` serves; its own engine reads locally and pulls from `west` all the while."""
    name = number.name
    east, west = pair.engine("east"), pair.engine("west", deadline_ms=1000)
    local = [f"{name}-local-{i}" for i in range(4)]
    of_west = [f"{name}-west-{i}" for i in range(1600)]
    of_east = [f"{name}-east-{i}" for i in range(2)]
    write(east, [*local, *of_east])
    for start in range(0, len(of_west), 200):
        write(west, of_west[start : start + 200])
    wait_for(lambda: read(east, of_west[:1]) != ["miss"], 20, "east to see west")
    wait_for(lambda: read(west, of_east[:1]) != ["miss"], 20, "west to see east")
    wait_until_all_is_seen(pair, "east", "west")
    wait_until_all_is_seen(pair, "west", "east")
    loading = loading_seconds()
    load = Load(pair, "east", local, of_west[1:])
    load.start()
    try:
        wait_for(lambda: load.from_peer > 10, 30, "the load to run")
        wait_for(lambda: pair.serving("east")["reserve_pid"], 20, "one in reserve")
        before, old = load.from_peer, pair.serving("east")["pid"]
        os.kill(old, number)
        began = time.monotonic()
        wait_for(lambda: pair.serves_anew("east", old), 60, "a new serving process")
        restarted = time.monotonic() - began
        wait_for(lambda: read(west, of_east[1:]) != ["miss"], 60, "west's pulls to be back")
        back = time.monotonic() - began
    finally:
        load.stop()
    loading = max(loading, loading_seconds())
    print(f"{name}: {restarted=:.2f} s, {back=:.2f} s, {loading=:.2f} s, {load.from_peer=}")
    assert load.missed == 0
    assert load.from_peer > before
    assert back < BACK_SECONDS * max(1.0, loading / IDLE_LOADING)
    status = pair.serving("east")
    assert status["restarts"] >= 1
    assert status["last_exit"]
    (peer,) = pair.status("east")["peers"]
    assert peer["state"] == "alive"
