"""One scenario on a running topology, from its load to its record."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any

import psutil

from chaos.cleanup import marked
from chaos.errors import ChaosError
from chaos.load.keys import ENVELOPES
from chaos.load.spec import Audit, LoadSpec, Totals
from chaos.monitor import CpuMeter, Monitor
from chaos.record import MOMENT_S, PROBE, SETTLED_S, Pass, Record
from chaos.scenario import Scenario, Workload
from chaos.steps import Burn, Hostile, Step
from chaos.timeline import JITTER_S, TimeLine, jitter
from chaos.topology import Stage
from federation.cli.health import ask_purge
from federation.identity import Envelope
from local_group.journal import FILE_NAME, Entry, decode

QUIET_CALLS = 300
"""Of the probe: with fewer while nothing was broken, there is nothing to compare a fault with."""
QUIET_S = 3.0
SPARE_CHAINS = 6
"""Fresh chains beyond what the rates need."""
SETTLE_S = 15.0
START_S = 0.1
"""From the command to start to the first call: engines start together."""
PREPARE_S = 60.0
NOTABLE_CORES = 0.02
"""A process that used less than this more under the fault gets no burner."""
AFTERWARDS_S = 0.1
"""How long the load goes on once peer hits are back."""
PURGE_GRACE_S = 5.0

Say = Callable[[str], None]


async def execute(
    stage: Stage, scenario: Scenario, seed: int, tag: str, run: str, say: Say
) -> Record:
    """Runs a scenario; what was seen.

    Args:
        tag: in the keys of its blocks; no other run on this topology has it.
        run: the id that marks the processes.

    Raises:
        ChaosError: it could not be run.
    """
    record = Record(scenario, seed, base_rss=dict(stage.base_rss))
    if wants_quiet(scenario, stage.quiet):
        say("the load, with nothing broken")
        calm = Scenario(
            name="quiet",
            summary="what local reads are compared with",
            topology=stage.topology,
            workload=Workload(seconds=QUIET_S),
        )
        await _pass(stage, calm, Pass("fault"), [], f"{tag}q", seed, record, say)
    before = _counters(await stage.statuses())
    restarts = stage.restarts()
    recorded = {group: _recorded(stage, group) for group in stage.topology.groups}
    for number, kind in enumerate(_order(scenario)):
        one = Pass(kind)
        steps = jitter(scenario.steps, seed + number)
        if kind == "burner":
            say("the same with burners in place of the fault")
            one.burnt = burners(record.passes)
            steps = _in_place(steps, one.burnt)
        await _pass(stage, scenario, one, steps, f"{tag}p{number}", seed, record, say)
        record.passes.append(one)
    record.quiet = stage.quiet
    record.statuses = await stage.statuses()
    record.restarts = stage.restarts() - restarts
    record.counters = _growth(before, _counters(record.statuses))
    if contained := scenario.invariants.contained:
        record.origins = {g: _origins(_recorded(stage, g) - old) for g, old in recorded.items()}
        say(f"purging what {contained.group} has of {contained.origin}")
        record.purged = await asyncio.to_thread(
            _purge, stage, contained.group, contained.origin, contained.purge_s
        )
    record.leftovers = _leftovers(stage, run)
    return record


def wants_quiet(scenario: Scenario, quiet: Sequence[Sequence[float]]) -> bool:
    """Whether reads have to be timed with nothing broken: a fault is compared with them, and there are few.

    Args:
        quiet: their latencies so far, in stretches.
    """
    local = scenario.invariants.local_p99
    compared = bool(scenario.steps) and local.off is None and not local.burner_rounds
    return compared and sum(map(len, quiet)) < QUIET_CALLS


async def _pass(
    stage: Stage,
    scenario: Scenario,
    one: Pass,
    steps: list[Step],
    tag: str,
    seed: int,
    record: Record,
    say: Say,
) -> None:
    work = scenario.workload
    loads = _loads(stage, scenario, tag, seed)
    engines = stage.everyone()
    hostile = [step for step in steps if isinstance(step, Hostile)]
    # Hostile peers come in, asleep, before the time line: what it takes to start is not part of the fault.
    await asyncio.gather(
        _start_hostile(stage, hostile, next(iter(loads.values()))),
        *(
            engine.do("prepare", PREPARE_S, load=loads[name].model_dump())
            for name, engine in engines.items()
        ),
    )
    await _settle(stage, loads)
    await asyncio.gather(*(stage.wait_for_contact(step) for step in hostile))
    timeline = TimeLine(stage, steps, record.books, say, next(iter(loads.values())))
    await timeline.prepare()
    one.samples = {name: [] for name in engines}
    for name, engine in engines.items():
        engine.on_samples = one.samples[name].extend
    one.begin = time.monotonic() + START_S
    one.end = one.begin + work.seconds
    one.steps = [(step, one.begin + step.at) for step in steps]
    if steps:
        one.fault_at = one.begin + min(s.at for s in steps)
        one.fault_end = one.begin + max(s.at + (s.lasts or 0) for s in steps)
    else:
        one.fault_at, one.fault_end = one.begin, one.end
    metering = asyncio.create_task(_meter(stage, one))
    try:
        often = bool(scenario.invariants.peaks)
        async with Monitor(stage, one.usage, often=often):
            await asyncio.gather(*(e.do("start", begin=one.begin) for e in engines.values()))
            try:
                await timeline.run(one.begin)
                await _until_end(stage, scenario, one)
            finally:
                stopped = await asyncio.gather(*(e.do("stop") for e in engines.values()))
    finally:
        metering.cancel()
        await asyncio.gather(metering, return_exceptions=True)
        stage.thaw()
        await timeline.close()
    for name, answer in zip(engines, stopped, strict=True):
        one.totals[name] = Totals.model_validate(answer["totals"])
        one.ended[name] = answer["ended"]
    if one.kind == "fault" and work.usual:
        stage.quiet += one.stretches(one.begin, one.fault_at if steps else one.end, work)
    began = time.monotonic()
    problems = await stage.problems_until_none(scenario.invariants.healthy.within_s)
    record.healthy_s = max(record.healthy_s, time.monotonic() - began)
    record.problems += problems
    # Where blocks may be lost, there is nothing to ask for once more.
    again = scenario.invariants.acknowledged.off is None
    audits = await asyncio.gather(
        *(e.do("audit", PREPARE_S, again=again) for e in engines.values())
    )
    for name, answer in zip(engines, audits, strict=True):
        one.audits[name] = Audit.model_validate(answer["audit"])


async def _until_end(stage: Stage, scenario: Scenario, one: Pass) -> None:
    """Waits for the end of the load."""
    while (left := one.end - time.monotonic()) > 0:
        if seen_enough(scenario, one, stage.topology.groups, time.monotonic()):
            await asyncio.sleep(min(left, AFTERWARDS_S))
            return
        await asyncio.sleep(min(left, 0.1))


def seen_enough(scenario: Scenario, one: Pass, groups: Sequence[str], now: float) -> bool:
    """Whether the load can end early: where all that is waited for is peer hits, once they are back, and
    there are local reads to compare. A trace goes on to its end."""
    returns, owners = scenario.invariants.returns, scenario.returning
    if returns is None or returns.off is not None or scenario.workload.trace_rate:
        return False
    if scenario.invariants.local_p99.off is None and now < one.compared[1]:
        return False
    asking = one.asking(groups, owners)
    back = (one.returned(group, returns.chains, owners) for group in asking)
    return bool(asking) and all(seconds is not None for seconds in back)


def _order(scenario: Scenario) -> list[str]:
    """Fault and burner in turn, mirrored each round: what drifts with time falls on both alike.

    The fault is first, since it tells the burners how much to burn.
    """
    rounds = scenario.invariants.local_p99.burner_rounds if scenario.steps else 0
    pairs = (("fault", "burner") if n % 2 == 0 else ("burner", "fault") for n in range(rounds))
    return [kind for pair in pairs for kind in pair] or ["fault"]


def burners(passes: Sequence[Pass]) -> list[tuple[float, int]]:
    """What burns in place of a fault: cores, and the nice value, for each process that used more under it.

    Equal is what all processes use together, since what the fault's do not use others may: what burners
    lacked of it in the last pass with them (they are starved, too) is added in the next.

    Args:
        passes: what was run so far; the first with the fault.
    """
    faults = [one for one in passes if one.kind == "fault"]
    shares = faults[0].extra
    together = sum(cores for cores, _ in shares)
    if not together:
        return []
    due = faults[0].cores - faults[0].cores_before
    burnt = [one for one in passes if one.kind == "burner"]
    if burnt:
        lacked = fmean(one.cores for one in faults) - fmean(one.cores for one in burnt)
        due = sum(cores for cores, _ in burnt[-1].burnt) + lacked
    return [(round(max(0.0, cores * due / together), 3), nice) for cores, nice in shares]


def _in_place(steps: Sequence[Step], burnt: Sequence[tuple[float, int]]) -> list[Step]:
    first = min((s.at for s in steps), default=0.0)
    last = max((s.at + (s.lasts or 0) for s in steps), default=0.0)
    return [
        Burn(do="burn", at=first, lasts=max(last - first, MOMENT_S), cores=cores, nice=nice)
        for cores, nice in burnt
        if cores
    ]


def _loads(stage: Stage, scenario: Scenario, tag: str, seed: int) -> dict[str, LoadSpec]:
    """What each engine does; the probe reads what the last group's engine writes."""
    loads = {name: _load(stage, scenario, name, tag, seed) for name in stage.engines}
    fresh = max(load.fresh_chains for load in loads.values())
    loads = {n: load.model_copy(update={"fresh_chains": fresh}) for n, load in loads.items()}
    last = loads[stage.topology.groups[-1]]
    off = dict.fromkeys(("peer_rate", "write_rate", "exists_rate", "guest_rate", "trace_rate"), 0.0)
    probe = {**off, "probe": True, "local_rate": scenario.workload.probe_rate, "blocks": 1}
    return loads | {PROBE: last.model_copy(update=probe)}


