"""Faults of one host, on processes of this test: they are felt, and undone."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import grpc.aio
import psutil
import pytest

from chaos.errors import ChaosError
from chaos.faults import disks, passthrough, squeezing
from chaos.faults.children import Helper
from chaos.faults.collector import SERVICE
from chaos.faults.proxy import Direction
from chaos.faults.throttling import Throttled
from chaos.faults.trials import WrongKey, with_key
from federation.config import load_group
from federation.trial import Trial, TrialFile, digest_of
from tests.support.groups import free_port_base
from tests.support.wait import wait_for

WRITER = """
import sys
for line in sys.stdin:
    try:
        with open(line.strip(), "ab", buffering=0) as file:
            file.write(bytes(100))
        print("ok", flush=True)
    except OSError as error:
        print(error.errno, flush=True)
"""


class Writer:
    """A process that appends to files, and says how that ended."""

    def __init__(self) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-c", WRITER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def write(self, path: Path) -> str:
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write(f"{path}\n")
        self.child.stdin.flush()
        return self.child.stdout.readline().strip()

    def processes(self) -> list[psutil.Process]:
        return [psutil.Process(self.child.pid)]


@pytest.fixture
def writer() -> Iterator[Writer]:
    made = Writer()
    yield made
    made.child.kill()
    made.child.communicate()


def test_no_file_grows_and_then_files_grow_again(writer: Writer, tmp_path: Path) -> None:
    file = tmp_path / "file"
    assert writer.write(file) == "ok"
    with squeezing.limited("file-bytes", writer.processes(), 0):
        assert writer.write(file) == str(errno.EFBIG)
    assert writer.write(file) == "ok"
    assert file.stat().st_size == 200


def test_nothing_can_be_opened_and_then_it_can_again(writer: Writer, tmp_path: Path) -> None:
    assert writer.write(tmp_path / "file") == "ok", "it has started"
    with squeezing.limited("descriptors", writer.processes(), 0):
        assert writer.write(tmp_path / "file") == str(errno.EMFILE)
    with squeezing.limited("descriptors", writer.processes(), 1):
        assert writer.write(tmp_path / "file") == "ok"
    assert writer.write(tmp_path / "file") == "ok"


def test_a_process_that_has_ended_meanwhile_is_no_error(writer: Writer) -> None:
    with squeezing.limited("descriptors", writer.processes(), 1):
        writer.child.kill()
        writer.child.wait()


@pytest.mark.skipif(squeezing.why_not("cpu") is not None, reason="no cgroup can be made")
def test_cores_are_shared_out_and_given_back() -> None:
    burner = subprocess.Popen([sys.executable, "-m", "chaos.faults.burner", "1.0"])
    try:
        process = psutil.Process(burner.pid)
        before = Path(f"/proc/{burner.pid}/cgroup").read_text()
        with squeezing.confined("cpu", [process], 0.05) as group:
            wait_for(lambda: squeezing.throttled(group) >= 3, 10, "the burner to be held back")
        assert not group.exists()
        assert Path(f"/proc/{burner.pid}/cgroup").read_text() == before
    finally:
        burner.kill()
        burner.wait()


@pytest.mark.skipif(disks.why_not() is not None, reason="needs root")
def test_a_disk_is_full_and_then_it_is_not_and_its_files_are_kept(tmp_path: Path) -> None:
    place = tmp_path / "group" / "d"
    place.parent.mkdir()
    disks.mount(place)
    try:
        (place / "logs").mkdir()
        (place / "logs" / "a.log").write_text("said")
        assert disks.fill(place) > disks.DISK_BYTES / 2
        with pytest.raises(OSError, match="No space left") as caught:
            (place / "more").write_bytes(bytes(100_000))
        assert caught.value.errno == errno.ENOSPC
        disks.empty(place)
        (place / "more").write_bytes(bytes(100_000))
        assert os.stat(place).st_dev != os.stat(tmp_path).st_dev
        disks.keep(place)
        assert os.stat(place).st_dev == os.stat(tmp_path).st_dev
        assert (place / "logs" / "a.log").read_text() == "said"
    finally:
        disks.unmount_below(tmp_path)


@pytest.mark.skipif(passthrough.why_not() is not None, reason="needs FUSE and mfusepy")
async def test_writes_fail_with_eio_while_they_are_told_to(tmp_path: Path) -> None:
    source, shown = tmp_path / "source", tmp_path / "shown"
    source.mkdir()
    shown.mkdir()
    helper = await Helper.start(
        "chaos.faults.passthrough", [str(source), str(shown)], "a disk", tmp_path / "disk.log"
    )
    try:
        with (shown / "journal").open("ab", buffering=0) as file:
            file.write(b"one")
            await helper.ask({"failing": True})
            with pytest.raises(OSError, match="Input/output") as caught:
                file.write(b"two")
            assert caught.value.errno == errno.EIO
            with pytest.raises(OSError, match="Input/output"):
                os.fsync(file.fileno())
            await helper.ask({"failing": False})
            file.write(b"three")
            os.fsync(file.fileno())
        assert json.loads(helper.lines[-2])["failed"] >= 2
        assert (source / "journal").read_bytes() == b"onethree"
    finally:
        await helper.stop()
        disks.unmount_below(tmp_path)
    assert list(shown.iterdir()) == []


async def test_a_collector_is_slow_then_dead_then_well_again(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port_base()}"
    log = tmp_path / "collector.log"
    helper = await Helper.start("chaos.faults.collector", [address], "the collector", log)
    options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 100)]
    try:
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            export = channel.unary_unary(f"/{SERVICE}/Export")
            assert await export(b"spans", timeout=5) == b""
            await helper.ask({"mode": "slow"})
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await export(b"spans", timeout=0.2)
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            await helper.ask({"mode": "clear"})
            await helper.ask({"mode": "dead"})
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await export(b"spans", timeout=5)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            await helper.ask({"mode": "clear"})
            assert await export(b"spans", timeout=5, wait_for_ready=True) == b""
            await helper.ask({"mode": "clear"})
        books = json.loads(helper.lines[-2])
        assert books["held"] == 1
        assert books["dialled"] >= 1
        assert books["taken"] >= 2
    finally:
        await helper.stop()


def test_a_process_runs_for_a_part_of_the_time_and_then_again_for_all_of_it() -> None:
    burner = subprocess.Popen([sys.executable, "-m", "chaos.faults.burner", "1.0"])
    try:
        process = psutil.Process(burner.pid)

        def used() -> float:
            return sum(process.cpu_times()[:2])

        wait_for(lambda: used() > 0.2, 20, "it to burn")
        with Throttled(burner.pid, 0.2, 0.001) as throttled:
            wait_for(lambda: throttled.stops >= 2, 20, "it to be stopped again")
            wait_for(lambda: process.status() == psutil.STATUS_STOPPED, 20, "it to be seen stopped")
        before = used()
        wait_for(lambda: used() > before + 0.1, 20, "it to burn again")
        assert throttled.stops >= 2
    finally:
        burner.kill()
        burner.wait()


def test_what_ends_while_it_is_throttled_is_no_error() -> None:
    child = subprocess.Popen(["sleep", "60"])
    with Throttled(child.pid, 0.001, 0.001):
        child.kill()
        child.wait()


PEERING = """
federation = "chaos"
[self]
group = "west"
[[peers]]
name = "east"
key_file = "../east/credentials/identity.pub"
export = ["demo"]
[[peers]]
name = "evil"
key = "ed25519:AAAA"
"""


def test_one_peer_gets_another_key_and_nothing_else_changes() -> None:
    of_east = with_key(PEERING, "east", "ed25519:BBBB")
    assert of_east == PEERING.replace(
        'key_file = "../east/credentials/identity.pub"', 'key = "ed25519:BBBB"'
    )
    assert with_key(PEERING, "evil", "ed25519:BBBB") == PEERING.replace("AAAA", "BBBB")
    for nobody in ("west", "e.st"):
        with pytest.raises(ChaosError, match=f"no key of {nobody}"):
            with_key(PEERING, nobody, "ed25519:BBBB")


def trial_of(folder: Path, state: str) -> tuple[WrongKey, Path, str]:
    """A trial that was begun, and how its group has gone on with it."""
    (folder / "credentials").mkdir()
    path = folder / "peering.toml"
    path.write_text(PEERING)
    group = folder / "group.toml"
    group.write_text(
        'name = "west"\nport_base = 20000\ndata_dir = "d"\nstores = { count = 1, dram = "64 MiB" }\n'
        '[gateway]\npeering = "peering.toml"\n'
    )
    config = load_group(group)
    config.data_dir.mkdir()
    wrong = with_key(PEERING, "east", "ed25519:BBBB")
    trial = Trial(str(path), PEERING, digest_of(wrong), ("east",), started_at=100.0)
    file = TrialFile(config.data_dir)
    file.begin(trial, wrong)
    if state == "rolled back":
        file.take_back(trial, "not heard any more: east")
    elif state == "kept":
        file.keep(trial)
    made = WrongKey(config, group, folder)
    made._wanted, made._before = digest_of(wrong), PEERING
    return made, path, wrong


def test_a_trial_that_was_taken_back_is_booked(tmp_path: Path) -> None:
    made, path, _ = trial_of(tmp_path, "rolled back")
    booked = made.end()
    assert (booked["taken_back"], booked["in_force"]) == (1, 1)
    assert booked["took_ms"] > 0
    path.write_text("another")
    assert made.end()["in_force"] == 0


def test_one_that_is_on_trial_still_is_taken_back_and_booked_as_such(tmp_path: Path) -> None:
    made, path, wrong = trial_of(tmp_path, "trying")
    assert path.read_text() == wrong
    assert made.end()["taken_back"] == 0
    assert path.read_text() == PEERING


def test_one_that_was_kept_is_booked_as_such_and_is_not_in_force_either(tmp_path: Path) -> None:
    made, path, _ = trial_of(tmp_path, "kept")
    assert made.end()["taken_back"] == 0
    assert path.read_text() == PEERING, "the next scenario has the peers that it names"


def test_pieces_wait_another_time_each_and_no_longer_than_so() -> None:
    way = Direction()
    way.change("jitter", 0, 50)
    waits = {way.wait() for _ in range(50)}
    assert len(waits) > 40
    assert max(waits) <= 0.05
    way.change("delay", 0, 50)
    assert way.wait() == 0.05
    way.change("clear", 0, 50)
    assert way.wait() == 0
