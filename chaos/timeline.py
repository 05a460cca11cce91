"""Runs a time line: each step at its time, and undone when it is over, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from chaos.errors import ChaosError
from chaos.faults.children import Burners
from chaos.network.base import CLEAR, Fault, Mode
from chaos.scenario import Burn, Hostile, Link, Signal, Step
from chaos.topology import Stage

JITTER_S = 0.1
"""How far the seed moves a step."""
SERVING = "serving"
"""The part that is a child of the gateway."""
PART_S = 5.0
"""How long to wait for a part to run that is to get a signal."""


def jitter(steps: Sequence[Step], seed: int) -> list[Step]:
    """The steps with their times moved by the seed, later by up to `JITTER_S`, all alike.

    Alike, so that what begins or ends together still does.
    """
    shift = random.Random(f"steps/{seed}").uniform(0, JITTER_S)
    return [step.model_copy(update={"at": step.at + shift}) for step in steps]


class TimeLine:
    """The steps of one pass.

    Args:
        books: filled with what hostile peers say at their end.
    """

    def __init__(
        self,
        stage: Stage,
        steps: Sequence[Step],
        books: dict[str, dict[str, Any]],
        say: Callable[[str], None],
    ) -> None:
        self._stage = stage
        self._steps = steps
        self._books = books
        self._say = say

    async def run(self, begin: float) -> None:
        """Carries out all steps; returns when the last is undone.

        Raises:
            ChaosError: a step could not be done; all that were are undone.
        """
        tasks = [asyncio.create_task(self._step(step, begin)) for step in self._steps]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _step(self, step: Step, begin: float) -> None:
        await _until(begin + step.at)
        if isinstance(step, Signal) and step.do == "kill":
            pid = await self._pid(step)
            self._say(f"SIGKILL to {step.part} of {step.group}")
            os.kill(pid, signal.SIGKILL)
            return
        async with self._done(step):
            if step.lasts is None:
                await asyncio.Event().wait()
            else:
                await _until(begin + step.at + step.lasts)

    @contextlib.asynccontextmanager
    async def _done(self, step: Step) -> AsyncIterator[None]:
        """The step between its beginning and its being undone."""
        if isinstance(step, Signal):
            pid = await self._pid(step)
            self._say(f"SIGSTOP to {step.part} of {step.group}")
            os.kill(pid, signal.SIGSTOP)
            try:
                yield
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        elif isinstance(step, Link):
            self._say(f"{step.mode} between {step.source} and {step.to}")
            flapping: asyncio.Task[None] | None = None
            try:
                if step.mode == "flap":
                    flapping = asyncio.create_task(self._flap(step))
                else:
                    await self._link(step, step.mode)
                yield
            finally:
                if flapping is not None:
                    flapping.cancel()
                    await asyncio.gather(flapping, return_exceptions=True)
                await self._link(step, "clear")
        elif isinstance(step, Hostile):
            self._say(f"hostile peer {step.name}: {step.answer}, {step.attack}")
            self._stage.wake_hostile(step.name)
            try:
                yield
            finally:
                self._books[step.name] = await self._stage.stop_hostile(step.name)
        else:
            assert isinstance(step, Burn)
            burners = await Burners.start(step.cores, step.nice)
            self._stage.burners += burners.pids
            try:
                yield
            finally:
                await burners.stop()
                self._stage.burners = [p for p in self._stage.burners if p not in burners.pids]

    async def _link(self, step: Link, mode: Mode) -> None:
        fault = Fault(mode, step.mbit, step.ms, step.share) if mode != "clear" else CLEAR
        ways = [(step.source, step.to)] + [(step.to, step.source)] * step.both
        for source, to in ways:
            await self._stage.network.change(source, to, fault)

    async def _flap(self, step: Link) -> None:
        while True:
            await self._link(step, "cut")
            await asyncio.sleep(step.ms / 1000)
            await self._link(step, "clear")
            await asyncio.sleep(step.ms / 1000)

    async def _pid(self, step: Signal) -> int:
        end = time.monotonic() + PART_S
        while True:
            try:
                if step.part == SERVING:
                    return await self._stage.serving_pid(step.group)
                return self._stage.pid(step.group, step.part)
            except ChaosError:
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(0.05)


async def _until(at: float) -> None:
    await asyncio.sleep(max(0.0, at - time.monotonic()))
