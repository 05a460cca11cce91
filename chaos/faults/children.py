"""Helper processes of faults: the proxy, burners, hostile peers. Each in a session of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from chaos.errors import ChaosError
from federation.timeouts import timeout as deadline

READY_S = 20.0
STOP_S = 3.0
LINES_MAX = 4096


class Helper:
    """A child process that says `ready` in a line of its own, and what else it has to say after."""

    def __init__(self, process: asyncio.subprocess.Process, what: str, log: Path) -> None:
        self.what = what
        self.lines: list[str] = []
        self._process = process
        self._log = log
        self._news = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start(
        cls, module: str, arguments: Sequence[str], what: str, log: Path, first: str = ""
    ) -> Helper:
        """Starts `python -m module` and waits until it is ready.

        Raises:
            ChaosError: if it does not become ready.
        """
        stderr = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", module, *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(stderr)
        helper = cls(process, what, log)
        if first:
            helper.send(first)
        try:
            await helper.wait_for("ready", 1, READY_S)
        except BaseException:
            await helper.stop()
            raise
        return helper

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def send(self, line: str) -> None:
        """A line to its stdin."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")

    async def wait_for(self, line: str, count: int, timeout: float) -> None:
        """Waits until it has said `line` `count` times.

        Raises:
            ChaosError: if it ends or the time is over before.
        """
        try:
            async with deadline(timeout):
                while self.lines.count(line) < count:
                    if self._reader.done():
                        raise ChaosError(f"{self.what} ended", where=str(self._log))
                    self._news.clear()
                    await self._news.wait()
        except asyncio.TimeoutError:
            raise ChaosError(
                f"{self.what} did not say {line!r} within {timeout:.0f} s", where=str(self._log)
            ) from None

    async def stop(self) -> list[str]:
        """Ends it; what it said."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), STOP_S)
            except asyncio.TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                await self._process.wait()
        await asyncio.wait({self._reader}, timeout=1.0)
        self._reader.cancel()
        if self._process.stdin is not None:
            self._process.stdin.close()
        return self.lines

    async def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            async for raw in self._process.stdout:
                if len(self.lines) < LINES_MAX:
                    self.lines.append(raw.decode(errors="replace").rstrip("\n"))
                self._news.set()
        finally:
            self._news.set()


class ProxyHandle:
    """The running proxy: see `chaos.faults.proxy`."""

    def __init__(self, helper: Helper) -> None:
        self._helper = helper
        self._changes = 0

    @classmethod
    async def start(cls, links: Sequence[dict[str, Any]], log: Path) -> ProxyHandle:
        """Starts it with these links."""
        first = json.dumps({"links": list(links)})
        return cls(await Helper.start("chaos.faults.proxy", [], "the proxy", log, first))

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._helper.pid

    async def change(
        self, source: str, to: str, mode: str, *, mbit: float = 0.0, ms: float = 0.0
    ) -> None:
        """Breaks or heals the direction from `source` to `to`."""
        self._helper.send(
            json.dumps({"source": source, "to": to, "mode": mode, "mbit": mbit, "ms": ms})
        )
        self._changes += 1
        await self._helper.wait_for("ok", self._changes, 5.0)

    async def stop(self) -> None:
        """Ends it."""
        await self._helper.stop()


class Burners:
    """Processes that use `cores` cores together."""

    def __init__(self, processes: Iterable[asyncio.subprocess.Process]) -> None:
        self._processes = list(processes)

    @classmethod
    async def start(cls, cores: float, nice: int = 0) -> Burners:
        """Starts as many as it takes; none for less than a hundredth of a core."""
        count = math.ceil(cores) if cores >= 0.01 else 0
        return cls(
            [
                await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "chaos.faults.burner", f"{cores / count:.4f}", str(nice),
                    stdin=asyncio.subprocess.DEVNULL,
                    start_new_session=True,
                )
                for _ in range(count)
            ]
        )  # fmt: skip

    @property
    def pids(self) -> list[int]:
        """Of the processes."""
        return [process.pid for process in self._processes]

    async def stop(self) -> None:
        """Ends them."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        for process in self._processes:
            await process.wait()
