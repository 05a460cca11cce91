"""The runner's side of an engine process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from chaos.errors import ChaosError
from chaos.load.spec import EngineSpec, Sample
from federation.bench.piped import kill_piped, last_lines, start_piped

LINE_BYTES = 64 * 1024 * 1024
OPEN_S = 60.0
END_S = 5.0


class EngineHandle:
    """A child process that runs `chaos.load.process`: one command at a time."""

    def __init__(self, process: asyncio.subprocess.Process, group: str, log: Path) -> None:
        self.group = group
        self.on_samples: Callable[[list[Sample]], None] = lambda samples: None
        self._process = process
        self._log = log
        self._answer: asyncio.Future[dict[str, Any]] | None = None
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, spec: EngineSpec, log: Path, inside: Sequence[str] = ()) -> EngineHandle:
        """Starts an engine and waits until its stores are open.

        Args:
            inside: what to put before the command: see `Network.inside`.

        Raises:
            ChaosError: if they do not open.
        """
        command = (*inside, sys.executable, "-m", "chaos.load.process")
        process = await start_piped(command, log, line_bytes=LINE_BYTES)
        engine = cls(process, spec.group, log)
        try:
            await engine._ask(spec.model_dump_json(), OPEN_S)
        except BaseException:
            await engine.kill()
            raise
        return engine

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    async def do(self, what: str, timeout: float = 30.0, **arguments: Any) -> dict[str, Any]:
        """Carries out a command.

        Raises:
            ChaosError: it failed, or did not answer in time.
        """
        return await self._ask(json.dumps({"do": what, **arguments}), timeout)

    async def end(self) -> None:
        """Ends the process."""
        with contextlib.suppress(OSError, ChaosError):
            self._send(json.dumps({"do": "end"}))
            await asyncio.wait_for(self._process.wait(), END_S)
        await self.kill()

    async def kill(self) -> None:
        """Makes sure that it is gone."""
        await kill_piped(self._process)
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def _ask(self, line: str, timeout: float) -> dict[str, Any]:
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answer = answer
        self._send(line)
        try:
            return await asyncio.wait_for(answer, timeout)
        except asyncio.TimeoutError:
            raise ChaosError(
                f"the engine of {self.group} did not answer within {timeout:.0f} s: {line[:80]}",
                where=str(self._log),
            ) from None
        finally:
            self._answer = None

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")

    async def _read(self) -> None:
        assert self._process.stdout is not None
        why = "its messages ended"
        try:
            async for line in self._process.stdout:
                self._take(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            why = f"it sent what is no message: {error}"
        self._fail(f"the engine of {self.group} broke off: {why}\n{last_lines(self._log)}")

    def _take(self, message: dict[str, Any]) -> None:
        samples = (message.get("tick") or message).get("samples")
        if samples:
            self.on_samples([Sample(*sample) for sample in samples])
        if "failed" in message:
            self._fail(f"the engine of {self.group}: {message['failed']}")
        elif "done" in message and self._answer is not None and not self._answer.done():
            self._answer.set_result(message)

    def _fail(self, why: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ChaosError(why, where=str(self._log)))
