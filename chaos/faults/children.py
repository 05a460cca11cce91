"""Helper processes of faults: the network's, burners, hostile peers. Each in a process group of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import sys
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chaos.errors import ChaosError
from federation.bench.piped import kill_piped, start_piped
from federation.timeouts import timeout as deadline
from local_group.child import own_group

READY_S = 20.0
OK_S = 5.0
ANSWERS = ("ready", "ok")
"""Lines that can be waited for."""
STOP_S = 3.0
LINES_MAX = 4096


class Helper:
    """A child process that says `ready` in a line of its own, and what else it has to say after."""

    def __init__(self, process: asyncio.subprocess.Process, what: str, log: Path) -> None:
        self.what = what
        self.lines: deque[str] = deque(maxlen=LINES_MAX)
        """The last that it said."""
        self._counts: Counter[str] = Counter()
        self._asked = 0
        self._process = process
        self._log = log
        self._news = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start(
        cls,
        module: str,
        arguments: Sequence[str],
        what: str,
        log: Path,
        *,
        first: Mapping[str, Any] | None = None,
        inside: Sequence[str] = (),
    ) -> Helper:
        """Starts `python -m module` and waits until it is ready.

        Args:
            first: sent to it at once, as JSON.
            inside: what to put before the command: see `Network.inside`.

        Raises:
            ChaosError: if it does not become ready.
        """
        process = await start_piped((*inside, sys.executable, "-m", module, *arguments), log)
        helper = cls(process, what, log)
        if first is not None:
            helper.send(json.dumps(first))
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

    async def ask(self, change: Mapping[str, Any]) -> None:
        """Sends it, as JSON, and waits for the `ok`.

        Raises:
            ChaosError: there is none.
        """
        self.send(json.dumps(change))
        self._asked += 1
        await self.wait_for("ok", self._asked, OK_S)

    async def wait_for(self, line: str, count: int, timeout: float) -> None:
        """Waits until it has said `line` `count` times.

        Raises:
            ChaosError: if it ends or the time is over before.
        """
        try:
            async with deadline(timeout):
                while self._counts[line] < count:
                    if self._reader.done():
                        raise ChaosError(f"{self.what} ended", where=str(self._log))
                    self._news.clear()
                    await self._news.wait()
        except asyncio.TimeoutError:
            raise ChaosError(
                f"{self.what} did not say {line!r} within {timeout:.0f} s", where=str(self._log)
            ) from None

    async def again(self, first: Mapping[str, Any]) -> None:
        """Sends it what another helper of its kind was started with, and waits until it is ready once more.

        Raises:
            ChaosError: it does not become ready.
        """
        ready = self._counts["ready"] + 1
        self.send(json.dumps(first))
        await self.wait_for("ready", ready, READY_S)

    async def rest(self) -> list[str]:
        """Ends what it does, but not the process; what it has said, up to the `ok`.

        Raises:
            ChaosError: it goes on, or has ended.
        """
        ok = self._counts["ok"] + 1
        self.send("rest")
        await self.wait_for("ok", ok, OK_S)
        return list(self.lines)

    async def stop(self) -> list[str]:
        """Ends it; what it said."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), STOP_S)
            except asyncio.TimeoutError:
                await kill_piped(self._process)
        await asyncio.wait({self._reader}, timeout=1.0)
        self._reader.cancel()
        if self._process.stdin is not None:
            self._process.stdin.close()
        return list(self.lines)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            async for raw in self._process.stdout:
                line = raw.decode(errors="replace").rstrip("\n")
                self.lines.append(line)
                if line in ANSWERS:
                    self._counts[line] += 1
                self._news.set()
        finally:
            self._news.set()


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
                    **own_group(),
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
