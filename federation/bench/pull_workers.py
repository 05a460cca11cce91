"""What several serving and pulling processes cost against one of each, in the same run and by turns."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol, TypeVar

from federation.bench.cpu import grown
from federation.bench.engines import BenchError
from federation.bench.groups import PORTS_STEP, GroupSet, Layout, init_peers, write_groups
from federation.bench.pull_figures import ARMS, BLOCKS, READERS, Measured, WorkersOutcome
from federation.bench.pull_options import GIB, LEASE_MS, LIMITS, PullBench, Say
from federation.bench.resources import free_port_base
from federation.bench.worker import Worker, WorkerError

_T = TypeVar("_T")

WARM_ROUNDS: Final = 4
"""Not counted: connections are made, and each process touches for the first time what it has of staging."""
FAILED_MAX: Final = 3
"""Pulls that may miss a block, in all: an engine takes a gateway that is silent for a moment, on a machine
that is short of processors, for frozen."""
STAGING_BYTES: Final = 512 << 20
"""Little more than one round's pulls: the rounds that count find it touched."""


class Rig(Protocol):
    """A pair of groups, with engines beside them."""

    def engines(self, held: contextlib.ExitStack) -> tuple[Worker, Worker]: ...
    def reader(self, held: contextlib.ExitStack, name: str) -> Worker: ...
    def write(self, writer: Worker, name: str, count: int) -> None: ...
    def seconds(self) -> dict[str, float]: ...


async def with_workers(
    options: PullBench,
    folder: Path,
    outcome: WorkersOutcome,
    stop: asyncio.Event,
    say: Say,
    make: Callable[[GroupSet], Rig],
) -> None:
    """A pair of groups for each arm, all at once; taken down again whatever happens."""
    await asyncio.to_thread(folder.mkdir)
    blocks = outcome.blocks = min(BLOCKS, options.blocks)
    written = (options.rounds + WARM_ROUNDS) * READERS * blocks * options.block_bytes
    base = free_port_base(2 * len(ARMS), options.port_base)
    limits = LIMITS | {"staging_bytes": STAGING_BYTES}
    sets: dict[str, GroupSet] = {}
    left: list[str] = []
    try:
        for place, (name, (serving, pulling)) in enumerate(ARMS.items()):
            layout = Layout(
                groups=2,
                store_bytes=2 * written + GIB,
                lease_ttl_ms=LEASE_MS,
                port_base=base + 2 * place * PORTS_STEP,
                admit="never",
                serving_workers=serving,
                pulling_workers=pulling,
            )
            own = folder / f"{serving}-{pulling}"
            configs = await asyncio.to_thread(write_groups, own, "federated", layout, limits)
            await init_peers(own, configs, own / "peer-init.log")
            sets[name] = GroupSet(configs, own, say, stop)
        await _all(groups.up() for groups in sets.values())
        if not stop.is_set():
            rigs = {name: make(groups) for name, groups in sets.items()}
            await asyncio.to_thread(_measure, options.rounds, blocks, outcome, rigs, stop, say)
    finally:
        for names in await _all(groups.down() for groups in sets.values()):
            left += names
    if left:
        raise BenchError(f"could not be stopped: {', '.join(left)}", where=str(folder))


async def _all(calls: Iterable[Coroutine[None, None, _T]]) -> list[_T]:
    """All at once: they wait most of the time. Each is over before an error is raised."""
    found: list[_T] = []
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
        found.append(result)
    return found


def _measure(
    rounds: int,
    blocks: int,
    outcome: WorkersOutcome,
    rigs: Mapping[str, Rig],
    stop: asyncio.Event,
    say: Say,
) -> None:
    """Pulls by turns, each arm in each round."""
    say(f"pulls of {READERS} engines at once, through {' and '.join(rigs)} processes")
    with contextlib.ExitStack() as held:
        opened: dict[str, tuple[Worker, list[Worker]]] = {}
        for arm, rig in rigs.items():
            writer, reader = rig.engines(held)
            more = [rig.reader(held, f"reader-{n}") for n in range(1, READERS)]
            opened[arm] = (writer, [reader, *more])
        failed = 0
        for number in range(rounds + WARM_ROUNDS):
            if stop.is_set():
                return
            found: dict[str, tuple[float, dict[str, float]]] = {}
            for arm in list(rigs)[:: 1 if number % 2 else -1]:
                try:
                    found[arm] = _pulls(rigs[arm], *opened[arm], number, blocks)
                except WorkerError as error:
                    failed += 1
                    if failed > FAILED_MAX:
                        raise
                    say(f"a round that does not count, with {arm}: {error}")
            if number >= WARM_ROUNDS and len(found) == len(rigs):
                for arm, (ms, used) in found.items():
                    outcome.arms.setdefault(arm, Measured()).add(ms, used)


def _pulls(
    rig: Rig, writer: Worker, readers: list[Worker], number: int, blocks: int
) -> tuple[float, dict[str, float]]:
    for place in range(len(readers)):
        rig.write(writer, f"workers-{number}-{place}", blocks)
    before = rig.seconds()
    for place, reader in enumerate(readers):
        reader.begin("read", name=f"workers-{number}-{place}", count=blocks, tier="peer")
    took, errors = [], []
    for reader in readers:
        try:
            took.append(reader.end("read"))
        except WorkerError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    used = grown(before, rig.seconds())
    used["engine"] = sum(reader.ask("spent") for reader in readers)
    return max(took), used
