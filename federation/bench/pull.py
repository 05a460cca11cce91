"""What a pull costs between two real groups: against the parts that it is made of, in the same run."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from federation.bench import pull_parts as parts
from federation.bench.cpu import GroupProcesses, grown
from federation.bench.engines import BenchError
from federation.bench.groups import (
    FEDERATION,
    NAMESPACE,
    GroupSet,
    Layout,
    init_peers,
    write_groups,
)
from federation.bench.pull_figures import Measured, Outcome, figures, targets, workers_targets
from federation.bench.pull_options import GIB, LEASE_MS, LIMITS, PullBench, Say
from federation.bench.pull_shaped import (
    PREFETCH_BLOCKS,
    PREFETCHES,
    SINGLES,
    ShapedOutcome,
    Shaper,
    measure_shaped,
    prefetcher,
    shaped_layout,
    shaped_targets,
    with_shaped_groups,
)
from federation.bench.pull_workers import with_workers
from federation.bench.report import Report
from federation.bench.resources import free_port_base
from federation.bench.session import ended_by_signals
from federation.bench.worker import Worker
from federation.bench.workspace import Workspace
from federation.config import Admit, GroupFile
from federation.identity import stored_key
from local_group.errors import MoonmeshError
from local_group.scheduling import one_share

OWNER, READER = "g0", "g1"
DIGESTS: Final = 3
"""Of each block: at its owner before it is sent, at the gateway that pulls it, and at the engine."""
ASK_S: Final = 0.02
"""Between two questions to a gateway how far it is."""
VIEW_S: Final = 30.0
"""Longest wait until the reader's gateway knows what was written."""
ALIKE: Final = 0.01
"""Of what was written, at most, what a catalog does not tell apart: two blocks with one print are one."""
SETTLED_S: Final = 0.3
"""In which nothing more comes, once all has: changes are gathered for 50 ms."""


def pull_report(options: PullBench, say: Say) -> tuple[Report, Outcome]:
    """Measures on two real groups of its own; the report, of what was measured until something failed."""
    outcome = Outcome()
    report = Report("pull")
    with Workspace("pull", say) as space:
        try:
            asyncio.run(_session(options, space.path, outcome, say))
        except MoonmeshError as error:
            outcome.failed = error
    report.interrupted = outcome.signal != 0 or outcome.failed is not None
    report.figures = figures(outcome, options.blocks, options.block_bytes)
    link = outcome.shaped.figures(options.shaped, options.pull_bytes)
    workers = outcome.workers.figures(options.block_bytes)
    report.targets = [
        *targets(report.figures),
        *workers_targets(workers),
        *shaped_targets(link),
    ]
    report.figures["workers"] = workers
    report.figures["shaped link"] = link
    report.notes = [
        f"The parts: a get of Mooncake at the owner, a bare gRPC stream with mTLS, {DIGESTS} digests of each "
        "byte, and a put at the reader where that is inside; each measured by itself in the same run.",
        "Processor time is that of all processes of both groups and of the engine; not of the writer.",
    ]
    return report, outcome


async def _session(options: PullBench, folder: Path, outcome: Outcome, say: Say) -> None:
    stop = asyncio.Event()

    def stopped(number: int) -> None:
        outcome.signal = number
        stop.set()

    with ended_by_signals(stopped), one_share():
        for admit in ("never", "always"):
            if not stop.is_set() and options.only in (None, "loopback"):
                await _with_groups(options, folder / admit, admit, outcome, stop, say)
        if not stop.is_set() and options.only in (None, "workers"):
            await with_workers(
                options,
                folder / "workers",
                outcome.workers,
                stop,
                say,
                lambda groups: _Rig(options, groups, Outcome(), stop, say),
            )
        if not stop.is_set() and options.only in (None, "shaped"):
            await _shaped(options, folder / "shaped", outcome.shaped, stop, say)


async def _shaped(
    options: PullBench, folder: Path, outcome: ShapedOutcome, stop: asyncio.Event, say: Say
) -> None:
    chains = {f"one-{n}": 1 for n in range(SINGLES)}
    chains |= {f"ahead-{n}": PREFETCH_BLOCKS for n in range(PREFETCHES)}
    chains |= {f"whole-{n}": options.blocks for n in range(options.shaped.rounds)}
    written = sum(chains.values()) * options.block_bytes

    def measure(groups: GroupSet, shaper: Shaper) -> None:
        rig = _Rig(options, groups, Outcome(), stop, say)
        with contextlib.ExitStack() as held:
            writer, reader = rig.engines(held)
            socket = str(rig.config(READER).gateway_socket)
            ahead = rig.open(held, "ahead", prefetcher, socket, rig.fingerprint(READER))
            ahead.ready()
            for name, count in chains.items():
                rig.write(writer, name, count)
            sizes = (options.blocks, options.block_bytes)
            measure_shaped(
                options.shaped, outcome, shaper, reader, ahead, sizes, rig.pulled, stop, say
            )

    layout = shaped_layout(written, LEASE_MS, options.port_base)
    await with_shaped_groups(layout, LIMITS, folder, stop, say, measure)


