"""What faces peers is a process of its own: its limits, and what it takes to replace it."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import grpc
import psutil
import pytest

from federation.allocator import SERVING_KEPT_BYTES
from federation.identity import Fingerprint
from federation.limits_config import SERVING_BYTES_PER_BLOCK
from federation.serving import RESERVED_BYTES
from federation.transfer.losses import LOST_BLOCKS_MIN
from moonmesh.v1 import engine_pb2
from tests.support.federation import FINGERPRINT, Federation, read, write
from tests.support.wait import wait_for

pytestmark = pytest.mark.real

FIRST_WORK_BYTES = 2 << 20
"""What a serving process takes with its first work, whatever the blocks: of `SERVING_OWN_BYTES`."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with Federation(tmp_path_factory.mktemp("limits")) as federation:
        yield federation


def test_a_file_that_was_broken_meanwhile_does_not_matter(pair: Federation) -> None:
    """A new process is what its gateway is. The next gateway has to read them, and says so."""
    folder = pair.groups["east"].path.parent
    kept = {name: (folder / name).read_bytes() for name in ("group.toml", "peering.toml")}
    east, west = pair.engine("east"), pair.engine("west", deadline_ms=1000)
    write(east, ["broken-0", "broken-1"])
    wait_for(lambda: read(west, ["broken-0"]) != ["miss"], 20, "west to see east")
    old = pair.serving("east")["pid"]
    try:
        for name in kept:
            (folder / name).write_text("[[[ half an edit")
        (folder / "credentials").rename(folder / "elsewhere")
        os.kill(old, signal.SIGKILL)
        wait_for(lambda: pair.serves_anew("east", old), 30, "a new serving process")
        wait_for(lambda: read(west, ["broken-1"]) != ["miss"], 20, "pulls to be back")
    finally:
        (folder / "elsewhere").rename(folder / "credentials")
        for name, content in kept.items():
            (folder / name).write_bytes(content)


def test_it_has_limits_of_its_own(pair: Federation) -> None:
    limits = pair.groups["east"].config.limits
    process = psutil.Process(pair.serving("east")["pid"])
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
    wait_for(lambda: pair.serving("west")["reserve_pid"], 20, "one in reserve")
    both = {pair.serving("west")[name] for name in ("pid", "reserve_pid")}
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
    assert pair.serving("west")["pid"] not in both


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
    east, west = tight.engine("east"), tight.engine("west", deadline_ms=3000)
    config = tight.groups["east"].config
    write(east, ["before", "during"])
    wait_for(lambda: read(west, ["before"]) != ["miss"], 20, "west to see east")
    process = psutil.Process(tight.serving("east")["pid"])
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
    before = tight.serving("east")
    room = config.limits.holdings_blocks
    with grpc.insecure_channel(f"unix:{config.gateway_socket}") as channel:
        _report_nothing(channel, FINGERPRINT, room + 1000)
    wait_for(
        lambda: tight.serving("east").get("blocks") == room,
        60,
        f"all to be offered: {tight.serving('east')}",
    )
    now = tight.serving("east")
    assert now["pid"] == before["pid"], now
    assert tight.status("east")["holdings"]["refused"] >= 1000
    assert now["rss_bytes"] < config.limits.serving_memory
    # What messages took is kept for the next ones, and is no block's.
    grown = now["rss_bytes"] - before["rss_bytes"] - FIRST_WORK_BYTES - SERVING_KEPT_BYTES
    each = grown / (room - before["blocks"])
    print(f"{before['rss_bytes'] >> 20} MiB, then {now['rss_bytes'] >> 20} MiB: {each:.0f} a block")
    assert each < SERVING_BYTES_PER_BLOCK
    # A listing takes them away, at once since a serve finds that they are lost; then there is room again.
    east, west = tight.engine("east"), tight.engine("west", deadline_ms=3000)
    lost = [f"{i:01000d}" for i in range(LOST_BLOCKS_MIN)]

    def listed() -> bool:
        read(west, lost)
        return bool(tight.serving("east").get("blocks", room) < 100)

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
