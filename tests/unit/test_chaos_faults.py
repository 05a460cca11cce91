"""The proxy between gateways, on real sockets; and that a killed run is cleaned up after."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chaos.cleanup import MARK, Run, RunFile, clean_up, marked
from chaos.faults.proxy import Proxy
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


def test_what_a_killed_run_left_is_found_and_removed(tmp_path: Path) -> None:
    runs, folder = tmp_path / "runs", tmp_path / "chaos-x"
    runs.mkdir()
    folder.mkdir()
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    runner = ProcessId.of(gone.pid)
    assert runner is not None
    gone.wait()
    with sleeper("killed-run") as left, sleeper("other-run") as other:
        try:
            wait_for(lambda: bool(list(marked("killed-run"))), 10, "the process to start")
            record = RunFile(run="killed-run", runner=runner, folders=(str(folder),))
            (runs / "killed-run.json").write_text(record.model_dump_json())
            (found,) = clean_up(runs)
            assert (found.run, found.processes, found.survivors) == ("killed-run", 1, 0)
            assert left.wait(10) == -9
            assert other.poll() is None, "a process of another run is left alone"
            assert not folder.exists()
            assert list(runs.iterdir()) == []
        finally:
            left.kill()
            other.kill()


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