async def _with_groups(
    options: PullBench, folder: Path, admit: Admit, outcome: Outcome, stop: asyncio.Event, say: Say
) -> None:
    written = (options.rounds + 1) * options.pull_bytes + options.singles * options.block_bytes
    layout = Layout(
        groups=2,
        store_bytes=2 * written + GIB,
        lease_ttl_ms=LEASE_MS,
        port_base=free_port_base(2, options.port_base),
        admit=admit,
    )
    await asyncio.to_thread(folder.mkdir)
    configs = write_groups(folder, "federated", layout, LIMITS)
    await init_peers(folder, configs, folder / "peer-init.log")
    groups = GroupSet(configs, folder, say, stop)
    try:
        await groups.up()
        if not stop.is_set():
            rig = _Rig(options, groups, outcome, stop, say)
            await asyncio.to_thread(rig.run, admit == "always")
    finally:
        left = await groups.down()
    if left:
        raise BenchError(f"could not be stopped: {', '.join(left)}", where=str(folder))


class _Rig:
    """The workers beside two groups, and what is asked of them. Runs in a thread."""

    def __init__(
        self, options: PullBench, groups: GroupSet, outcome: Outcome, stop: asyncio.Event, say: Say
    ) -> None:
        self._options = options
        self._groups = groups
        self._outcome = outcome
        self._stop = stop
        self._say = say
        self._configs = dict(zip((OWNER, READER), groups.groups, strict=True))
        self._processes = GroupProcesses({n: g.data_dir for n, g in self._configs.items()})
        self._written = 0

    def run(self, inside: bool) -> None:
        with contextlib.ExitStack() as held:
            writer, reader = self.engines(held)
            if not inside:
                self._say(f"pulls of one block: {self._options.singles}")
                self._first(writer, reader)
                self._say(f"the parts of a pull: {self._options.rounds} rounds")
                self._parts(held)
            self._say(
                f"pulls, put {'inside' if inside else 'deferred'}: {self._options.rounds} rounds"
            )
            self._pulls(writer, reader, inside)

    def engines(self, held: contextlib.ExitStack) -> tuple[Worker, Worker]:
        """One that writes at the owner, and one that reads at the other group."""
        writer = self.open(held, "writer", parts.engine, *self._engine(OWNER))
        reader = self.open(held, "reader", parts.engine, *self._engine(READER))
        for worker in (writer, reader):
            worker.ready()
        return writer, reader

    def reader(self, held: contextlib.ExitStack, name: str) -> Worker:
        """One more that reads."""
        made = self.open(held, name, parts.engine, *self._engine(READER))
        made.ready()
        return made

    def seconds(self) -> dict[str, float]:
        """Seconds of a processor that each kind of process has used so far."""
        return self._processes.seconds()

    def config(self, group: str) -> GroupFile:
        return self._configs[group]

    def fingerprint(self, group: str) -> bytes:
        return bytes(self._configs[group].namespaces[NAMESPACE].fingerprint())

    def open(self, held: contextlib.ExitStack, name: str, make: Any, *args: Any) -> Worker:
        worker = Worker(name, make, *args)
        held.callback(worker.close)
        return worker

    def _engine(self, group: str) -> tuple[Any, ...]:
        place = (OWNER, READER).index(group)
        options = self._options
        settings = {
            "config": str(self._groups.configs[place]),
            "namespace": NAMESPACE,
            "local_buffer_bytes": 64 << 20,
            "deadline_ms": None,
        }
        return settings, self.fingerprint(group), options.blocks, options.block_bytes

    # What is measured

    def _pulls(self, writer: Worker, reader: Worker, inside: bool) -> None:
        options = self._options
        measured = self._outcome.inside if inside else self._outcome.deferred
        for number in self._rounds(options.rounds + 1):
            name = f"pull-{inside}-{number}"
            self.write(writer, name, options.blocks)
            before = self._processes.seconds()
            ms = reader.ask("read", name=name, count=options.blocks, tier="peer")
            if inside:
                self._all_admitted((number + 1) * options.blocks)
            used = grown(before, self._processes.seconds())
            used["engine"] = reader.ask("spent")
            if number:  # the first warms connections and memory up
                measured.add(ms, used)

    def _first(self, writer: Worker, reader: Worker) -> None:
        options = self._options
        for start in range(0, options.singles, options.blocks):
            if self._stop.is_set():
                return
            count = min(options.blocks, options.singles - start)
            for place in range(count):
                writer.ask("write", name=f"one-{start + place}", count=1)
            self._known(count)
            for place in range(count):
                ms = reader.ask("read", name=f"one-{start + place}", count=1, tier="peer")
                self._outcome.first_ms.append(ms)

    def _parts(self, held: contextlib.ExitStack) -> None:
        options, size = self._options, self._options.block_bytes
        owner, reader = self._configs[OWNER], self._configs[READER]
        address = parts.free_address()
        folders = [path.parent / "credentials" for path in self._groups.configs]
        messages = options.pull_bytes // parts.MESSAGE_BYTES
        window = owner.limits.serve_window_bytes
        server = self.open(
            held, "server", parts.stream_server, folders[0], OWNER, FEDERATION, address, messages
        )
        server.ready()
        workers: dict[str, list[Worker]] = {
            "get": [
                self.open(held, "get", parts.mooncake, *_plain(owner), options.blocks, size, window)
            ],
            "put": [
                self.open(
                    held, "put", parts.mooncake, *_plain(reader), options.blocks, size, window
                )
            ],
            "digests": [self.open(held, "digests", parts.digests, bytes(16), options.blocks, size)],
            "stream": [
                self.open(
                    held,
                    "stream",
                    parts.stream_client,
                    folders[1],
                    READER,
                    FEDERATION,
                    OWNER,
                    address,
                ),
                server,
            ],
        }
        for worker, *_ in workers.values():
            worker.ready()
        holder = self.open(
            held, "holder", parts.mooncake, *_plain(owner), options.blocks, size, window
        )
        holder.ready()
        holder.ask("put", name="part")
        for number in self._rounds(options.rounds + 1):
            for part, (worker, *others) in workers.items():
                name = "part" if part == "get" else f"part-{number}"
                before = self._processes.seconds()
                own = {each.name: each.seconds() for each in (worker, *others)}
                ms = worker.ask(part, name=name)
                used = grown(before, self._processes.seconds())
                used = {name: s for name, s in used.items() if name.endswith(("store", "master"))}
                for each in (worker, *others):
                    used[each.name] = each.seconds() - own[each.name]
                if part == "digests":
                    ms, used = DIGESTS * ms, {name: DIGESTS * s for name, s in used.items()}
                if number:
                    self._outcome.part.setdefault(part, Measured()).add(ms, used)

    # Steps

    def _rounds(self, count: int) -> Iterator[int]:
        for number in range(count):
            if self._stop.is_set():
                return
            yield number

    def write(self, writer: Worker, name: str, count: int) -> None:
        writer.ask("write", name=name, count=count)
        self._known(count)

    def _known(self, count: int) -> None:
        """Waits until the reader's gateway knows of what was written."""
        self._written += count
        self._wait_until(self._all_seen)

    def _all_seen(self) -> bool:
        seen = self._seen()
        if seen >= self._written:
            return True
        if seen < (1 - ALIKE) * self._written:
            return False
        time.sleep(SETTLED_S)
        if self._seen() != seen:
            return False
        self._written = seen  # some have one print
        return True

    def _all_admitted(self, count: int) -> None:
        self._wait_until(lambda: self._admitted() >= count)

    def _wait_until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + VIEW_S
        while not true():
            if time.monotonic() > deadline:
                raise BenchError(
                    f"what was written is not known after {VIEW_S:.0f} s", where=READER
                )

    def _seen(self) -> int:
        peers = self._status().get("peers", [])
        return sum(view["blocks"] for peer in peers for view in peer.get("views", []))

    def pulled(self) -> int:
        """Bytes that the reader's gateway has pulled."""
        return int(self._status().get("counters", {}).get("moonmesh_peer_bytes_total", 0))

    def _admitted(self) -> int:
        return int(self._status().get("counters", {}).get("moonmesh_admitted_total", 0))

    def _status(self) -> dict[str, Any]:
        return asyncio.run(self._groups.status())[1]


def _plain(config: GroupFile) -> tuple[str, str, str]:
    fingerprint = config.namespaces[NAMESPACE].fingerprint()
    return config.master_address, config.host, stored_key(fingerprint, "")
