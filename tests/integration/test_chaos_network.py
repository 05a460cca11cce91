"""Network namespaces of the chaos runner: the kernel's faults, real groups, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Literal

import psutil
import pytest

from chaos.cleanup import marked, runs_folder
from chaos.network.base import CLEAR, Fault, Places
from chaos.network.namespaces import Namespaces
from chaos.network.tools import NAMED, PREFIX, inside, named_of, remove, why_not
from tests.support.groups import CHAOS_PORTS, command, environment, moonmesh
from tests.support.own_tmp import own_tmp

PROBLEM = why_not()
pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(240),
    pytest.mark.skipif(PROBLEM is not None, reason=PROBLEM[0] if PROBLEM else ""),
]

SCENARIO = """
name = "cut"
summary = "the network is cut one way, then a peer is hostile"
workload = { seconds = 10 }

[topology]
groups = ["east", "west"]
dram = "128 MiB"
hostile = { evil = ["demo"] }

[[steps]]
do = "link"
mode = "cut"
both = false
at = 0.5
lasts = 1
source = "east"
to = "west"

[[steps]]
do = "hostile"
at = 2
lasts = 1
name = "evil"
target = "west"
answer = "wrong-bytes"
claims = ["east"]

[invariants]
local_p99 = { off = "the machine runs other tests; the suite smoke compares latencies" }
deadlines = { allowed_share = 0.05 }
errors = { given_up_share = 0.5 }
returns = { within_s = 8 }
"""
CLONE_NEWNET = 0x40000000
_numbers = itertools.count()


@pytest.fixture(scope="module", autouse=True)
def _own_tmp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs of other tests do not clean up after a run that is killed here."""
    tmp_path_factory.getbasetemp()  # in the TMPDIR of before
    with own_tmp():
        yield


def within(namespace: str, kind: int = socket.SOCK_STREAM) -> socket.socket:
    """A socket of a namespace: a thread that has entered it makes it, and anyone can use it."""
    made: list[socket.socket] = []

    def make() -> None:
        with (NAMED / namespace).open() as file:
            assert ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) == 0
            made.append(socket.socket(socket.AF_INET, kind))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    made[0].settimeout(5)
    return made[0]


class Net:
    """Two places, `a` and `b`, and sockets in them."""

    def __init__(self, folder: Path, **of_the_network: Any) -> None:
        self.run = f"test-{os.getpid()}-{next(_numbers)}"
        self.owned: list[str] = []
        places = Places(("a", "b"), (), 29_000)
        log = folder / "delay.log"
        self.network = Namespaces(places, f"{self.run}-1", self._owns, log, **of_the_network)
        self._open = contextlib.ExitStack()
        self._listener: socket.socket | None = None

    def _owns(self, names: object) -> None:
        assert named_of(self.run) == [], "they are named before there are any"
        self.owned += list(names)  # type: ignore[call-overload]

    async def __aenter__(self) -> Net:
        await self.network.up()
        self._listener = self.socket("b")
        self._listener.bind((self.network.listen("b"), 29_000))
        self._listener.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._open.close()
        left = await self.network.down()
        assert (left, named_of(self.run)) == ([], [])

    def socket(self, place: str, kind: int = socket.SOCK_STREAM) -> socket.socket:
        return self._open.enter_context(within(f"{PREFIX}{self.run}-1-{place}", kind))

    def dial(self) -> tuple[socket.socket, socket.socket]:
        """Both ends of a connection that `a` has made."""
        here = self.socket("a")
        here.connect((self.network.listen("b"), 29_000))
        assert self._listener is not None
        there, _ = self._listener.accept()
        there.settimeout(5)
        return here, self._open.enter_context(there)

    def filters(self) -> str:
        """The packet rules that there are between the places."""
        hub = inside(f"{PREFIX}{self.run}-1")
        return subprocess.check_output([*hub, "iptables", "-S", "FORWARD"], text=True)

    async def both(self, fault: Fault) -> None:
        await self.network.change("a", "b", fault)
        await self.network.change("b", "a", fault)


@pytest.fixture
async def net(tmp_path: Path) -> AsyncIterator[Net]:
    made = Net(tmp_path)
    try:
        async with made:
            yield made
    finally:
        remove(made.owned)


