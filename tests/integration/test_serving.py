"""What faces peers is a process of its own: what happens to it is not felt by engines and pulls."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import psutil
import pytest

from federation.identity import Fingerprint
from federation.serving import RESERVED_BYTES
from moonmesh.v1 import engine_pb2
from tests.support.clock import SchedulingDelay
from tests.support.federation import FINGERPRINT, Federation, read, write
from tests.support.groups import environment
from tests.support.wait import wait_for

pytestmark = pytest.mark.real

BACK_SECONDS = 5.0
IDLE_LOADING = 1.0
"""What Python takes to load a serving process where two cores have nothing else to do."""
DEADLINE = 1.5


def serving(federation: Federation, name: str) -> dict[str, Any]:
    return dict(federation.status(name).get("serving") or {})


def loading_seconds() -> float:
    """What it takes now: by how much the machine, not the gateway, delays a new process."""
    began = time.monotonic()
    code = [sys.executable, "-c", "import federation.serving"]
    subprocess.run(code, env=environment(), check=True)
    return time.monotonic() - began


def replaced(federation: Federation, name: str, pid: int) -> bool:
    now = serving(federation, name)
    return now.get("state") == "serving" and now.get("pid") != pid


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
        self._local, self._peer = local, peer
        self._ends = threading.Event()
        self.rounds = 0
        self.from_peer = 0
        self.missed = 0
        self.overrun = 0.0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._ends.is_set() and self._peer:
                keys, self._peer = self._peer[:2], self._peer[2:]
                began = time.monotonic()
                tiers = read(self._store, [*self._local, *keys])
                self.overrun = max(self.overrun, time.monotonic() - began - DEADLINE)
                assert tiers[: len(self._local)] == ["local"] * len(self._local), tiers
                self.from_peer += tiers.count("peer")
                self.missed += tiers.count("miss")
                self.rounds += 1
                self._ends.wait(0.02)
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        self._ends.set()
        self.join(30)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_engines_and_pulls_of_its_group_do_not_notice(
    pair: Federation, number: signal.Signals
) -> None:
    """`east` serves; its own engine reads locally and pulls from `west` all the while."""
    name = number.name
    east, west = pair.store("east"), pair.store("west", deadline_ms=1000)
    local = [f"{name}-local-{i}" for i in range(4)]
    of_west = [f"{name}-west-{i}" for i in range(1000)]
    of_east = [f"{name}-east-{i}" for i in range(400)]
    write(east, local)
    for store, keys in ((east, of_east), (west, of_west)):
        for start in range(0, len(keys), 200):
            write(store, keys[start : start + 200])
    # A first question makes each follow the other's catalog.
    wait_for(lambda: read(east, of_west[:1]) != ["miss"], 20, "east to see west")
    wait_for(lambda: read(west, of_east[:1]) != ["miss"], 20, "west to see east")
    slower = max(1.0, loading_seconds() / IDLE_LOADING)
    load = Load(pair, "east", local, of_west[2:])
    old = serving(pair, "east")["pid"]
    with SchedulingDelay() as noise:
        load.start()
        wait_for(lambda: load.from_peer > 10, 20, "the load to run")
        os.kill(old, number)
        began = time.monotonic()
        fresh = iter(of_east[1:])
        wait_for(lambda: replaced(pair, "east", old), 20, "a new serving process")
        restarted = time.monotonic() - began
        wait_for(lambda: read(west, [next(fresh)]) != ["miss"], 20, "west's pulls to be back", 0.05)
        back = time.monotonic() - began
        load.stop()
        late = noise.worst()
    print(
        f"{name}: {slower=:.1f} restarted after {restarted:.2f} s, pulls back after {back:.2f} s; {late=:.3f}"
    )
    assert load.error is None
    assert load.missed == 0
    assert load.overrun < 0.010 + late
    assert back < BACK_SECONDS * slower
    status = serving(pair, "east")
    assert status["restarts"] >= 1
    assert status["last_exit"]
    (peer,) = pair.status("east")["peers"]
    assert peer["state"] == "alive"


def test_it_has_limits_of_its_own(pair: Federation) -> None:
    limits = pair.groups["east"].config.limits
    process = psutil.Process(serving(pair, "east")["pid"])
    tasks = [int(name) for name in os.listdir(f"/proc/{process.pid}/task")]
    assert len(tasks) > 10
    assert {os.getpriority(os.PRIO_PROCESS, tid) for tid in tasks} == {limits.serving_nice}
    assert process.rlimit(psutil.RLIMIT_NOFILE) == (limits.serving_descriptors,) * 2
    assert process.rlimit(psutil.RLIMIT_DATA) == (limits.serving_memory + RESERVED_BYTES,) * 2
    gateway = psutil.Process(pair.groups["east"].pid("gateway"))
    assert gateway.nice() == 0
    assert gateway.rlimit(psutil.RLIMIT_DATA)[0] != limits.serving_memory + RESERVED_BYTES
    # It alone listens for peers, and it is in the gateway's process group.
    port = pair.groups["east"].config.ports.peers
    assert port in {c.laddr.port for c in process.net_connections() if c.status == "LISTEN"}
    assert port not in {c.laddr.port for c in gateway.net_connections() if c.status == "LISTEN"}
    assert os.getpgid(process.pid) == gateway.pid


def test_kill_9_of_the_gateway_leaves_no_serving_process(pair: Federation) -> None:
    group = pair.groups["west"]
    old = serving(pair, "west")["pid"]
    assert group.processes()["serving"].pid == old, "`down` finds it"
    gateway = group.kill("gateway")
    wait_for(lambda: not psutil.pid_exists(old), 5, "it to end with its gateway")
    wait_for(
        lambda: group.phase("gateway") == "ready" and group.pid("gateway") != gateway,
        30,
        "the gateway to be started again",
    )
    pair.wait_until_alive()
    assert [n for n in group.processes() if n.startswith("serving")] == ["serving"]


def test_what_gossip_makes_of_a_hello_is_the_answer_to_the_next(pair: Federation) -> None:
    """A statement that is well signed, of an epoch that was lost: only the gateway can tell."""
    group = pair.groups["west"]
    before = pair.status("west")["epoch"]
    assert before > 1, "an earlier test has restarted it"
    file = group.config.coordination_dir / "epoch"
    kept = file.read_bytes()
    file.unlink()
    group.kill("gateway")
    wait_for(lambda: pair.status("west").get("epoch") == 1, 30, "west to begin again")

    def told() -> bool:
        (east,) = pair.status("west")["peers"]
        return "not believed" in str(east["reason"])

    wait_for(told, 20, f"west to be told: {pair.status('west')['peers']}")
    (west,) = pair.status("east")["peers"]
    assert west["rejected"]["old_epoch"] > 0
    # Once it is above what was heard, it is believed again.
    file.write_bytes(kept)
    group.kill("gateway")
    wait_for(lambda: pair.status("west").get("epoch", 0) > before, 30, "west to be started anew")
    pair.wait_until_alive()


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Groups whose serving processes are allowed little."""
    limits = {
        "serving_descriptors": 256,
        "serving_memory": "288 MiB",
        "bounce_bytes": "16 MiB",
        "block_bytes_max": "1 MiB",
        "staging_bytes": "16 MiB",
        "holdings_blocks": 125_000,
        "listing_interval_ms": 25_000,
        "control_message_bytes_max": "8 MiB",
    }
    with Federation(tmp_path_factory.mktemp("tight"), limits=limits) as federation:
        yield federation


