"""Records of chaos runs, made by hand: of one in which all went well, to be spoilt."""

from __future__ import annotations

from typing import Any

from chaos.invariants.bounds import BOUNDS
from chaos.invariants.comparison import compare
from chaos.invariants.judge import judge
from chaos.invariants.verdict import Verdict
from chaos.layout import BASE_LIMITS
from chaos.load.spec import Audit, Sample, Totals
from chaos.record import PROBE, Pass, Record, Usage
from chaos.scenario import Scenario
from federation.config import Limits
from local_group.config import MIB

BEGIN, FAULT, HEALED, END = 100.0, 101.0, 102.0, 105.0
GROUPS = ("east", "west")


def scenario(**invariants: Any) -> Scenario:
    return Scenario.model_validate(
        {
            "name": "made",
            "summary": "by hand",
            "topology": {"groups": list(GROUPS), "hostile": {"evil": ["demo"]}},
            "steps": [
                {"do": "freeze", "at": 1, "lasts": 1, "group": "east", "part": "gateway"},
            ],
            "invariants": invariants,
        }
    )


def call(at: float, kind: str = "local", ms: float = 1.0, **blocks: Any) -> Sample:
    values = {"late_ms": 0.0, "local": 4, "peer": 0, "misses": 0, **blocks}
    return Sample(at=at, kind=kind, ms=ms, **values)


def reads() -> list[Sample]:
    return [call(BEGIN + i / 200, ms=1 + (i % 10) / 10) for i in range(1000)]


def sound(**invariants: Any) -> Record:
    """A record of a run in which all went well, and the fault was felt."""

    def one(kind: str) -> Pass:
        made = Pass(kind, BEGIN, FAULT, HEALED, END)
        for group in GROUPS:
            samples = reads()
            for i in range(50):
                at = BEGIN + i / 10
                away = FAULT <= at < HEALED and kind == "fault"
                found = {"local": 0, "peer": 0, "misses": 4} if away else {"local": 0, "peer": 4}
                owner = next(g for g in GROUPS if g != group)
                samples.append(call(at, "peer", owner=owner, **found))
            made.samples[group] = samples
            made.totals[group] = Totals(verified_bytes=100 * MIB, puts=100, stored=100)
            made.audits[group] = Audit(checked=100, verified_bytes=MIB)
            made.ended[group] = True
            made.usage[group] = Usage(
                rss=110 * MIB,
                descriptors=50,
                threads=20,
                seen=10,
                held={row.name: row.limit(Limits(**BASE_LIMITS)) for row in BOUNDS},
            )
        made.samples[PROBE] = reads()
        return made

    record = Record(scenario(**invariants), 1, passes=[one("fault"), one("burner")])
    record.base_rss = dict.fromkeys(GROUPS, 100 * MIB)
    record.counters = {"west": {'moonmesh_x_total{peer="evil"}': 3}}
    record.statuses = {"west": {"refused": [{"who": "evil", "reason": "a lie", "count": 2}]}}
    record.books = {"evil": {"window_bytes_max": 10 * MIB}}
    record.origins = {"west": {"demo/east": 5, "guest/evil": 3}}
    record.purged = (3, 0)
    record.passes[0].totals["west"].poisoned_bytes = 1000
    return record


def judged(record: Record) -> list[Verdict]:
    return judge(record, BASE_LIMITS, compare(record))


def verdict(record: Record, name: str) -> Verdict:
    (found,) = [v for v in judged(record) if v.name.split()[0] == name]
    return found


def totals(record: Record) -> Totals:
    return record.passes[0].totals["west"]


def audit(record: Record) -> Audit:
    return record.passes[0].audits["west"]


def add(record: Record, *samples: Sample) -> None:
    record.passes[0].samples["west"] += samples