def _load(stage: Stage, scenario: Scenario, name: str, tag: str, seed: int) -> LoadSpec:
    work = scenario.workload
    groups = stage.topology.groups
    guests = tuple(s.name for s in scenario.steps if isinstance(s, Hostile) and s.target == name)
    # A hostile peer's chains are asked for by its target alone: another group that missed them would
    # write them, and then hold them.
    owners = tuple(o for o in (work.peer_owners or groups) if o in {*groups, *guests} - {name})
    if work.peer_readers is not None and name not in work.peer_readers:
        owners = ()
    later, window = work.afterwards, scenario.window
    after_s = window[1] + JITTER_S if later and window else None
    usual_s = work.seconds if after_s is None else min(after_s, work.seconds)
    reads = work.peer_rate * usual_s
    if later is not None:
        reads += later.peer_rate * (work.seconds - usual_s)
    fresh = max(reads / max(1, len(owners)), work.guest_rate * work.seconds)
    return LoadSpec(
        tag=tag,
        seed=seed,
        blocks=work.blocks,
        local_chains=work.local_chains,
        fresh_chains=int(fresh) + SPARE_CHAINS,
        local_rate=work.local_rate,
        peer_rate=work.peer_rate,
        peer_owners=owners,
        write_rate=work.write_rate,
        exists_rate=work.exists_rate,
        guest_rate=work.guest_rate,
        guest_owners=guests,
        deadline_ms=work.deadline_ms,
        peer_deadline_ms=work.peer_deadline_ms,
        after_s=after_s,
        after_peer_rate=later.peer_rate if later else work.peer_rate,
        after_peer_deadline_ms=later.peer_deadline_ms if later else work.peer_deadline_ms,
        peer_threads=work.peer_threads,
        writes_back=work.writes_back,
        trace_rate=work.trace_rate / len(groups),
        trace=work.trace,
        trace_groups=groups,
    )


