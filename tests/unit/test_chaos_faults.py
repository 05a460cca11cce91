"""The proxy between gateways, on real sockets; and that a killed run is cleaned up after."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chaos import cleanup
from chaos.cleanup import MARK, Run, RunFile, clean_up, marked
from chaos.errors import ChaosError
from chaos.faults.proxy import Proxy
from federation.limits.orders import Order
from federation.order_file import OrderFile
from local_group.state import ProcessId
from tests.support.wait import wait_for


class Ends:
    """A client and a server with the proxy between: `a` dials `b`."""

    def __init__(self) -> None:
        self.proxy = Proxy()
        self.port = 0
        self._server: asyncio.Server
        self._listener: asyncio.Server

    async def __aenter__(self) -> Ends:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await reader.read(65536):
                    writer.write(data)
                    await writer.drain()
            writer.close()

        self._server = await asyncio.start_server(echo, "127.0.0.1", 0)
        target = self._server.sockets[0].getsockname()[1]
        self._listener = await self.proxy.listen("a", "b", 0, target)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        self._server.close()

    async def dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    async with Ends() as made:
        yield made


async def heard(reader: asyncio.StreamReader, timeout: float) -> bytes:
    try:
        return await asyncio.wait_for(reader.read(65536), timeout)
    except asyncio.TimeoutError:
        return b"(nothing)"


async def refused(ends: Ends) -> bool:
    """Whether a new connection is of no use."""
    try:
        reader, _ = await ends.dial()
        return await asyncio.wait_for(reader.read(), 5) == b""
    except ConnectionError:
        return True


async def test_a_clear_link_carries_bytes_and_their_end(ends: Ends) -> None:
    reader, writer = await ends.dial()
    writer.write(b"x" * 300_000)
    assert await asyncio.wait_for(reader.readexactly(300_000), 5) == b"x" * 300_000
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), 5) == b""


@pytest.mark.parametrize(("source", "to"), [("a", "b"), ("b", "a")])
async def test_a_cut_keeps_bytes_until_it_is_healed(ends: Ends, source: str, to: str) -> None:
    reader, writer = await ends.dial()
    writer.write(b"before")
    assert await heard(reader, 5) == b"before"
    ends.proxy.change(source, to, "cut", 0, 0)
    writer.write(b"during")
    assert await heard(reader, 0.2) == b"(nothing)"
    ends.proxy.change(source, to, "clear", 0, 0)
    assert await heard(reader, 5) == b"during"
    writer.close()


async def test_a_cut_of_one_way_leaves_the_other(ends: Ends) -> None:
    reader, writer = await ends.dial()
    ends.proxy.change("b", "a", "cut", 0, 0)
    writer.write(b"asked")
    assert await heard(reader, 0.2) == b"(nothing)"
    assert ends.proxy.way("a", "b").moved == len(b"asked")
    assert ends.proxy.way("b", "a").moved == 0
    writer.close()


async def test_a_reset_ends_connections_and_refuses_new_ones(ends: Ends) -> None:
    reader, writer = await ends.dial()
    writer.write(b"x")
    assert await heard(reader, 5) == b"x"
    ends.proxy.change("a", "b", "reset", 0, 0)
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(), 5)
    assert await refused(ends)
    ends.proxy.change("a", "b", "clear", 0, 0)
    reader, writer = await ends.dial()
    writer.write(b"back")
    assert await heard(reader, 5) == b"back"
    writer.close()


async def test_a_rate_is_kept(ends: Ends) -> None:
    ends.proxy.change("a", "b", "rate", 8.0, 0)  # a million bytes a second
    reader, writer = await ends.dial()
    began = time.monotonic()
    writer.write(b"x" * 400_000)
    await asyncio.wait_for(reader.readexactly(400_000), 10)
    assert time.monotonic() - began > 0.35
    writer.close()


async def test_a_delay_is_added_each_way(ends: Ends) -> None:
    ends.proxy.change("a", "b", "delay", 0, 100)
    ends.proxy.change("b", "a", "delay", 0, 100)
    reader, writer = await ends.dial()
    began = time.monotonic()
    writer.write(b"ping")
    assert await heard(reader, 5) == b"ping"
    assert time.monotonic() - began > 0.2
    writer.close()


def sleeper(run: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], env={**os.environ, MARK: run}
    )


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where run files are, in a temporary folder of the test's own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = tmp_path / "runs"
    made.mkdir(mode=0o700)
    return made


def record_of_killed(run: str, *folders: Path) -> str:
    gone = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    runner = ProcessId.of(gone.pid)
    assert runner is not None
    gone.kill()
    gone.communicate()
    return RunFile(run=run, runner=runner, folders=tuple(map(str, folders))).model_dump_json()


def test_what_a_killed_run_left_is_found_and_removed(runs: Path) -> None:
    folder = runs.parent / "chaos-x"
    folder.mkdir()
    killed = f"{os.getpid()}-7"
    with sleeper(killed) as left, sleeper(f"{os.getpid()}-77") as other:
        try:
            wait_for(lambda: bool(list(marked(killed))), 10, "the process to start")
            (runs / "killed.json").write_text(record_of_killed(killed, folder))
            (found,) = clean_up(runs)
            assert (found.run, found.processes, found.survivors) == (killed, 1, 0)
            assert left.wait(10) == -9
            assert other.poll() is None, "a process of another run is left alone"
            assert not folder.exists()
            assert list(runs.iterdir()) == []
        finally:
            left.kill()
            other.kill()


def test_what_a_killed_run_has_switched_off_is_told_and_left(runs: Path, tmp_path: Path) -> None:
    theirs, same = tmp_path / "theirs", tmp_path / "same"
    for place in (theirs, same):
        place.mkdir()
        OrderFile(place).change(lambda held: held.with_peer("west", Order.DRAINED, 1.0))
    with Run(runs) as run:
        run.notes_orders(theirs)
        run.notes_orders(same)
        (record,) = runs.glob("*.json")
        left = json.loads(record.read_text()) | json.loads(record_of_killed("1-2"))
        orders = json.loads(record.read_text())["orders"]
    OrderFile(theirs).change(lambda held: held.with_federation(off=True, at=2.0))
    (runs / "1-2.json").write_text(json.dumps(left | {"orders": orders}))
    (found,) = clean_up(runs)
    assert found.orders == (
        f"{theirs}: switched off is the federation, west (drained), and before it west (drained)",
    )
    assert OrderFile(theirs).read().off, "it is told alone"


def test_a_run_that_goes_on_is_left_alone(tmp_path: Path) -> None:
    with Run(tmp_path) as run, sleeper(run.id) as child:
        try:
            wait_for(lambda: bool(list(marked(run.id))), 10, "the process to start")
            assert clean_up(tmp_path) == []
            assert child.poll() is None
        finally:
            child.kill()
    assert list(tmp_path.iterdir()) == []
    assert MARK not in os.environ


def test_a_damaged_run_file_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{")
    assert clean_up(tmp_path) == []


def test_only_folders_of_runs_are_removed(runs: Path) -> None:
    kept = [runs.parent / "mine", runs.parent / "chaos-a" / "chaos-b", runs.parent / "chaos-target"]
    for folder in kept:
        folder.mkdir(parents=True)
    link = runs.parent / "chaos-link"
    link.symlink_to(kept[2])
    named = [kept[0], kept[1], link, runs.parent / "chaos-a" / ".." / "mine"]
    (runs / "1-2.json").write_text(record_of_killed("1-2", *named))
    assert len(clean_up(runs)) == 1
    assert all(folder.is_dir() for folder in kept)


@pytest.mark.parametrize("run", ["*", "1-*", "../1-2", "1-2\n", "", "1-2-3"])
def test_a_run_is_named_by_numbers(runs: Path, run: str) -> None:
    record = json.loads(record_of_killed("1-2"))
    (runs / "1-2.json").write_text(json.dumps({**record, "run": run}))
    assert clean_up(runs) == []


def test_a_run_file_is_a_regular_file(runs: Path) -> None:
    elsewhere = runs.parent / "elsewhere.json"
    elsewhere.write_text(record_of_killed("1-2"))
    (runs / "link.json").symlink_to(elsewhere)
    (runs / "folder.json").mkdir()
    os.mkfifo(runs / "pipe.json")
    assert clean_up(runs) == []


@pytest.mark.parametrize("what", ["open", "link", "file", "owner"])
def test_a_folder_that_others_may_write_to_is_refused(
    runs: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (runs / "1-2.json").write_text(record_of_killed("1-2"))
    folder = runs
    if what == "open":
        runs.chmod(0o777)
    elif what == "link":
        folder = runs.parent / "link"
        folder.symlink_to(runs)
    elif what == "file":
        folder = runs / "1-2.json"
    else:
        monkeypatch.setattr(os, "getuid", lambda: runs.stat().st_uid + 1)
    for start in (clean_up, Run):
        with pytest.raises(ChaosError, match="TMPDIR"):
            start(folder)
    assert (runs / "1-2.json").exists()


def test_a_file_of_another_user_is_ignored(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (runs / "1-2.json").write_text(record_of_killed("1-2"))
    monkeypatch.setattr(cleanup, "_check_private", lambda folder: None)
    monkeypatch.setattr(os, "getuid", lambda: runs.stat().st_uid + 1)
    assert clean_up(runs) == []


def test_without_run_files_there_is_nothing_to_clean_up(runs: Path) -> None:
    assert clean_up(runs / "none") == []
