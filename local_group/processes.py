"""The supervisor: starts a group's processes, keeps them running, stops them all."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from local_group.logs import how_it_ended, log_tail, rotate, told, truncate
from local_group.mooncake import libraries_error, missing_libraries
from local_group.process_errors import ChildDied, GroupError, NotReady
from local_group.state import (
    CHILD_VARIABLE,
    DATA_DIR_VARIABLE,
    ChildState,
    GroupState,
    ProcessId,
    kill_all,
    write_state,
)

ReadyCheck = Callable[[int], Awaitable[str]]
"""Given the child's pid: "" when it is ready, else what is still awaited. Raises nothing."""

# Runs in the child before the program: dies with the supervisor, even if that died in between.
# A wrapper and not preexec_fn, which is unsafe in a process with threads (gRPC has some).
_EXEC = """
import ctypes, os, sys
PR_SET_PDEATHSIG, SIGKILL = 1, 9
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
try:
    os.execv(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"{sys.argv[2]}: {error.strerror}")
"""


def bound_to_us(argv: Sequence[str]) -> tuple[str, ...]:
    """The command line that runs `argv` and is killed when this process ends, however it ends."""
    return (sys.executable, "-I", "-S", "-c", _EXEC, str(os.getpid()), *argv)


@dataclass(frozen=True)
class ChildSpec:
    """A process of the group.

    Attributes:
        name: `master`, `store-0`, `gateway`, ...: its log is `logs/<name>.log`.
        argv: the command line; argv[0] is an absolute path.
        ready: tells when it is ready.
        env: added to the supervisor's environment.
    """

    name: str
    argv: tuple[str, ...]
    ready: ReadyCheck
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SupervisorLimits:
    """Bounds of the supervisor; times in seconds, sizes in bytes."""

    stop_grace: float = 10.0
    """From SIGTERM to SIGKILL. A master takes 1 s."""
    kill_wait: float = 5.0
    """For SIGKILLed processes to be gone."""
    backoff_first: float = 0.5
    """Before a dead child is started again, first time ..."""
    backoff_max: float = 10.0
    """... doubled each time up to this, for ever: a group should come back by itself."""
    stable_after: float = 60.0
    """Ready for so long, a child's back-off starts anew."""
    ready_timeout: float = 60.0
    """For a restarted child to be ready; then it is killed and counts as dead."""
    ready_poll: float = 0.05
    """Between two readiness checks."""
    log_bytes: int = 16 << 20
    """A larger log is moved to `<name>.log.1` (one generation)."""
    log_check: float = 30.0
    """Between two looks at the logs' sizes."""


@dataclass(frozen=True)
class Progress:
    """Something that a person who waits wants to see."""

    child: str
    phase: str
    detail: str = ""
    seconds: float = 0.0
    """Since the child was started."""


