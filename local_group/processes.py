"""The supervisor: starts a group's processes, keeps them running, stops them all."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from local_group.child import ChildSpec, Progress, SupervisorLimits, bound_to_us, own_group
from local_group.logs import how_it_ended, log_size, log_tail, own_error, rotate, told, truncate
from local_group.mooncake import libraries_error, missing_libraries
from local_group.ports import check_free
from local_group.process_errors import ChildDied, GroupError, NotReady
from local_group.state import (
    CHILD_VARIABLE,
    DATA_DIR_VARIABLE,
    PROBLEM_CHARS_MAX,
    ChildState,
    GroupState,
    ProcessId,
    kill_all,
    write_state,
)


class Supervisor:
    """Runs the stages of a group: each stage is ready before the next one starts.

    Args:
        state: is kept current and written to `state_file` at every change.
        stages: specs that may start together, in order of need.
        beside: what the stages can do without: started after them, stopped before them.
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
        beside: Sequence[ChildSpec] = (),
        progress: Callable[[Progress], None] = lambda _: None,
        limits: SupervisorLimits | None = None,
    ) -> None:
        self.state = state
        self._stages = stages
        self._beside = beside
        self._data_dir = data_dir
        self._state_file = state_file
        self._log_dir = log_dir
        self._progress = progress
        self._limits = limits or SupervisorLimits()
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._watchers: list[asyncio.Task[None]] = []
        self._awaited: dict[str, str] = {}
        self._log_start: dict[str, int] = {}
        self._unwritten = asyncio.Event()
        for spec in self._specs():
            state.children[spec.name] = ChildState()

    async def start(self, timeout: float) -> Mapping[str, GroupError]:
        """Start everything; returns when all are ready.

        What is beside the stages may fail: then the errors are returned by name, and it is started
        again for ever, as anything that ends later is.

        Raises:
            ChildDied: a child of the stages ended meanwhile.
            NotReady: `timeout` seconds passed before the stages were ready.
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
        watch = [self._keep(spec) for stage in self._stages for spec in stage]
        watch += [self._keep_logs_small(), self._keep_written()]
        self._watchers = [asyncio.create_task(each) for each in watch]
        failures = await self._start_beside(deadline)
        self.state.phase = "ready"
        self._write()
        return failures

    async def _start_beside(self, deadline: float) -> Mapping[str, GroupError]:
        loop = asyncio.get_running_loop()
        firsts: dict[str, asyncio.Future[GroupError | None]] = {}
        for spec in self._beside:
            firsts[spec.name] = first = loop.create_future()
            self._watchers.append(asyncio.create_task(self._keep(spec, first)))
        if firsts:
            await asyncio.wait(firsts.values(), timeout=max(0.0, deadline - time.monotonic()))
        failures: dict[str, GroupError] = {}
        for spec in self._beside:
            first = firsts[spec.name]
            if not first.done():
                failures[spec.name] = self._not_ready(spec)
            elif error := first.result():
                failures[spec.name] = error
        return failures

    async def stop(self) -> None:
        """Stop everything, last stage first; nothing runs when it returns."""
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        self._watchers = []
        self.state.phase = "stopping"
        self._write()
        # One after the other, the last first: a gateway gives up its lease before its etcd ends.
        beside = ((spec,) for spec in reversed(self._beside))
        for stage in (*beside, *reversed(self._stages)):
            await asyncio.gather(*(self._terminate(spec.name) for spec in stage))

    async def failed(self) -> None:
        """Never returns; raises what a watcher raised: a defect of ours, not a dead child."""
        await asyncio.gather(*self._watchers)

    def _specs(self) -> Iterable[ChildSpec]:
        return (spec for stage in (*self._stages, self._beside) for spec in stage)

    def _write(self) -> None:
        try:
            write_state(self._state_file, self.state)
            self._unwritten.clear()
        except (OSError, ValueError) as error:  # a full disk must not stop a group that serves
            if not self._unwritten.is_set():
                why = error.strerror if isinstance(error, OSError) else error
                detail = f"{self._state_file} cannot be written: {why}"
                self._progress(Progress("supervisor", "warning", detail))
            self._unwritten.set()

    async def _keep_written(self) -> None:
        """Write the state again that could not be: `status` shows what it says."""
        while True:
            await self._unwritten.wait()
            await asyncio.sleep(self._limits.write_retry)
            self._write()

    def _report(self, spec: ChildSpec, phase: str, detail: str = "") -> None:
        started = self.state.children[spec.name].started_at
        seconds = time.time() - started if started else 0.0
        self._progress(Progress(spec.name, phase, detail, seconds))

    async def _launch(self, spec: ChildSpec) -> None:
        log = self._log_dir / f"{spec.name}.log"
        descriptor = -1
        check_free(spec.ports)
        try:
            rotate(log, self._limits.log_bytes)
            self._log_start[spec.name] = log_size(log)
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            process = await asyncio.create_subprocess_exec(
                *bound_to_us(spec.argv),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                **own_group(),
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
        awaited = self._awaited[spec.name] = ""
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
                    raise self._not_ready(spec)
                still_awaited = check.result()
                if not still_awaited:
                    return
                if still_awaited != awaited:
                    awaited = self._awaited[spec.name] = still_awaited
                    self._report(spec, "starting", f"waiting for {awaited}")
                if time.monotonic() >= deadline:
                    raise self._not_ready(spec)
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
        child = self.state.children[spec.name]
        child.phase, child.problem = "ready", ""
        self._write()
        self._report(spec, "ready")

    async def _keep(
        self, spec: ChildSpec, first: asyncio.Future[GroupError | None] | None = None
    ) -> None:
        """Start the child again whenever it ends.

        Args:
            first: given for a child that was not started yet; gets what comes of the first time.
        """
        backoff = self._limits.backoff_first
        child = self.state.children[spec.name]
        error = await self._try(spec) if first else None
        if first:
            first.set_result(error)
        while True:
            if error is None:  # it is ready
                since = time.monotonic()
                code = await self._running[spec.name].wait()
                self._sweep(child)
                if time.monotonic() - since >= self._limits.stable_after:
                    backoff = self._limits.backoff_first
                child.last_exit = how_it_ended(code)
            child.phase = "restarting"
            child.restarts += 1
            self._write()
            why = error.what if error else f"it {child.last_exit}"
            self._report(spec, "restarting", f"{why}; again in {backoff:g} s")
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, self._limits.backoff_max)
            error = await self._try(spec)

    async def _try(self, spec: ChildSpec) -> GroupError | None:
        """Start a child; why it is not ready, or None when it is."""
        child = self.state.children[spec.name]
        try:
            await self._launch(spec)
            await self._until_ready(spec, time.monotonic() + self._limits.ready_timeout)
        except GroupError as error:
            await self._terminate(spec.name)
            process = self._running.get(spec.name)
            if process is not None and process.returncode is not None:
                child.last_exit = how_it_ended(process.returncode)
            tail = self._tail(spec) if isinstance(error, ChildDied) else ""
            child.problem = (own_error(tail) or error.what)[:PROBLEM_CHARS_MAX]
            return error
        self._is_ready(spec)
        return None

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

    def _tail(self, spec: ChildSpec) -> str:
        """What a child has logged last, since it was started."""
        log = self._log_dir / f"{spec.name}.log"
        return log_tail(log, since=self._log_start.get(spec.name, 0))

    def _told(self, spec: ChildSpec) -> str:
        return told(self._log_dir / f"{spec.name}.log", self._tail(spec))

    def _died(self, spec: ChildSpec, code: int) -> GroupError:
        missing = missing_libraries(self._tail(spec))
        if missing:
            return libraries_error(spec.name, missing)
        return ChildDied(
            f"{spec.name} {how_it_ended(code)} while it started", hint=self._told(spec)
        )

    def _not_ready(self, spec: ChildSpec) -> NotReady:
        awaited = self._awaited.get(spec.name) or "an answer"
        return NotReady(
            f"{spec.name} is not ready in time: still waiting for {awaited}", hint=self._told(spec)
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