def hears(end: socket.socket, seconds: float) -> bytes:
    end.settimeout(seconds)
    try:
        return end.recv(65_536)
    except TimeoutError:
        return b"(nothing)"


def round_trip(here: socket.socket, there: socket.socket) -> float:
    """Seconds for a byte there and one back."""
    began = time.monotonic()
    here.sendall(b"x")
    assert hears(there, 5) == b"x"
    there.sendall(b"y")
    assert hears(here, 5) == b"y"
    return time.monotonic() - began


async def test_a_cut_is_for_one_direction_and_heals(net: Net) -> None:
    here, there = net.dial()
    assert round_trip(here, there) < 1
    await net.network.change("b", "a", Fault("cut"))
    here.sendall(b"asked")
    assert hears(there, 5) == b"asked"
    there.sendall(b"answered")
    assert hears(here, 0.3) == b"(nothing)"
    await net.network.change("b", "a", CLEAR)
    assert hears(here, 5) == b"answered", "TCP sends it again"


async def test_a_new_connection_gets_no_answer_in_a_cut(net: Net) -> None:
    await net.both(Fault("cut"))
    here = net.socket("a")
    here.settimeout(0.3)
    with pytest.raises(TimeoutError):
        here.connect((net.network.listen("b"), 29_000))
    await net.network.heal()
    here, there = net.dial()
    assert round_trip(here, there) < 1


async def test_a_reset_ends_open_connections_at_both_ends_and_refuses_new_ones(net: Net) -> None:
    here, there = net.dial()
    await net.both(Fault("reset"))
    for end in (here, there):
        end.sendall(b"x")
        with pytest.raises(ConnectionResetError):
            end.recv(1)
    with pytest.raises(ConnectionRefusedError):
        net.dial()
    await net.both(CLEAR)
    assert round_trip(*net.dial()) < 1


async def test_a_rate_is_kept_in_its_direction_alone(net: Net) -> None:
    here, there = net.dial()

    def seconds(sender: socket.socket, receiver: socket.socket) -> float:
        began = time.monotonic()
        sending = threading.Thread(target=sender.sendall, args=(b"x" * 1_000_000,))
        sending.start()
        left = 1_000_000
        while left:
            left -= len(hears(receiver, 5))
        sending.join()
        return time.monotonic() - began

    await net.network.change("a", "b", Fault("rate", mbit=8))
    assert 0.8 < seconds(here, there) < 4, "a million bytes at 1 MB/s"
    assert seconds(there, here) < 0.8
    await net.network.change("a", "b", Fault("rate", mbit=1000))
    assert seconds(here, there) < 0.8
    await net.network.heal()
    assert seconds(here, there) < 0.8


async def test_a_delay_acts_on_open_connections_in_its_direction(net: Net) -> None:
    here, there = net.dial()
    await net.network.change("a", "b", Fault("delay", ms=300))
    assert 0.3 <= round_trip(here, there) < 0.6
    await net.network.change("b", "a", Fault("delay", ms=300))
    assert 0.6 <= round_trip(here, there) < 1.2
    began = time.monotonic()
    net.dial()
    assert time.monotonic() - began >= 0.6, "handshakes are late too"
    await net.network.heal()
    assert round_trip(here, there) < 0.3


@pytest.mark.parametrize("mode", ["cut", "rate", "delay"])
async def test_a_change_that_is_broken_off_does_not_hinder_the_next(
    net: Net, mode: Literal["cut", "rate", "delay"]
) -> None:
    here, there = net.dial()
    for steps in range(12):  # broken off at many points of it
        fault = Fault(mode, mbit=1, ms=100)
        change = asyncio.create_task(net.network.change("a", "b", fault))
        for _ in range(steps):
            await asyncio.sleep(0.001)
        change.cancel()
        await asyncio.gather(change, return_exceptions=True)
        await net.network.change("a", "b", fault)
        await net.network.change("a", "b", CLEAR)
        here.sendall(b"x")
        assert hears(there, 5) == b"x"
        assert "DROP" not in net.filters()


