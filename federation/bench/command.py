"""`moonmesh bench replay` without its command line: options in, report out."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import asdict, dataclass
from pathlib import Path

from federation.bench.frontier import frontier_figures, frontier_targets
from federation.bench.gateway_figures import cost_figures, gateway_figures
from federation.bench.groups import MODES, WATERMARK, Layout, Mode, is_federated, store_bytes
from federation.bench.lru import lru_hit_rate
from federation.bench.replay import Options, Plan, Progress, lease_ttl_ms
from federation.bench.report import Report
from federation.bench.resources import check_memory, free_port_base
from federation.bench.session import Outcome, session
from federation.bench.tally import (
    FAILED_SHARE_MAX,
    Tally,
    main_tally,
    replay_figures,
    replay_targets,
)
from federation.bench.trace import packaged_trace, read_trace
from federation.bench.workload import Placement, Workload, make_workload
from federation.bench.workspace import Workspace, reap_abandoned
from federation.config import Admit
from federation.errors import UsageError


@dataclass(frozen=True)
class ReplayCommand:
    """Options of `moonmesh bench replay`; see its help."""

    trace: Path | None = None
    requests: int = 2000
    groups: int = 2
    block_bytes: int = 8192
    capacity_fraction: float = 2.0
    rate: float | None = None
    seed: int = 0
    mode: str = "all"
    placement: Placement = "random"
    concurrency: int = 8
    deadline_ms: int = 1000
    port_base: int = 7600
    admit: Admit = "second-hit"
    frontier: bool = False
    factory: str = Options.factory

    @property
    def modes(self) -> tuple[Mode, ...]:
        chosen = tuple(m for m in MODES if self.mode in ("all", m))
        if not self.frontier:
            return chosen
        others: tuple[Mode, ...] = ("always", "never")
        return (*chosen, *(mode for mode in others if mode != self.admit))

    @property
    def options(self) -> Options:
        return Options(self.concurrency, self.deadline_ms, self.factory)

    def workload(self) -> Workload:
        """The requests, from the trace.

        Raises:
            TraceError: with the line's number, if the trace is malformed.
        """
        return make_workload(
            itertools.islice(read_trace(self.trace or packaged_trace()), self.requests),
            groups=self.groups,
            block_bytes=self.block_bytes,
            rate=self.rate,
            seed=self.seed,
            placement=self.placement,
        )


def replay_report(command: ReplayCommand, progress: Progress) -> tuple[Report, Outcome]:
    """Run a replay on groups of its own.

    Raises:
        UsageError, TraceError, BenchError: before anything was measured; later errors are in the
            outcome.
    """
    if command.groups < 2 and any(map(is_federated, command.modes)):
        raise UsageError("a federation has at least two groups", where="--groups")
    workload = command.workload()
    unique_bytes = workload.unique_blocks * workload.block_bytes
    each = store_bytes(command.capacity_fraction * unique_bytes, command.groups)
    pool_bytes = each * command.groups
    reap_abandoned(progress.say)  # it may hold memory and ports
    check_memory(workload, pool_bytes, command.options)
    layout = Layout(
        groups=command.groups,
        store_bytes=each,
        lease_ttl_ms=lease_ttl_ms(pool_bytes, workload, command.rate),
        port_base=free_port_base(command.groups, command.port_base),
        admit=command.admit,
    )
    report = Report("replay")
    with Workspace("bench", progress.say) as space:
        plan = Plan(space.path, layout)
        outcome = asyncio.run(session(command.modes, plan, workload, command.options, progress))
        space.keep = outcome.error is not None
        fill_report(report, command, workload, layout, outcome)
    return report, outcome


def fill_report(
    report: Report,
    command: ReplayCommand,
    workload: Workload,
    layout: Layout,
    outcome: Outcome,
) -> None:
    """Figures, targets and notes of a replay."""
    capacity = int(layout.pool_bytes * WATERMARK) // workload.block_bytes
    report.interrupted = bool(outcome.signal) or outcome.error is not None
    played = main_tally(outcome.tallies).played
    lru = lru_hit_rate((r.keys for r in workload.requests if r.number in played), capacity)
    report.figures = replay_figures(
        outcome.tallies,
        lru=lru if played else None,
        extra=gateway_figures(outcome) | cost_figures(outcome, workload.block_bytes),
    )
    columns = frontier_figures(outcome.tallies, command.admit)
    if columns:
        report.figures["admission"] = columns
    setup = asdict(command)
    setup["trace"] = str(command.trace or "packaged cut of the Mooncake conversation trace")
    del setup["factory"], setup["port_base"]
    report.figures["setup"] = setup | {
        "requests_in_trace_part": len(workload.requests),
        "unique_blocks": workload.unique_blocks,
        "pool_bytes": layout.pool_bytes,
        "store_bytes": layout.store_bytes,
        "usable_blocks": capacity,
        "lease_ttl_ms": layout.lease_ttl_ms,
    }
    report.targets = replay_targets(report.figures)
    report.targets += frontier_targets(columns, command.admit)
    report.notes = notes(command, workload, layout, capacity)
    report.notes += [failed_note(t) for t in outcome.tallies.values() if t.codes]


def notes(command: ReplayCommand, workload: Workload, layout: Layout, capacity: int) -> list[str]:
    """How the capacity came about: what cannot be had exactly is said."""
    real = capacity / workload.unique_blocks
    said = [
        f"Capacity: Mooncake starts to evict at {WATERMARK:.0%} of a pool's memory, so stores are "
        f"1/{WATERMARK:.2g} of the asked-for bytes ({layout.groups} stores of "
        f"{layout.store_bytes >> 20} MiB, the same in every mode; they hold {real:.2f} times the "
        "unique blocks).",
        f"The lease of {layout.lease_ttl_ms} ms is scaled to the pool, the same in every mode.",
    ]
    if real > command.capacity_fraction * 1.05:
        said.append(
            f"The asked-for fraction {command.capacity_fraction:g} became {real:.2f}: stores have "
            "at least 16 MiB. Play more requests, or larger blocks."
        )
    return said


def failed_note(tally: Tally) -> str:
    """That a mode's hit rate suffered from results that were neither hit nor miss."""
    said = (
        f"{tally.mode}: {sum(tally.codes.values())} results were no hit, no miss and not stored "
        "(other_codes): what was not read or not written in time lowers its hit rate."
    )
    if tally.mode == "one-pool" and tally.failed_share > FAILED_SHARE_MAX:
        said += " It is no yardstick: ratio_to_one_pool is not judged."
    return said