async def _settle(stage: Stage, loads: dict[str, LoadSpec]) -> None:
    """Waits until every engine can read what the other groups have written."""
    names = list(stage.engines)
    real = {n: [o for o in loads[n].peer_owners if o in stage.topology.groups] for n in names}
    answers = await asyncio.gather(
        *(
            stage.engines[name].do("settle", SETTLE_S + 10, owners=real[name], seconds=SETTLE_S)
            for name in names
        )
    )
    for name, answer in zip(names, answers, strict=True):
        if answer["missing"]:
            raise ChaosError(
                f"before anything was broken, {name} could not read what "
                f"{', '.join(answer['missing'])} had written"
            )


async def _start_hostile(stage: Stage, steps: Sequence[Hostile], load: LoadSpec) -> None:
    claims = {
        "tag": load.tag,
        "chains": load.local_chains + load.fresh_chains + 1,
        "blocks": load.blocks,
        "block_bytes": stage.topology.block_bytes,
    }
    await asyncio.gather(*(stage.start_hostile(step, claims) for step in steps))


async def _meter(stage: Stage, one: Pass) -> None:
    """Fills in what CPU is used beside the engines while the fault lasts, and how much more than before."""

    async def until(at: float) -> None:
        await asyncio.sleep(max(0.0, at - time.monotonic()))

    await until(one.begin)
    meter = CpuMeter(stage)
    await until(one.fault_at)
    quiet = meter.cores()
    await until(one.fault_at + SETTLED_S)
    meter.cores()
    await until(one.fault_end - 0.1)
    fault = meter.cores()
    one.cores_before, one.cores = sum(quiet.values()), sum(fault.values())
    more = ((cores - quiet.get(process, 0.0), process.nice) for process, cores in fault.items())
    one.extra = [(round(cores, 3), nice) for cores, nice in more if cores >= NOTABLE_CORES]