async def test_a_share_of_the_packets_is_lost(net: Net) -> None:
    sender, receiver = net.socket("a", socket.SOCK_DGRAM), net.socket("b", socket.SOCK_DGRAM)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    receiver.bind((net.network.listen("b"), 29_001))
    await net.network.change("a", "b", Fault("loss", share=0.2))
    heard = 0
    for _ in range(10):
        for _ in range(100):
            sender.sendto(b"x", (net.network.listen("b"), 29_001))
        while hears(receiver, 0.05) == b"x":
            heard += 1
    assert 700 < heard < 900  # eight standard deviations


async def test_places_may_have_another_congestion_control_than_the_host(tmp_path: Path) -> None:
    async with Net(tmp_path, congestion="reno") as net:
        for end in net.dial():
            control = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            assert control.rstrip(b"\0") == b"reno"


async def test_the_network_of_the_host_has_no_part_in_it(tmp_path: Path) -> None:
    def seen() -> tuple[list[str], str]:
        filters = subprocess.run(["iptables-save"], capture_output=True, text=True, check=True)
        rules = [line for line in filters.stdout.splitlines() if not line.startswith("#")]
        return sorted(psutil.net_if_addrs()), "\n".join(r.split(" [")[0] for r in rules)

    before = seen()
    async with Net(tmp_path) as net:
        await net.both(Fault("cut"))
        assert len(named_of(net.run)) == 3
        assert seen() == before
    assert seen() == before


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("scenario") / "cut.toml"
    path.write_text(SCENARIO)
    return str(path)


def arguments(scenario: str) -> list[str]:
    given = ["chaos", "run", scenario, "--seed", "5", "--port-base", CHAOS_PORTS]
    return [*given, "--network", "namespaces"]


@contextlib.contextmanager
def running(scenario: str) -> Iterator[subprocess.Popen[str]]:
    """A run whose groups are up."""
    process = subprocess.Popen(
        command(*arguments(scenario)), env=environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "cut between east and west" in line:
                break
        yield process
    finally:
        process.kill()
        process.wait()


def run_of(runner: int) -> str:
    """The id of the run that a process makes."""
    (record,) = runs_folder().glob(f"{runner}-*.json")
    return record.stem


def test_an_interrupted_run_removes_its_namespaces(scenario: str) -> None:
    with running(scenario) as runner:
        run = run_of(runner.pid)
        assert len(named_of(run)) == 4
        runner.send_signal(signal.SIGINT)
        assert runner.stdout is not None
        rest = runner.stdout.read()
        assert runner.wait(60) == 128 + signal.SIGINT, rest
    assert named_of(run) == []
    assert list(marked(run)) == []


def of_the_living() -> Iterator[Path]:
    """Namespaces whose name is that of a process that runs: another test's."""
    for path in NAMED.glob(f"{PREFIX}*"):
        pid = path.name.removeprefix(PREFIX).lstrip("t").partition("-")[0]
        if pid.isdigit() and psutil.pid_exists(int(pid)):
            yield path


def test_a_scenario_holds_after_a_killed_one_and_nothing_of_either_is_left(
    tmp_path: Path, scenario: str
) -> None:
    before = set(NAMED.iterdir()) if NAMED.is_dir() else set()
    with running(scenario) as runner:
        run = run_of(runner.pid)
        runner.send_signal(signal.SIGKILL)
        runner.wait()
    assert len(named_of(run)) == 4, "nothing was left: this shows nothing"
    assert list(marked(run))
    report = tmp_path / "report.json"
    done = moonmesh(*arguments(scenario), "--json", report, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"cleaned up after the run {run}" in done.stdout
    assert "4 network namespaces, 0 could not be removed" in " ".join(done.stdout.split())
    assert named_of(run) == []
    assert list(marked(run)) == []
    assert not (runs_folder() / f"{run}.json").exists()
    (found,) = json.loads(report.read_text())["scenarios"]
    assert found["again"].endswith("--network namespaces")
    assert found["figures"]["verified_bytes"] > 20 << 20
    assert set(NAMED.iterdir()) - before <= set(of_the_living())


def test_without_root_it_is_refused_with_exit_code_2(scenario: str, tmp_path: Path) -> None:
    script = (
        "import os, sys; os.geteuid = lambda: 1000; from federation.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments(scenario)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert "network namespaces need root" in done.stderr


def test_loss_on_loopback_is_refused_with_exit_code_2() -> None:
    done = moonmesh("chaos", "run", "network/lossy-link")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "--network namespaces" in done.stderr
