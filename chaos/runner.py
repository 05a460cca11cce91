"""Runs scenarios: shares topologies between them, judges each, and always takes everything down."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from chaos.cleanup import FOLDER_PREFIX, MARK, Run, clean_up
from chaos.errors import INTERRUPTED, ChaosError
from chaos.execution import execute
from chaos.faults.disks import unmount_below
from chaos.figures import figures
from chaos.invariants.comparison import compare
from chaos.invariants.judge import judge
from chaos.invariants.verdict import Verdict
from chaos.network.base import Kind
from chaos.network.choose import make
from chaos.possible import why_not
from chaos.scenario import Scenario
from chaos.section import Topology
from chaos.topology import Stage
from federation.errors import MoonmeshError
from federation.timeouts import timeout

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TIMED = frozenset({"deadlines", "errors", "local_p99", "felt", "hits", "returns", "healthy"})
"""Invariants that a busy machine can break. What is not here is never run again in the hope of better."""


@dataclass(frozen=True)
class Planned:
    """A scenario to run, and how it is named on the command line, quoted for a shell."""

    scenario: Scenario
    word: str


@dataclass
class Result:
    """What became of one run of one scenario."""

    name: str
    summary: str
    word: str
    seed: int
    round: int
    network: Kind = "loopback"
    seconds: float = 0.0
    verdicts: list[Verdict] = field(default_factory=list)
    error: str = ""
    """Why it could not be run; then there are no verdicts."""
    figures: dict[str, Any] = field(default_factory=dict)
    skipped: str = ""
    """Why it was not run: its faults cannot be made here. It neither held nor broke."""
    repeated: bool = False
    """It broke, and was run again because a busy machine may have been the reason."""

    @property
    def interrupted(self) -> bool:
        """Whether a signal ended it, so that nothing is known of it."""
        return self.error == INTERRUPTED

    @property
    def broken(self) -> list[Verdict]:
        """The invariants that did not hold."""
        return [v for v in self.verdicts if not v.held and not v.off]

    @property
    def held(self) -> bool:
        """Whether it ran, and every invariant held."""
        return not self.error and not self.skipped and not self.broken

    @property
    def by_time_alone(self) -> bool:
        """Whether all that broke is a matter of time, which a busy machine takes away too."""
        return not self.error and all(v.name in TIMED for v in self.broken)  # none, if skipped

    @property
    def again(self) -> str:
        """The command that repeats it."""
        network = "" if self.network == "loopback" else f" --network {self.network}"
        return f"moonmesh chaos run {self.word} --seed {self.seed}{network}"


@dataclass
class Outcome:
    """Everything of one `moonmesh chaos run`."""

    results: list[Result] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: int = 0
    """The signal that ended it early."""
    left: list[str] = field(default_factory=list)
    """What could not be taken down."""
    kept: Path | None = None

    @property
    def counted(self) -> list[Result]:
        """The last run of each scenario that was run."""
        return [r for r in self.results if not r.repeated and not r.skipped]

    @property
    def held(self) -> bool:
        """Whether it ran to its end, something was run, all of that held, and nothing is left."""
        return bool(self.counted) and not self.interrupted and not self.broke

    @property
    def broke(self) -> bool:
        """Whether there is something to look at: a scenario that did not hold, or what is left."""
        return any(not r.held and not r.interrupted for r in self.counted) or bool(self.left)


class Progress(Protocol):
    """Told what goes on."""

    def say(self, line: str) -> None:
        """A step within a scenario, or between two."""

    def begin(self, name: str, round_: int) -> None:
        """A scenario starts."""

    def result(self, result: Result) -> None:
        """A scenario has ended."""


class Runner:
    """One `moonmesh chaos run`.

    Args:
        seed: of every scenario; with `repeat`, round n has seed + n.
        retries: how often a scenario is run again of which only invariants broke that depend on time.
        keep: leave the folder, to look at the logs.
        network: what lies between the gateways.
        duration: seconds for which more rounds are begun, each with the next seed; None: `repeat` of them.
        watch: looks at each topology until it is cancelled, which is before the topology is taken down.
    """

    def __init__(
        self,
        planned: Sequence[Planned],
        *,
        seed: int,
        repeat: int,
        retries: int = 0,
        keep: bool,
        port_base: int,
        progress: Progress,
        network: Kind = "loopback",
        duration: float | None = None,
        watch: Callable[[Stage], Coroutine[None, None, None]] | None = None,
    ) -> None:
        self._watch = watch
        self._watching: asyncio.Task[None] | None = None
        self._duration = duration
        self._planned = planned
        self._seed = seed
        self._repeat = repeat
        self._retries = retries
        self._keep = keep
        self._port_base = port_base
        self._progress = progress
        self._network = network
        self._outcome = Outcome()
        self._stop = asyncio.Event()
        self._stages = 0
        self._tags = 0

    async def run(self) -> Outcome:
        """Runs everything; ends early on SIGINT, SIGTERM and SIGHUP, with everything taken down."""
        began = time.monotonic()
        for found in clean_up():
            self._progress.say(
                f"cleaned up after the run {found.run}, which was killed: "
                f"{found.processes} processes, {found.survivors} of them could not be ended; "
                f"{found.namespaces} network namespaces, {len(found.kept)} could not be removed"
            )
            for said in found.orders:
                self._progress.say(f"  {said}: `federation on`, `peer resume` take it back")
        loop = asyncio.get_running_loop()
        work = asyncio.create_task(self._run())

        def stopped(number: int) -> None:
            if not self._stop.is_set():
                self._outcome.interrupted = number
                self._progress.say("stopping: what runs is taken down first")
                self._stop.set()
                work.cancel()

        for number in SIGNALS:
            loop.add_signal_handler(number, stopped, number)
        try:
            await work
        except asyncio.CancelledError:
            if not self._stop.is_set():
                raise
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)
        self._outcome.seconds = time.monotonic() - began
        return self._outcome

    async def _run(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
        with Run() as run:
            if not self._keep:
                run.owns(folder)
            try:
                for topology, planned in _by_topology(self._possible()):
                    await self._on_topology(topology, planned, folder, run)
            finally:
                self._outcome.left += run.end()
                unmount_below(folder)
                if self._keep or self._outcome.broke:
                    self._outcome.kept = folder
                else:
                    shutil.rmtree(folder, ignore_errors=True)

    def _possible(self) -> list[Planned]:
        """What can be run here; the rest is in the report, with the reason."""
        possible = []
        for item in self._planned:
            why = why_not(item.scenario, self._network)
            if why is None:
                possible.append(item)
                continue
            result = self._new(item, 0)
            result.skipped = why
            self._tell(result)
        return possible

    def _tell(self, result: Result) -> None:
        self._outcome.results.append(result)
        self._progress.result(result)

    async def _on_topology(
        self, topology: Topology, planned: Sequence[Planned], folder: Path, run: Run
    ) -> None:
        stage: Stage | None = None
        rounds = range(1 if self._duration else self._repeat)
        todo = deque((item, round_, self._retries) for round_ in rounds for item in planned)
        end = time.monotonic() + (self._duration or 0.0)
        done = 0
        try:
            while todo or time.monotonic() < end:
                if not todo:
                    done += 1
                    todo.extend((item, done, self._retries) for item in planned)
                item, round_, retries = todo.popleft()
                began = time.monotonic()
                try:
                    if stage is None:
                        stage, why = await self._up(topology, folder, run)
                    if stage is None:
                        result = self._new(item, round_)
                        result.error = f"its topology did not start: {why}"
                    else:
                        result = await self._one(stage, item, round_, run.id)
                except asyncio.CancelledError:
                    result = self._new(item, round_)
                    result.error, result.seconds = INTERRUPTED, time.monotonic() - began
                    self._tell(result)
                    raise
                if not result.held and result.by_time_alone and retries:
                    result.repeated = True
                    todo.appendleft((item, round_, retries - 1))
                self._tell(result)
                unwell = result.error or any(v.name == "healthy" for v in result.broken)
                if stage is not None and (unwell or item.scenario.spoils):
                    await self._down(stage)  # what comes next starts on sound ground
                    stage = None
        finally:
            if stage is not None:
                await asyncio.shield(asyncio.ensure_future(self._down(stage)))

    async def _up(self, topology: Topology, folder: Path, run: Run) -> tuple[Stage | None, str]:
        """A topology that runs; or None, and why not."""
        self._stages += 1
        place = folder / str(self._stages)
        place.mkdir()
        stage: Stage | None = None
        try:
            network = make(
                self._network,
                topology,
                place,
                self._port_base,
                f"{run.id}-{self._stages}",
                run.owns_namespaces,
            )
            stage = Stage(topology, place, network, self._progress.say)
            await stage.up(self._stop)
        except BaseException as error:
            if stage is not None:
                await asyncio.shield(asyncio.ensure_future(self._down(stage)))
            if isinstance(error, MoonmeshError):
                return None, str(error)
            raise
        if self._watch is not None:
            self._watching = asyncio.create_task(self._watch(stage))
        return stage, ""

    def _new(self, item: Planned, round_: int) -> Result:
        seed = self._seed + round_
        scenario = item.scenario.drawn(seed)
        return Result(scenario.name, scenario.summary, item.word, seed, round_, self._network)

    async def _down(self, stage: Stage) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None
        with contextlib.suppress(MoonmeshError):
            self._outcome.left += await stage.down()

    async def _one(self, stage: Stage, item: Planned, round_: int, run: str) -> Result:
        seed = self._seed + round_
        scenario = item.scenario.drawn(seed)
        result = self._new(item, round_)
        self._progress.begin(scenario.name, round_)
        self._tags += 1
        began = time.monotonic()
        try:
            async with timeout(scenario.budget_s):
                record = await execute(
                    stage, scenario, seed, f"r{self._tags}", run, self._progress.say
                )
            limits = stage.limits
            compared = compare(record)
            result.verdicts = judge(record, limits, compared)
            if self._keep or not result.held:
                record.write(stage.folder, f"{self._tags}-{scenario.name}")
            result.figures = figures(record, limits, compared)
        except asyncio.TimeoutError:
            result.error = f"it took longer than its budget of {scenario.budget_s:g} s"
        except (MoonmeshError, OSError) as error:
            result.error = str(error)
        if result.error:
            for name in list(stage.hostile):
                await stage.stop_hostile(name)
            with contextlib.suppress(MoonmeshError):
                await stage.network.heal()
        result.seconds = time.monotonic() - began
        return result


def _by_topology(planned: Sequence[Planned]) -> list[tuple[Topology, list[Planned]]]:
    """Scenarios that can share a topology, together; otherwise in the given order."""
    groups: dict[str, tuple[Topology, list[Planned]]] = {}
    for item in planned:
        topology = item.scenario.topology
        groups.setdefault(topology.identity, (topology, []))[1].append(item)
    for _, items in groups.values():
        items.sort(key=lambda item: item.scenario.spoils)
    return list(groups.values())


__all__ = ["MARK", "ChaosError", "Outcome", "Planned", "Progress", "Result", "Runner"]