def _counters(statuses: dict[str, dict[str, Any]]) -> dict[str, tuple[int, dict[str, int]]]:
    return {n: (int(s.get("epoch", 0)), dict(s.get("counters", {}))) for n, s in statuses.items()}


def _growth(
    before: dict[str, tuple[int, dict[str, int]]], after: dict[str, tuple[int, dict[str, int]]]
) -> dict[str, dict[str, int]]:
    """How much counters grew; a gateway that was started anew has counted from 0."""
    grown = {}
    for name, (epoch, counters) in after.items():
        old_epoch, old = before.get(name, (0, {}))
        base = Counter(old) if epoch == old_epoch else Counter()
        grown[name] = {counter: n - base[counter] for counter, n in counters.items()}
    return grown


def _recorded(stage: Stage, group: str) -> set[Entry]:
    """What is in a group's journal."""
    with (
        contextlib.suppress(OSError),
        (stage.config(group).journal_dir / FILE_NAME).open("rb") as f,
    ):
        return set(decode(f))
    return set()


def _origins(entries: Iterable[Entry]) -> dict[str, int]:
    """Blocks per `namespace/origin`."""
    names = {bytes(Envelope.of(e).fingerprint()): name for name, e in ENVELOPES.items()}
    return dict(
        Counter(f"{names.get(e.fingerprint, e.fingerprint.hex())}/{e.origin}" for e in entries)
    )


def _purge(stage: Stage, group: str, origin: str, seconds: int) -> tuple[int, int] | str:
    """How many blocks were removed and are left; or why it was not done."""
    socket = stage.config(group).gateway_socket
    reply = ask_purge(socket, origin, None, False, seconds, timeout=seconds + PURGE_GRACE_S)
    return reply if isinstance(reply, str) else (reply.removed, reply.left)


def _leftovers(stage: Stage, run: str) -> list[str]:
    """Processes of the run that are not the topology's."""
    known = {process.pid for process in stage.processes()}
    known |= {engine.pid for engine in stage.everyone().values()}
    for name in stage.topology.groups:
        with contextlib.suppress(ChaosError):
            known.add(stage.state(name).supervisor.pid)
    left = []
    for process in marked(run, known):
        with contextlib.suppress(psutil.Error):
            found = psutil.Process(process.pid)
            if found.ppid() not in known:
                left.append(f"{process.pid} {' '.join(found.cmdline())[:120]}")
    return left
