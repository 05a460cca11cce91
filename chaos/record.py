"""What was seen in a run, for the invariants to judge."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from chaos.load.spec import Audit, Sample, Totals
from chaos.scenario import Scenario, Workload
from chaos.steps import Step

MOMENT_S = 0.5
"""How long a fault without a duration, such as a kill, counts as going on."""
SETTLED_S = 0.3
"""After the first fault, until local reads are compared: burners have to start."""
SHORTEST_S = 1.2
"""How long after a fault without a duration, such as a kill, local reads are compared."""
PROBE = "probe"
"""Whose samples those of the engine are that only reads, among those of the groups."""
STRETCH_S = 0.1
"""Latencies are compared by stretches of this length: calls come in bursts."""


@dataclass
class Usage:
    """The most that one gateway was seen to use."""

    rss: int = 0
    """Resident bytes, its child processes included."""
    descriptors: int = 0
    threads: int = 0
    seen: int = 0
    """Times it was looked at."""
    guards: dict[str, float] = field(default_factory=dict)
    """The numbers that its guards show in `status`: `peer.direction.name` to the most of each."""
    peers: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    """Peer to how it was seen, and when (CLOCK_MONOTONIC): its breaker's state, or why it is not asked."""
    held: dict[str, float] = field(default_factory=dict)
    """The most of each row of `chaos.invariants.bounds.BOUNDS` that its `status` showed."""


@dataclass
class Pass:
    """One time the time line was run through: with the fault, or with a burner in its place."""

    kind: str
    begin: float = 0.0
    """CLOCK_MONOTONIC."""
    fault_at: float = 0.0
    fault_end: float = 0.0
    end: float = 0.0
    steps: list[tuple[Step, float]] = field(default_factory=list)
    """What was to be broken, and when (CLOCK_MONOTONIC)."""
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    totals: dict[str, Totals] = field(default_factory=dict)
    audits: dict[str, Audit] = field(default_factory=dict)
    ended: dict[str, bool] = field(default_factory=dict)
    """Whether every thread of an engine came back from its last call."""
    usage: dict[str, Usage] = field(default_factory=dict)
    cores: float = 0.0
    """CPU of everything but the engines while the fault lasted, in cores; burners included."""
    cores_before: float = 0.0
    """The same before it."""
    extra: list[tuple[float, int]] = field(default_factory=list)
    """What each process used more than before the fault: cores, and its nice value."""
    burnt: list[tuple[float, int]] = field(default_factory=list)
    """What each burner was to use: cores, and its nice value."""

    @property
    def compared(self) -> tuple[float, float]:
        """From when to when (CLOCK_MONOTONIC) local reads are those under the fault."""
        begin = self.fault_at + SETTLED_S
        return begin, max(self.fault_end, begin + SHORTEST_S)

    def during(self, group: str, *kinds: str) -> Iterator[Sample]:
        """The calls that began while the fault lasted."""
        end = max(self.fault_end, self.fault_at + MOMENT_S)
        return (s for s in self.of(group, *kinds) if self.fault_at <= s.at < end)

    def of(self, group: str, *kinds: str) -> Iterator[Sample]:
        """The calls of these kinds (all without any)."""
        return (s for s in self.samples.get(group, ()) if not kinds or s.kind in kinds)

    def stretches(self, begin: float, end: float, work: Workload) -> list[list[float]]:
        """Latencies of the probe's reads that began in [begin, end), in ms.

        A read that found nothing took its whole deadline. For each further read that was due while one
        took so long, and was left out, stands what it would have waited: else a stall of half a second
        would count as one slow read (coordinated omission, as HdrHistogram corrects it).
        """
        period = 1000 / work.probe_rate
        found: dict[int, list[float]] = {}
        for s in self.of(PROBE, "local"):
            if begin <= s.at < end:
                ms = max(s.ms, work.deadline_ms) if s.misses else s.ms
                waited = [ms - n * period for n in range(int(ms // period) + 1)]
                found.setdefault(int((s.at - begin) / STRETCH_S), []).extend(waited)
        return list(found.values())

    def asking(self, groups: Iterable[str], owners: Collection[str]) -> list[str]:
        """Those of the groups that asked for chains of these owners."""
        return [g for g in groups if any(s.owner in owners for s in self.of(g, "peer"))]

    def returned(self, group: str, chains: int, owners: Collection[str]) -> float | None:
        """Seconds from the end of the fault to the first of so many chains of these owners in a row
        that were read whole from a peer; None if there are none. Chains of others, between them, count
        neither way: a hostile peer's are never read whole.
        """
        run: list[Sample] = []
        after = (s for s in self.of(group, "peer") if s.at >= self.fault_end and s.owner in owners)
        for sample in sorted(after):
            run = [*run, sample] if sample.misses == 0 and sample.peer else []
            if len(run) == chains:
                return run[0].at + run[0].ms / 1000 - self.fault_end
        return None


@dataclass
class Record:
    """All of one run."""

    scenario: Scenario
    seed: int
    passes: list[Pass] = field(default_factory=list)
    base_rss: dict[str, int] = field(default_factory=dict)
    counters: dict[str, dict[str, int]] = field(default_factory=dict)
    """Growth of the gateways' counters over the run."""
    statuses: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What the gateways said at its end."""
    books: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What hostile peers said of themselves, and what faults counted, under their step's word."""
    restarts: int = 0
    """Parts of the groups that were started anew."""
    problems: list[str] = field(default_factory=list)
    """What was not well afterwards, and did not become so in time."""
    healthy_s: float = 0.0
    leftovers: list[str] = field(default_factory=list)
    quiet: list[list[float]] = field(default_factory=list)
    """Stretches of the probe's reads while nothing was broken, of all runs on the topology."""
    purged: tuple[int, int] | str | None = None
    """Blocks that a purge has removed, and left; or why it was not done."""
    origins: dict[str, dict[str, int]] = field(default_factory=dict)
    """Per group: `namespace/origin` to blocks that its journal has, of this run."""

    @property
    def fault(self) -> Pass:
        """The first pass with the fault."""
        return next(p for p in self.passes if p.kind == "fault")

    def totals(self) -> Iterator[tuple[str, Totals]]:
        """Of every engine and pass."""
        for one in self.passes:
            yield from one.totals.items()

    def audits(self) -> Iterator[tuple[str, Audit]]:
        """Of every engine and pass."""
        for one in self.passes:
            yield from one.audits.items()

    def write(self, folder: Path, name: str) -> None:
        """Everything, to look into what happened: every call, a line each with its second on the time
        line, what the gateways said at the end, and the most that each used."""
        with (folder / f"{name}.calls.jsonl").open("w") as file:
            for number, one in enumerate(self.passes):
                for group in one.samples:
                    for sample in one.of(group):
                        row = {"pass": number, "group": group, **sample._asdict()}
                        row["at"] = round(sample.at - one.begin, 4)
                        file.write(json.dumps(row) + "\n")
        (folder / f"{name}.status.json").write_text(json.dumps(self.statuses, indent=1))
        used = [{g: asdict(u) for g, u in one.usage.items()} for one in self.passes]
        (folder / f"{name}.usage.json").write_text(json.dumps(used, indent=1))

    def verified_bytes(self) -> int:
        """Bytes that were derived again and compared."""
        return sum(t.verified_bytes for _, t in self.totals()) + sum(
            a.verified_bytes for _, a in self.audits()
        )
