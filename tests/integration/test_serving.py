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
from federation.limits_config import SERVING_BYTES_PER_BLOCK
from federation.serving import RESERVED_BYTES
from federation.transfer.losses import LOST_BLOCKS_MIN
from moonmesh.v1 import engine_pb2
from tests.support.clock import Punctuality
from tests.support.federation import FINGERPRINT, Federation, read, write
from tests.support.groups import environment
from tests.support.wait import wait_for

pytestmark = [pytest.mark.real, pytest.mark.alone]

BACK_SECONDS = 5.0
IDLE_LOADING = 1.0
"""What Python takes to load a serving process where two cores have nothing else to do."""
DEADLINE = 1.5
FIRST_WORK_BYTES = 2 << 20
"""What a serving process takes with its first work, whatever the blocks: of `SERVING_OWN_BYTES`."""


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
        return bool(sum(v["blocks"] for v in views) == serving(federation, peer).get("blocks"))

    wait_for(seen, 30, f"{name} to see all of {peer}")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_engines_and_pulls_of_its_group_do_not_notice(
    pair: Federation, number: signal.Signals
) -> None:
    """`east` serves; its own engine reads locally and pulls from `west` all the while."""
    name = number.name
    east, west = pair.store("east"), pair.store("west", deadline_ms=1000)
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
        wait_for(lambda: serving(pair, "east")["reserve_pid"], 20, "one in reserve")
        before, old = load.from_peer, serving(pair, "east")["pid"]
        os.kill(old, number)
        began = time.monotonic()
        wait_for(lambda: replaced(pair, "east", old), 60, "a new serving process")
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
    status = serving(pair, "east")
    assert status["restarts"] >= 1
    assert status["last_exit"]
    (peer,) = pair.status("east")["peers"]
    assert peer["state"] == "alive"


def test_a_file_that_was_broken_meanwhile_does_not_matter(pair: Federation) -> None:
    """A new process is what its gateway is. The next gateway has to read them, and says so."""
    folder = pair.groups["east"].path.parent
    kept = {name: (folder / name).read_bytes() for name in ("group.toml", "peering.toml")}
    east, west = pair.store("east"), pair.store("west", deadline_ms=1000)
    write(east, ["broken-0", "broken-1"])
    wait_for(lambda: read(west, ["broken-0"]) != ["miss"], 20, "west to see east")
    old = serving(pair, "east")["pid"]
    try:
        for name in kept:
            (folder / name).write_text("[[[ half an edit")
        (folder / "credentials").rename(folder / "elsewhere")
        os.kill(old, signal.SIGKILL)
        wait_for(lambda: replaced(pair, "east", old), 30, "a new serving process")
        wait_for(lambda: read(west, ["broken-1"]) != ["miss"], 20, "pulls to be back")
    finally:
        (folder / "elsewhere").rename(folder / "credentials")
        for name, content in kept.items():
            (folder / name).write_bytes(content)


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
    wait_for(lambda: serving(pair, "west")["reserve_pid"], 20, "one in reserve")
    both = {serving(pair, "west")[name] for name in ("pid", "reserve_pid")}
    found = {p.pid for name, p in group.processes().items() if name.startswith("serving")}
    assert found == both, "`down` finds them"
    gateway = group.kill("gateway")
    wait_for(lambda: not any(map(psutil.pid_exists, both)), 10, "them to end with their gateway")
    wait_for(
        lambda: group.phase("gateway") == "ready" and group.pid("gateway") != gateway,
        30,
        "the gateway to be started again",
    )
    pair.wait_until_alive()
    assert serving(pair, "west")["pid"] not in both


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
        "holdings_blocks": 200_000,
        "listing_interval_ms": 600_000,
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


def test_all_blocks_that_are_tracked_fit_whatever_their_keys(tight: Federation) -> None:
    config = tight.groups["east"].config
    before = serving(tight, "east")
    room = config.limits.holdings_blocks
    with grpc.insecure_channel(f"unix:{config.gateway_socket}") as channel:
        _report_nothing(channel, FINGERPRINT, room + 1000)
    wait_for(
        lambda: serving(tight, "east").get("blocks") == room,
        60,
        f"all to be offered: {serving(tight, 'east')}",
    )
    now = serving(tight, "east")
    assert now["pid"] == before["pid"], now
    assert tight.status("east")["holdings"]["refused"] >= 1000
    assert now["rss_bytes"] < config.limits.serving_memory
    grown = now["rss_bytes"] - before["rss_bytes"] - FIRST_WORK_BYTES
    each = grown / (room - before["blocks"])
    print(f"{before['rss_bytes'] >> 20} MiB, then {now['rss_bytes'] >> 20} MiB: {each:.0f} a block")
    assert each < SERVING_BYTES_PER_BLOCK
    # A listing takes them away, at once since a serve finds that they are lost; then there is room again.
    east, west = tight.store("east"), tight.store("west", deadline_ms=3000)
    lost = [f"{i:01000d}" for i in range(LOST_BLOCKS_MIN)]

    def listed() -> bool:
        read(west, lost)
        return bool(serving(tight, "east").get("blocks", room) < 100)

    wait_for(listed, 60, "a listing")
    write(east, ["after"])
    wait_for(lambda: read(west, ["after"]) != ["miss"], 20, "pulls")


def _report_nothing(channel: grpc.Channel, fingerprint: Fingerprint, count: int) -> None:
    """Says that an engine has put blocks that Mooncake has not."""
    call = channel.unary_unary("/moonmesh.v1.Engine/Report")
    step = 4000
    for start in range(0, count, step):
        request = engine_pb2.ReportRequest(fingerprint=fingerprint)
        for i in range(start, min(start + step, count)):
            request.written.add(key=f"{i:01000d}", size=4096, digest=b"d" * 16)
        call(request.SerializeToString(), timeout=30)
