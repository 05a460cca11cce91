"""What a whole suite is measured by."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from chaos.runner import Result
from federation.bench.report import Target

FROZEN = "peer-frozen"
EVERYONE = "all-hostile"
GREEDY = ("flood-hellos", "flood-requests", "giant-catalog")
"""The scenarios of the suite `smoke` that targets are about."""
SUITE_MIN = 15
"""Scenarios. Of fewer, or of an interrupted run, nothing is said that a whole suite is measured by."""
ALL_MIN = 35
"""Scenarios that `all` has at least, with targets of its own."""
ALL_ROUNDS = 3
BESIDE, MINUTE = "unaffected-pair", "partition-60"
"""The scenarios of the suite `network` that targets are about."""
READS_MIN = 1000
"""Of a frozen peer: fewer cannot show that one in a thousand is late."""


def targets(results: Sequence[Result], interrupted: bool = False) -> list[Target]:
    """What a whole suite is measured by. Of scenarios that were run more than once, the worst run counts.

    What only a whole suite can show has no value where a part of one was run.
    """
    results = [r for r in results if not r.skipped]
    names = {r.name for r in results}
    whole = whole_suite(names, interrupted)
    rounds = max((r.round for r in results), default=-1) + 1
    sound = {r.name for r in results} - {r.name for r in results if not r.held}
    ran = [r for r in results if r.figures]
    reads = sum(r.figures["peer_reads_during_fault"] for r in ran if r.name == FROZEN)
    in_time = sum(r.figures["of_them_in_time"] for r in ran if r.name == FROZEN)
    memory = [r.figures["gateway_memory_of_cap"] for r in ran if r.name in GREEDY]
    p99 = [r.figures["local_p99"] for r in ran if r.name == EVERYONE]
    slower = [p["fault_ms"] / p["allowed_ms"] for p in p99 if p["fault_ms"] and p["allowed_ms"]]
    verified = sum(r.figures["verified_bytes"] for r in ran)
    wrong = sum(r.figures["wrong_bytes"] for r in ran)
    held = len(sound) if whole else None
    everything = len(names) >= ALL_MIN
    least = 20e9 if everything and rounds >= ALL_ROUNDS else 2e9
    found = [
        Target(
            f"scenarios that held {_times(rounds)}",
            held,
            ">=",
            ALL_MIN if everything else SUITE_MIN,
        ),
        Target("wrong bytes", wrong if ran else None, "==", 0, "B"),
        Target("bytes verified", verified if whole else None, ">=", least, "B"),
        Target(
            "gateway memory under flood and giant catalog, of its cap",
            max(memory, default=None),
            "<=",
            1.1,
        ),
        Target(
            "local p99 with every peer hostile at once, of what is allowed: the p99 beside burners "
            "x 1.05, or + 0.2 ms",
            max(slower, default=None),
            "<=",
            1.0,
        ),
        Target(
            f"reads of a frozen peer with a deadline of 50 ms back within 60 ms, of {reads:,}",
            in_time / reads if reads >= READS_MIN else None,
            ">=",
            0.999,
        ),
    ]
    if BESIDE in names:
        share = min(_values(results, BESIDE, "keeps"), default=None)
        text = "throughput of a pair of groups while a third burns, of that before"
        found.append(Target(text, share, ">=", 0.95))
    if MINUTE in names:
        took = max(_values(results, MINUTE, "returns"), default=None)
        found.append(Target("peer hits are back after a cut of 60 s", took, "<=", 5.0, "s"))
    return found


def whole_suite(names: Collection[str], interrupted: bool) -> bool:
    """Whether these scenarios are a whole suite, which all the targets are about."""
    return not interrupted and len(names) >= SUITE_MIN


def _values(results: Sequence[Result], name: str, invariant: str) -> list[float]:
    """What an invariant of a scenario measured, in each run of it."""
    verdicts = (v for r in results if r.name == name for v in r.verdicts if v.name == invariant)
    return [v.value for v in verdicts if v.value is not None]


def _times(rounds: int) -> str:
    return "once" if rounds == 1 else f"{rounds} times in a row"
