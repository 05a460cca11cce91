"""How a gateway keeps a serving process: real processes, of a program that fails in every way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timezone
from pathlib import Path

import psutil
import pytest

from federation.config import GroupFile, load_group
from federation.counters import counters
from federation.errors import MoonmeshError
from federation.peers.callers import Callers
from federation.peers.child import BACKOFF_SECONDS, ServingProcess
from federation.peers.feed import Feed
from federation.peers.setup import Setup
from federation.peers.spawn import Spawner
from federation.trust.credentials import TlsIdentity
from federation.trust.handshakes import RefusalLog
from local_group.holdings import Holdings
from local_group.state import leftovers
from moonmesh.v1 import peer_pb2
from tests.support.groups import REPOSITORY, environment, write_group
from tests.support.wait import wait_for, wait_for_async

pytestmark = pytest.mark.real

PROGRAM = (sys.executable, str(REPOSITORY / "tests" / "support" / "serving_stub.py"))
NOBODY = TlsIdentity("", b"", b"", b"", datetime.now(timezone.utc))


class Silence:
    """Gossip that hears nothing."""

    def heard(self, peer: str, hello: peer_pb2.HelloRequest) -> bool:
        return True

    def all_heard(self) -> None:
        return

    def disbelieved(self, peer: str, reason: str, detail: str, count: int) -> None:
        return

    def newest(self, peer: str) -> None:
        return None

    def greeting(self) -> peer_pb2.HelloReply:
        return peer_pb2.HelloReply()


Start = Callable[[str], ServingProcess]


@pytest.fixture
def config(tmp_path: Path) -> GroupFile:
    limits = {
        "serving_memory": "256 MiB",
        "bounce_bytes": "16 MiB",
        "block_bytes_max": "1 MiB",
        "holdings_blocks": 1000,
        "serving_silence_ms": 2000,
    }
    return load_group(write_group(tmp_path, limits=limits))


@pytest.fixture
async def start(
    config: GroupFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Start]:
    made: list[ServingProcess] = []

    def start(behaviour: str) -> ServingProcess:
        monkeypatch.setenv("STUB", behaviour)
        monkeypatch.setenv("STUB_LIVES", str(tmp_path / "lives"))
        monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
        holdings = Holdings(blocks_max=10, hop_limit=1, on_change=lambda _: None)
        serving = ServingProcess(
            Setup(config, Callers("f", []), NOBODY),
            Spawner(config, PROGRAM),
            Feed(holdings, []),
            Silence(),
            gone=lambda fingerprint, key, since: None,
            lost=lambda: None,
            refusals=RefusalLog(),
            on_problem=lambda what: None,
        )
        serving.start()
        serving.begin()
        made.append(serving)
        return serving

    yield start
    for serving in made:
        await serving.close()
    assert leftovers(config.data_dir, None) == {}


@pytest.mark.parametrize(
    ("behaviour", "says", "counter"),
    [
        ("silent", "did not answer for 2 s", "moonmesh_serving_silent_total"),
        ("grow", "MiB of memory", "moonmesh_serving_over_memory_total"),
        ("nonsense", "sent what it may not", "moonmesh_serving_nonsense_total"),
        ("exit", "exited with code 3", "moonmesh_serving_restarts_total"),
    ],
)
async def test_one_that_fails_is_replaced_and_the_reason_is_told(
    start: Start, behaviour: str, says: str, counter: str
) -> None:
    before = counters.snapshot().get(counter, 0)
    serving = start(f"{behaviour},serve")
    await wait_for_async(lambda: serving.restarts == 1, 20, "it to fail")
    assert says in serving.status()["last_exit"]
    assert counters.snapshot()[counter] == before + 1
    await wait_for_async(lambda: serving.serves, 20, "the next one to serve")
    await serving.refresh(5.0)
    status = serving.status()
    assert (status["state"], status["restarts"], status["blocks"]) == ("serving", 1, 7)
    assert status["rss_bytes"] < status["memory_limit_bytes"]
    assert serving.well


async def test_one_that_is_killed_or_stopped_is_replaced(start: Start) -> None:
    serving = start("serve")
    await serving.listening()
    for count, number in enumerate((signal.SIGKILL, signal.SIGSTOP), 1):
        old = serving.status()["pid"]
        os.kill(old, number)
        await wait_for_async(lambda n=count: serving.restarts == n, 10, "it to be noticed")  # type: ignore[misc]
        assert not serving.serves
        await wait_for_async(lambda: serving.serves, 20, "the next one")
        assert serving.status()["pid"] != old


async def test_one_that_cannot_serve_from_the_start_is_an_error_of_the_gateway(
    start: Start,
) -> None:
    with pytest.raises(MoonmeshError, match="cannot listen there"):
        await start("fail").listening()


async def test_one_that_cannot_serve_later_is_tried_again(start: Start) -> None:
    serving = start("serve,fail,serve")
    await serving.listening()
    os.kill(serving.status()["pid"], signal.SIGKILL)
    await wait_for_async(lambda: serving.restarts == 2, 20, "the second to fail")
    await wait_for_async(lambda: serving.serves, 20, "the third to serve")


async def test_pauses_between_starts_grow(start: Start) -> None:
    began = time.monotonic()
    serving = start("exit")
    await wait_for_async(lambda: serving.restarts == 4, 30, "four lives")
    assert time.monotonic() - began >= BACKOFF_SECONDS[0] * (1 + 2 + 4)
    assert not serving.serves


async def reserve_of(serving: ServingProcess) -> int:
    return await wait_for_async(lambda: serving.status()["reserve_pid"], 10, "one in reserve")


async def test_one_in_reserve_takes_over(start: Start) -> None:
    serving = start("serve")
    await serving.listening()
    assert serving.status()["reserve_pid"] is None, "a start is not slowed down by it"
    reserve = await reserve_of(serving)
    os.kill(serving.status()["pid"], signal.SIGKILL)
    await wait_for_async(lambda: serving.restarts == 1 and serving.serves, 20, "the next one")
    assert serving.status()["pid"] == reserve
    assert await reserve_of(serving) != reserve


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_reserve_that_is_not_fit_is_not_used(start: Start, number: signal.Signals) -> None:
    serving = start("serve")
    await serving.listening()
    reserve = psutil.Process(await reserve_of(serving))
    reserve.send_signal(number)
    gone = (psutil.STATUS_ZOMBIE, psutil.STATUS_STOPPED)

    def arrived() -> bool:
        try:
            return reserve.status() in gone
        except psutil.NoSuchProcess:
            return True  # reaped already

    await wait_for_async(arrived, 5, "the signal to arrive")
    os.kill(serving.status()["pid"], signal.SIGKILL)
    await wait_for_async(lambda: serving.restarts == 1 and serving.serves, 20, "the next one")
    assert serving.status()["pid"] != reserve.pid
    assert not psutil.pid_exists(reserve.pid)


async def test_close_ends_one_that_is_stopped(start: Start) -> None:
    serving = start("serve")
    await serving.listening()
    pid = serving.status()["pid"]
    os.kill(pid, signal.SIGSTOP)
    await serving.close()
    assert not psutil.pid_exists(pid)


def test_it_does_not_outlive_its_gateway(config: GroupFile, tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from federation.config import load_group\n"
        "from federation.peers.spawn import Spawner\n"
        "path = Path(sys.argv[1])\n"
        "spawner = Spawner(load_group(path), sys.argv[2:])\n"
        "spawner.prepare()\n"
        "used = spawner.take()\n"
        "spawner.prepare()\n"
        "print(used.process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    env = environment({"STUB": "serve", "STUB_LIVES": str(tmp_path / "lives")})
    gateway = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "group.toml"), *PROGRAM],
        env=env,
        stdout=subprocess.PIPE,
        text=True,
    )
    with gateway:
        assert gateway.stdout is not None
        int(gateway.stdout.readline())

        def names() -> list[str]:
            return [name.partition("#")[0] for name in leftovers(config.data_dir, None)]

        wait_for(lambda: names() == ["serving"] * 2, 20, "one in use and one in reserve")
        gateway.kill()
    wait_for(lambda: not leftovers(config.data_dir, None), 5, "it to be gone")


def test_a_program_that_is_not_there(config: GroupFile, tmp_path: Path) -> None:
    spawner = Spawner(config, ("/nonexistent",))
    made = spawner.take()
    assert made.process.wait(20) != 0
    made.end.close()
    spawner.close()
    assert "/nonexistent" in (config.log_dir / "serving.log").read_text()
