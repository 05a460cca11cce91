"""What FederatedStore costs where no peer has a part in it: against plain Mooncake, call by call."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from federation.bench.groups import NAMESPACE, GroupSet, Layout, write_groups
from federation.bench.local_arm import CALLS, Calls, Spec
from federation.bench.paired import SEGMENTS, ratio, run_paired, spread
from federation.bench.replay import LOCAL_BUFFER_BYTES
from federation.bench.report import Report, Target
from federation.bench.resources import free_port_base
from federation.bench.session import ended_by_signals
from federation.bench.tally import quantile
from federation.bench.worker import Worker
from federation.bench.workspace import Workspace
from federation.config import load_group
from federation.identity import stored_key
from local_group.scheduling import one_share

TARGETS: Final[Mapping[str, float]] = {"get": 1.03, "put": 1.10, "exists": 1.05}
"""Of the median of each call, over that of plain Mooncake."""
STORE_BYTES: Final = 1 << 30
LEASE_MS: Final = 10_000
WARM_ROUNDS: Final = 20
"""Rounds before those that are measured."""
SEED: Final = 1
FEDERATED, PLAIN, AGAIN = "federated", "plain", "plain again"
"""The arms; the third does what the second does: by so much the same thing differs from itself."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class LocalBench:
    """What to measure.

    Attributes:
        rounds: of each call, each way.
        blocks, block_bytes: of one get and one put.
        exists_keys: of one `batch_is_exist`.
        port_base: free ports are looked for from here.
    """

    rounds: int = 3000
    blocks: int = 128
    block_bytes: int = 64 * 1024
    exists_keys: int = 8000
    port_base: int = 7600


@dataclass
class Times:
    """Milliseconds by call and arm; and the signal that ended it early, 0 for none."""

    ms: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    signal: int = 0


def local_report(options: LocalBench, say: Say) -> tuple[Report, int]:
    """Measures on a real group of its own; the report, and the signal that ended it early.

    Raises:
        BenchError, WorkerError: if the group does not start, or a call fails.
    """
    report = Report("local")
    times = Times()
    layout = Layout(
        groups=1,
        store_bytes=STORE_BYTES,
        lease_ttl_ms=LEASE_MS,
        port_base=free_port_base(1, options.port_base),
    )
    with Workspace("local", say) as space:
        asyncio.run(_session(options, layout, space.path, times, say))
    report.interrupted = times.signal != 0
    report.figures = figures(times.ms) | {"setup": vars(options) | {"port_base": layout.port_base}}
    report.targets = targets(times.ms)
    report.notes = [
        "Each way is a process of its own and takes its turn in each round, in drawn order. Plain is "
        "Mooncake's own client with its own settings.",
        f"spread: the largest ratio of plain Mooncake's p99 to itself, over {SEGMENTS} parts of the run.",
    ]
    return report, times.signal


def figures(ms: Mapping[str, Mapping[str, list[float]]]) -> dict[str, Any]:
    """A row of figures a call."""
    found: dict[str, Any] = {}
    for call, arms in ms.items():
        ours, plain, again = (arms[name] for name in (FEDERATED, PLAIN, AGAIN))
        found[call] = {
            "rounds": len(ours),
            "plain_ms_p50": quantile(plain, 0.5),
            "federated_ms_p50": quantile(ours, 0.5),
            "ratio_p50": ratio(ours, plain, 0.5),
            "plain_again_ratio_p50": ratio(again, plain, 0.5),
            "plain_ms_p99": quantile(plain, 0.99),
            "federated_ms_p99": quantile(ours, 0.99),
            "ratio_p99": ratio(ours, plain, 0.99),
            "spread_p99": spread(plain, again, 0.99),
        }
    return found


def targets(ms: Mapping[str, Mapping[str, list[float]]]) -> list[Target]:
    """What each call may cost."""
    found = []
    for call, wanted in TARGETS.items():
        arms = ms.get(call)
        median = ratio(arms[FEDERATED], arms[PLAIN], 0.5) if arms else None
        found.append(Target(f"{call}: p50 over plain", median, "<=", wanted))
    arms = ms.get("get")
    apart = spread(arms[PLAIN], arms[AGAIN], 0.99) if arms else None
    worst = ratio(arms[FEDERATED], arms[PLAIN], 0.99) if arms and apart else None
    found.append(
        Target("get: p99 over plain, within its spread", worst, "<=", round(apart or 1.0, 3))
    )
    return found


async def _session(
    options: LocalBench, layout: Layout, folder: Path, times: Times, say: Say
) -> None:
    stop = asyncio.Event()

    def stopped(number: int) -> None:
        times.signal = number
        stop.set()

    configs = write_groups(folder / "local", "one-pool", layout)
    groups = GroupSet(configs, folder, say, stop)
    with ended_by_signals(stopped), one_share():
        try:
            await groups.up()
            if not stop.is_set():
                await asyncio.to_thread(_measure, options, configs[0], times, stop, say)
        finally:
            await groups.down()


def _measure(
    options: LocalBench, config: Path, times: Times, stop: asyncio.Event, say: Say
) -> None:
    with contextlib.ExitStack() as open_arms:
        arms: dict[str, Worker] = {}
        for name in (FEDERATED, PLAIN, AGAIN):
            arm = arms[name] = Worker(name, Calls, _spec(name, options, config))
            open_arms.callback(arm.close)
        for arm in arms.values():
            arm.ready()
        arms[FEDERATED].ask("fill")
        for call in CALLS:
            say(f"{call}: {options.rounds} rounds, each way")
            ways = {name: _way(arm, call) for name, arm in arms.items()}
            tidy = (
                (lambda number: arms[PLAIN].ask("remove", number=number)) if call == "put" else None
            )
            run_paired(
                ways, min(WARM_ROUNDS, options.rounds), Random(SEED), after=tidy, first=-WARM_ROUNDS
            )
            times.ms[call] = run_paired(
                ways, options.rounds, Random(SEED), after=tidy, stopped=stop.is_set
            )


def _way(arm: Worker, call: str) -> Callable[[int], float]:
    return lambda number: arm.ask(call, number=number)


def _spec(name: str, options: LocalBench, path: Path) -> Spec:
    config = load_group(path)
    settings = {
        "config": str(path),
        "namespace": NAMESPACE,
        "local_buffer_bytes": LOCAL_BUFFER_BYTES,
        "deadline_ms": None,
    }
    return Spec(
        name=name,
        settings=settings if name == FEDERATED else None,
        master=config.master_address,
        host=config.host,
        protocol=config.protocol,
        local_buffer_bytes=LOCAL_BUFFER_BYTES,
        prefix=stored_key(config.namespaces[NAMESPACE].fingerprint(), ""),
        blocks=options.blocks,
        block_bytes=options.block_bytes,
        exists_keys=options.exists_keys,
    )
