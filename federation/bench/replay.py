"""Replays a trace over real groups, once a mode, and takes everything down again."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from federation.bench.engines import BenchError, EngineHandle, EngineProcess
from federation.bench.groups import (
    NAMESPACE,
    GroupSet,
    Layout,
    Mode,
    adapt_groups,
    init_peers,
    is_federated,
    write_groups,
)
from federation.bench.staleness import Written
from federation.bench.tally import Tally
from federation.bench.workload import Workload

ANSWER_S = 60.0
"""Longest wait for one request's answer, beyond its deadline: an engine that takes longer hangs."""
LEASED_SHARE = 0.05
"""Share of the pool that leases of what was just read may pin."""
LEASE_MIN_MS, LEASE_MAX_MS = 500, 10_000
RATE_GUESS = 100.0
"""Requests a second that the lease is scaled for where no rate is given."""
LOCAL_BUFFER_BYTES = 64 * 1024 * 1024
"""Mooncake's own buffer in each engine."""
DRAIN_S = 5.0
"""How long an interrupted replay waits for the answers that are under way."""


class Progress(Protocol):
    """Told how a replay goes."""

    def say(self, text: str) -> None: ...
    def begin(self, mode: str, requests: int) -> None: ...
    def advance(self, tally: Tally) -> None: ...


@dataclass(frozen=True)
class Options:
    """How to send a workload."""

    concurrency: int = 8
    """Requests in flight, over all groups together."""
    deadline_ms: int = 1000
    """Of one read, and of one write."""
    factory: str = "federation.bench.engine_process:open_federated"
    """Opens an engine's store: `module:function`."""


def lease_ttl_ms(layout_bytes: int, workload: Workload, rate: float | None) -> int:
    """A lease that pins at most `LEASED_SHARE` of the pool, as production's does.

    A production pool is large against what is read within a lease of 10 s. A replay's is not: with
    10 s everything read lately would be pinned and eviction would throw out the wrong blocks.
    """
    if not workload.requests:
        return LEASE_MAX_MS
    per_request = workload.blocks / len(workload.requests) * workload.block_bytes
    seconds = LEASED_SHARE * layout_bytes / (per_request * (rate or RATE_GUESS))
    return max(LEASE_MIN_MS, min(LEASE_MAX_MS, math.floor(seconds * 1000)))


async def play(
    workload: Workload,
    engines: Sequence[EngineHandle],
    tally: Tally,
    *,
    concurrency: int,
    answer_s: float,
    stop: asyncio.Event,
    progress: Callable[[Tally], None],
) -> None:
    """Send every request to its group's engine at its due time, `concurrency` at once.

    Ends early when `stop` is set. Answers are added to `tally` as they come.

    Raises:
        BenchError: if an engine dies or hangs.
    """
    loop = asyncio.get_running_loop()
    places = asyncio.Semaphore(concurrency)
    failed: list[BaseException] = []
    tasks: set[asyncio.Task[None]] = set()
    halt = asyncio.Event()
    watch = asyncio.create_task(_forward(stop, halt, places))

    written = Written()

    async def one(number: int, group: int, keys: tuple[str, ...]) -> None:
        try:
            began = loop.time()
            answer = await engines[group].ask(number, keys, answer_s)
            tally.add(answer)
            missed = keys[answer.local + answer.peer :]
            tally.stale_misses += written.stale(missed, group, began)
            if not answer.codes and not answer.errors:
                written.note(missed, group, loop.time())
            progress(tally)
        except Exception as error:  # raised again below, once what is under way has ended
            failed.append(error)
            halt.set()
        finally:
            places.release()

    begin = loop.time()
    try:
        for request in workload.requests:
            if request.due_s is not None:
                await _sleep(begin + request.due_s - loop.time(), halt)
            await places.acquire()
            if halt.is_set():
                places.release()
                break
            if request.due_s is not None:
                tally.late_ms.append(max(0.0, loop.time() - begin - request.due_s) * 1e3)
            task = asyncio.create_task(one(request.number, request.group, request.keys))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        if tasks:
            await asyncio.wait(tasks, timeout=DRAIN_S if halt.is_set() else answer_s)
    finally:
        watch.cancel()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        tally.elapsed_s = loop.time() - begin
    if failed and not stop.is_set():
        raise failed[0]