def test_strangers_who_only_connect_take_no_more_than_its_descriptors(tight: Federation) -> None:
    east, west = tight.store("east"), tight.store("west", deadline_ms=3000)
    config = tight.groups["east"].config
    write(east, ["before", "during"])
    wait_for(lambda: read(west, ["before"]) != ["miss"], 20, "west to see east")
    process = psutil.Process(serving(tight, "east")["pid"])
    with ExitStack() as stack:
        for _ in range(400):
            taken = stack.enter_context(socket.socket())
            taken.setblocking(False)
            taken.connect_ex((config.gateway.listen, config.ports.peers))
        wait_for(lambda: process.num_fds() > 200, 20, "the connections to be taken")
        assert process.num_fds() <= 256
        assert read(east, ["before"]) == ["local"]
        assert psutil.Process(tight.groups["east"].pid("gateway")).num_fds() < 200
    wait_for(lambda: read(west, ["during"]) != ["miss"], 20, "pulls, after they are gone")


def test_with_too_much_memory_in_use_it_is_killed_and_comes_back(tight: Federation) -> None:
    """Blocks with the longest keys: more than the cap was reckoned for. A listing takes them away."""
    config = tight.groups["east"].config
    old = serving(tight, "east")["pid"]
    with grpc.insecure_channel(f"unix:{config.gateway_socket}") as channel:
        _report_nothing(channel, FINGERPRINT, 120_000)
    wait_for(
        lambda: tight.counter("east", "moonmesh_serving_over_memory_total") > 0,
        30,
        f"it to be killed: {serving(tight, 'east')}",
    )
    assert "of memory and was killed" in serving(tight, "east")["last_exit"]
    wait_for(
        lambda: replaced(tight, "east", old) and serving(tight, "east")["blocks"] < 100,
        60,
        f"it to come back without them: {serving(tight, 'east')}",
    )
    east, west = tight.store("east"), tight.store("west", deadline_ms=3000)
    write(east, ["after"])
    wait_for(lambda: read(west, ["after"]) != ["miss"], 20, "pulls to be back")


def _report_nothing(channel: grpc.Channel, fingerprint: Fingerprint, count: int) -> None:
    """Says that an engine has put blocks that Mooncake has not."""
    call = channel.unary_unary("/moonmesh.v1.Engine/Report")
    step = 4000
    for start in range(0, count, step):
        request = engine_pb2.ReportRequest(fingerprint=fingerprint)
        for i in range(start, min(start + step, count)):
            request.written.add(key=f"{i:01000d}", size=4096, digest=b"d" * 16)
        call(request.SerializeToString(), timeout=30)