class Supervisor:
    """Runs the stages of a group: each stage is ready before the next one starts.

    Args:
        state: is kept current and written to `state_file` at every change.
        stages: specs that may start together, in order of need.
        progress: called at every change; must not block.
    """

    def __init__(
        self,
        state: GroupState,
        stages: Sequence[Sequence[ChildSpec]],
        *,
        data_dir: Path,
        state_file: Path,
        log_dir: Path,
        progress: Callable[[Progress], None] = lambda _: None,
        limits: SupervisorLimits | None = None,
    ) -> None:
        self.state = state
        self._stages = stages
        self._data_dir = data_dir
        self._state_file = state_file
        self._log_dir = log_dir
        self._progress = progress
        self._limits = limits or SupervisorLimits()
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._watchers: list[asyncio.Task[None]] = []
        for spec in self._specs():
            state.children[spec.name] = ChildState()

    async def start(self, timeout: float) -> None:
        """Start everything; returns when all are ready.

        Raises:
            ChildDied: a child ended meanwhile.
            NotReady: `timeout` seconds passed.
        """
        deadline = time.monotonic() + timeout
        self._write()
        for stage in self._stages:
            for spec in stage:
                await self._launch(spec)
            starts = {asyncio.create_task(self._first_start(spec, deadline)) for spec in stage}
            # A child that was ready may still end: a master says it serves before it has its port.
            ends = {asyncio.create_task(self._ends(spec)) for spec in self._specs()}
            try:
                while not all(task.done() for task in starts):
                    done, _ = await asyncio.wait(
                        {*ends, *starts} - {task for task in starts if task.done()},
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                    for task in done:
                        task.result()
            finally:
                for task in starts | ends:
                    task.cancel()
                await asyncio.gather(*starts, *ends, return_exceptions=True)
        self.state.phase = "ready"
        self._write()
        self._watchers = [asyncio.create_task(self._keep(spec)) for spec in self._specs()]
        self._watchers.append(asyncio.create_task(self._keep_logs_small()))

    async def stop(self) -> None:
        """Stop everything, last stage first; nothing runs when it returns."""
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        self._watchers = []
        self.state.phase = "stopping"
        self._write()
        for stage in reversed(self._stages):
            await asyncio.gather(*(self._terminate(spec.name) for spec in stage))

    async def failed(self) -> None:
        """Never returns; raises what a watcher raised: a defect of ours, not a dead child."""
        await asyncio.gather(*self._watchers)

    def _specs(self) -> Iterable[ChildSpec]:
        return (spec for stage in self._stages for spec in stage)

    def _write(self) -> None:
        try:
            write_state(self._state_file, self.state)
        except OSError as error:  # a full disk must not stop a group that serves
            detail = f"{self._state_file} cannot be written: {error.strerror}"
            self._progress(Progress("supervisor", "warning", detail))

    def _report(self, spec: ChildSpec, phase: str, detail: str = "") -> None:
        started = self.state.children[spec.name].started_at
        seconds = time.time() - started if started else 0.0
        self._progress(Progress(spec.name, phase, detail, seconds))

    async def _launch(self, spec: ChildSpec) -> None:
        log = self._log_dir / f"{spec.name}.log"
        descriptor = -1
        try:
            rotate(log, self._limits.log_bytes)
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            process = await asyncio.create_subprocess_exec(
                *bound_to_us(spec.argv),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                start_new_session=True,  # its own process group; the terminal's ^C is ours alone
                env={
                    **os.environ,
                    **spec.env,
                    DATA_DIR_VARIABLE: str(self._data_dir),
                    CHILD_VARIABLE: spec.name,
                },
            )  # fmt: skip
        except OSError as error:
            raise GroupError(
                f"{spec.name} cannot be started: {error.strerror}",
                where=str(error.filename or spec.argv[0]),
            ) from error
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        self._running[spec.name] = process
        child = self.state.children[spec.name]
        child.process = ProcessId.of(process.pid)
        child.started_at = time.time()
        child.phase = "starting"
        self._write()
        self._report(spec, "starting")

    async def _until_ready(self, spec: ChildSpec, deadline: float) -> None:
        """Wait until a launched child is ready. Raises ChildDied or NotReady."""
        process = self._running[spec.name]
        awaited = ""
        ended = asyncio.create_task(process.wait())
        try:
            while True:
                remaining = deadline - time.monotonic()
                check = asyncio.create_task(_ready(spec, process.pid))
                await asyncio.wait(
                    {check, ended}, timeout=remaining, return_when=asyncio.FIRST_COMPLETED
                )
                if ended.done():
                    check.cancel()
                    raise self._died(spec, ended.result())
                if not check.done():
                    check.cancel()
                    raise self._not_ready(spec, awaited or "an answer")
                still_awaited = check.result()
                if not still_awaited:
                    return
                if still_awaited != awaited:
                    awaited = still_awaited
                    self._report(spec, "starting", f"waiting for {awaited}")
                if time.monotonic() >= deadline:
                    raise self._not_ready(spec, awaited)
                await asyncio.wait({ended}, timeout=self._limits.ready_poll)
        finally:
            ended.cancel()

    async def _ends(self, spec: ChildSpec) -> None:
        """Raises ChildDied when a launched child ends; never returns for one that is not."""
        process = self._running.get(spec.name)
        if process is not None:
            raise self._died(spec, await process.wait())
        await asyncio.Event().wait()

    async def _first_start(self, spec: ChildSpec, deadline: float) -> None:
        await self._until_ready(spec, deadline)
        self._is_ready(spec)

    def _is_ready(self, spec: ChildSpec) -> None:
        self.state.children[spec.name].phase = "ready"
        self._write()
        self._report(spec, "ready")

    async def _keep(self, spec: ChildSpec) -> None:
        """Start the child again whenever it ends."""
        backoff = self._limits.backoff_first
        ready_since = time.monotonic()
        child = self.state.children[spec.name]
        while True:
            process = self._running[spec.name]
            code = await process.wait()
            self._sweep(child)
            if time.monotonic() - ready_since >= self._limits.stable_after:
                backoff = self._limits.backoff_first
            child.last_exit = how_it_ended(code)
            child.phase = "restarting"
            child.restarts += 1
            self._write()
            self._report(spec, "restarting", f"it {child.last_exit}; again in {backoff:g} s")
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, self._limits.backoff_max)
            try:
                await self._launch(spec)
                await self._until_ready(spec, time.monotonic() + self._limits.ready_timeout)
            except (ChildDied, NotReady, GroupError) as error:
                self._report(spec, "restarting", error.what)
                await self._terminate(spec.name)
                continue
            self._is_ready(spec)
            ready_since = time.monotonic()

    async def _terminate(self, name: str) -> None:
        process = self._running.get(name)
        child = self.state.children[name]
        if process is not None:
            if process.returncode is None:
                _signal_group(process.pid, signal.SIGTERM)
                _signal_group(process.pid, signal.SIGCONT)  # a frozen one cannot hear the first
                try:
                    await asyncio.wait_for(process.wait(), self._limits.stop_grace)
                except asyncio.TimeoutError:
                    _signal_group(process.pid, signal.SIGKILL)
                    await process.wait()
            self._sweep(child)
            self._progress(Progress(name, "stopped"))
        child.phase = "stopped"
        self._write()

    def _sweep(self, child: ChildState) -> None:
        """Kill what a child that ended has left in its process group."""
        if child.process is not None:
            _signal_group(child.process.pid, signal.SIGKILL)

    async def _keep_logs_small(self) -> None:
        while True:
            await asyncio.sleep(self._limits.log_check)
            for spec in self._specs():
                await asyncio.to_thread(
                    truncate, self._log_dir / f"{spec.name}.log", self._limits.log_bytes
                )

    def _died(self, spec: ChildSpec, code: int) -> GroupError:
        log = self._log_dir / f"{spec.name}.log"
        tail = log_tail(log)
        missing = missing_libraries(tail)
        if missing:
            return libraries_error(spec.name, missing)
        return ChildDied(f"{spec.name} {how_it_ended(code)} while it started", hint=told(log, tail))

    def _not_ready(self, spec: ChildSpec, awaited: str) -> NotReady:
        log = self._log_dir / f"{spec.name}.log"
        return NotReady(
            f"{spec.name} is not ready in time: still waiting for {awaited}",
            hint=told(log, log_tail(log)),
        )


async def _ready(spec: ChildSpec, pid: int) -> str:
    return await spec.ready(pid)


def _signal_group(pgid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, number)


def kill_leftovers(processes: Mapping[str, ProcessId], timeout: float = 5.0) -> None:
    """Kill what an earlier supervisor left. Raises GroupError if something survives."""
    alive = set(kill_all(processes.values(), timeout))
    names = [f"{name} (pid {each.pid})" for name, each in processes.items() if each in alive]
    if names:
        raise GroupError(
            f"{', '.join(names)} cannot be killed",
            hint="it may be stuck in the kernel, or belong to another user",
        )
