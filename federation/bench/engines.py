"""The replay's side of an engine process: start it, ask it, end it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from federation.bench.engine import Answer
from federation.bench.piped import kill_piped, last_lines, start_piped
from federation.errors import MoonmeshError

LINE_BYTES = 16 * 1024 * 1024
"""Longest message of an engine; far above an `Answer`."""
READY_S = 60.0
END_S = 15.0
LOG_LINES = 8


class BenchError(MoonmeshError):
    """A bench could not be run, or broke off."""

    code = "MM402"


class EngineHandle(Protocol):
    """An engine that takes requests: a process, or a fake in a test."""

    async def ask(self, number: int, keys: tuple[str, ...], timeout: float) -> Answer: ...
    async def finish(self) -> dict[str, Any]: ...


class EngineProcess:
    """A child process that runs `engine_process`."""

    def __init__(self, process: asyncio.subprocess.Process, name: str, log: Path) -> None:
        self._process = process
        self._name = name
        self._log = log
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._broken = ""
        """Why it takes no more requests; empty while it does."""
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = loop.create_future()
        self._stats: asyncio.Future[dict[str, Any]] = loop.create_future()
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, spec: Mapping[str, Any], log: Path) -> EngineProcess:
        """Start an engine and wait until its store is open. stderr goes to `log`.

        Raises:
            BenchError: if it does not become ready; with its last words.
        """
        command = (sys.executable, "-m", "federation.bench.engine_process")
        process = await start_piped(command, log, line_bytes=LINE_BYTES)
        engine = cls(process, f"engine of group {spec['group']}", log)
        try:
            engine._send(spec)
            await asyncio.wait_for(asyncio.shield(engine._ready), READY_S)
        except asyncio.TimeoutError:
            await engine.kill()
            raise BenchError(f"the {engine._name} was not ready after {READY_S:.0f} s") from None
        except BaseException:
            await engine.kill()
            raise
        return engine

    async def ask(self, number: int, keys: tuple[str, ...], timeout: float) -> Answer:
        """Send a request and wait for its answer.

        Raises:
            BenchError: if the engine dies or does not answer within `timeout` seconds.
        """
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            self._send({"n": number, "keys": keys})
            return await asyncio.wait_for(future, timeout)
        except asyncio.TimeoutError:
            raise BenchError(
                f"the {self._name} did not answer request {number} within {timeout:.0f} s",
                where=str(self._log),
            ) from None
        finally:
            self._waiting.pop(number, None)

    async def finish(self) -> dict[str, Any]:
        """End the engine; returns its store's last statistics (empty where it had to be killed)."""
        stats: dict[str, Any] = {}
        with contextlib.suppress(asyncio.TimeoutError, BenchError, OSError):
            self._send({"end": True})
            stats = await asyncio.wait_for(asyncio.shield(self._stats), END_S)
            await asyncio.wait_for(self._process.wait(), 2.0)
        await self.kill()
        return stats

    async def kill(self) -> None:
        """Make sure that the process and what it started are gone."""
        await kill_piped(self._process)
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader
        self._fail(f"the {self._name} was ended")
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _send(self, message: Mapping[str, Any]) -> None:
        if self._broken:
            raise BenchError(self._broken, where=str(self._log))
        assert self._process.stdin is not None
        # Bounded without drain(): the replay keeps a fixed number of requests in flight.
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def _read(self) -> None:
        assert self._process.stdout is not None
        why = "its messages ended"
        try:
            async for line in self._process.stdout:
                self._take(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            why = f"it sent what is no message: {error}"
        self._fail(f"the {self._name} broke off: {why}\n{last_lines(self._log, LOG_LINES)}")

    def _take(self, message: dict[str, Any]) -> None:
        if "number" in message:
            future = self._waiting.get(message["number"])
            if future is not None and not future.done():
                future.set_result(Answer(**message))
        elif "stats" in message:
            if not self._stats.done():
                self._stats.set_result(message["stats"])
        elif "failed" in message:
            self._fail(f"the {self._name} did not start: {message['failed']}")
        elif "ready" in message and not self._ready.done():
            self._ready.set_result(None)

    def _fail(self, why: str) -> None:
        self._broken = self._broken or why
        futures: list[asyncio.Future[Any]] = [self._ready, self._stats, *self._waiting.values()]
        for future in futures:
            if not future.done():
                future.set_exception(BenchError(why, where=str(self._log)))
                future.exception()  # whoever waits still sees it; nobody has to