async def _forward(stop: asyncio.Event, halt: asyncio.Event, places: asyncio.Semaphore) -> None:
    await stop.wait()
    halt.set()
    places.release()  # wakes a sender that waits for a place of engines that hang


async def _sleep(seconds: float, halt: asyncio.Event) -> None:
    """Sleep, or until `halt` is set."""
    if seconds > 0:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(halt.wait(), seconds)


@dataclass(frozen=True)
class Plan:
    """Where the groups of a replay come from.

    Either `layout` (they are generated) or `files` (`group.toml` files as given, with peering and
    credentials beside them).
    """

    folder: Path
    layout: Layout | None = None
    files: tuple[Path, ...] = ()
    namespace: str = NAMESPACE

    async def configs(self, mode: Mode) -> list[Path]:
        """The `group.toml` files of a mode, ready to be started."""
        folder = self.folder / mode
        folder.mkdir(parents=True, exist_ok=True)
        if self.layout is None:
            return adapt_groups(self.files, folder, mode)
        configs = write_groups(folder, mode, self.layout)
        if is_federated(mode):
            await init_peers(folder, configs, folder / "peer-init.log")
        return configs


async def run_mode(
    mode: Mode,
    plan: Plan,
    workload: Workload,
    options: Options,
    tally: Tally,
    *,
    stop: asyncio.Event,
    progress: Progress,
) -> list[Path]:
    """Start a mode's groups, play the workload, take all down. Fills `tally`.

    Returns:
        the folders of the groups' span files.

    Raises:
        BenchError: if the groups or engines do not start, break off, or cannot be taken down.
    """
    logs = plan.folder / mode / "logs"
    configs = await plan.configs(mode)
    logs.mkdir(parents=True, exist_ok=True)
    groups = GroupSet(configs, logs, progress.say, stop)
    engines: list[EngineProcess] = []
    try:
        await groups.up()
        if not stop.is_set():
            starting = [
                EngineProcess.start(
                    _spec(groups, i, plan.namespace, workload, options), logs / f"engine-{i}.log"
                )
                for i in range(workload.groups)
            ]
            started = await asyncio.gather(*starting, return_exceptions=True)
            engines = [e for e in started if isinstance(e, EngineProcess)]
            for found in started:
                if isinstance(found, BaseException):
                    raise found
            progress.begin(mode, len(workload.requests))
            await play(
                workload,
                engines,
                tally,
                concurrency=options.concurrency,
                answer_s=ANSWER_S + options.deadline_ms / 1e3,
                stop=stop,
                progress=progress.advance,
            )
            tally.gateways = await groups.status()
    finally:
        # Shielded by the caller's own handling of signals: this is always run to its end.
        tally.engine_stats = [s for s in await asyncio.gather(*(e.finish() for e in engines)) if s]
        progress.say(f"stopping {', '.join(g.name for g in groups.groups)}")
        left = await groups.down()
    if left:
        raise BenchError(f"could not be stopped: {', '.join(left)}", where=str(logs))
    return [group.trace_dir for group in groups.groups]


def _spec(
    groups: GroupSet, index: int, namespace: str, workload: Workload, options: Options
) -> Mapping[str, Any]:
    # In one pool all engines are of one group; each still has its own process.
    place = index % len(groups.groups)
    group = groups.groups[place]
    return {
        "factory": options.factory,
        "settings": {
            "config": os.fspath(groups.configs[place]),
            "namespace": namespace,
            "local_buffer_bytes": LOCAL_BUFFER_BYTES,
            "deadline_ms": options.deadline_ms,
        },
        "namespace": group.namespaces[namespace].fingerprint().hex(),
        "block_bytes": workload.block_bytes,
        "chain_blocks": workload.longest_chain,
        # A random placement may put all requests in flight at one group.
        "threads": options.concurrency,
        "deadline_ms": options.deadline_ms,
        "service": "engine",
        "group": group.name,
        "traces": os.fspath(group.trace_dir),
    }
