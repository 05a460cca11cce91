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
from chaos.faults.making import Making
from chaos.faults.throttling import Throttled
from chaos.load.spec import LoadSpec
from chaos.network.base import CLEAR, Fault, Mode
from chaos.steps import Burn, Hostile, Link, Signal, Step, Throttle, over
from chaos.topology import Stage

JITTER_S = 0.1
"""How far the seed moves a step."""
SERVING = "serving"
"""The part that is a child of the gateway."""
SLOWEST_MBIT = 1.0
"""Below this a rate falls no more."""
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
        books: filled with what hostile peers, and faults that count, say at their end.
        load: of the first group's engine.
    """

    def __init__(
        self,
        stage: Stage,
        steps: Sequence[Step],
        books: dict[str, dict[str, Any]],
        say: Callable[[str], None],
        load: LoadSpec,
    ) -> None:
        self._stage = stage
        self._steps = steps
        self._books = books
        self._say = say
        self._making = Making(stage, load, books, say)

    async def prepare(self) -> None:
        """Starts, before the load, what takes long to start.

        Raises:
            ChaosError: it does not start.
        """
        await self._making.prepare(self._steps)

    async def close(self) -> None:
        """Ends what was prepared."""
        await self._making.close()

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
        if isinstance(step, Signal) and over(step):
            pid = await self._pid(step)
            number = signal.SIGKILL if step.do == "kill" else signal.SIGTERM
            self._say(f"{number.name} to {step.part} of {step.group}")
            os.kill(pid, number)
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
        elif isinstance(step, Throttle):
            pid = await self._pid(step)
            self._say(
                f"{step.part} of {step.group} runs {step.runs_ms:g} ms, then not {step.stopped_ms:g}"
            )
            throttled = Throttled(pid, step.stopped_ms / 1000, step.runs_ms / 1000)
            try:
                with throttled:
                    yield
            finally:
                self._books.setdefault(step.do, {})["stops"] = throttled.stops
        elif isinstance(step, Link):
            self._say(f"{step.mode} between {step.source} and {step.to}")
            changing: asyncio.Task[None] | None = None
            try:
                if step.mode == "flap":
                    changing = asyncio.create_task(self._flap(step))
                elif step.mode == "fall":
                    changing = asyncio.create_task(self._fall(step))
                else:
                    await self._link(step, step.mode)
                yield
            finally:
                if changing is not None:
                    changing.cancel()
                    await asyncio.gather(changing, return_exceptions=True)
                await self._link(step, "clear")
        elif isinstance(step, Hostile):
            self._say(f"hostile peer {step.name}: {step.answer}, {step.attack}")
            self._stage.wake_hostile(step.name)
            try:
                yield
            finally:
                self._books[step.name] = await self._stage.stop_hostile(step.name)
        elif not isinstance(step, Burn):
            async with self._making.made(step):
                yield
        else:
            burners = await Burners.start(step.cores, step.nice)
            self._stage.burners += burners.pids
            self._stage.site.pin(step.group, burners.pids)
            try:
                yield
            finally:
                await burners.stop()
                self._stage.burners = [p for p in self._stage.burners if p not in burners.pids]

    async def _link(self, step: Link, mode: Mode, mbit: float | None = None) -> None:
        fault = Fault(mode, mbit or step.mbit, step.ms, step.share) if mode != "clear" else CLEAR
        ways = [(step.source, step.to)] + [(step.to, step.source)] * step.both
        for source, to in ways:
            await self._stage.network.change(source, to, fault)

    async def _flap(self, step: Link) -> None:
        while True:
            await self._link(step, "cut")
            await asyncio.sleep(step.ms / 1000)
            await self._link(step, "clear")
            await asyncio.sleep(step.ms / 1000)

    async def _fall(self, step: Link) -> None:
        mbit = step.mbit
        while True:
            await self._link(step, "rate", mbit)
            await asyncio.sleep(step.ms / 1000)
            mbit = max(SLOWEST_MBIT, mbit / 2)

    async def _pid(self, step: Signal | Throttle) -> int:
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
