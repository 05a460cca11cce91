"""What a bench of pulls has measured, as figures and targets."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from federation.bench.cpu import total
from federation.bench.pull_shaped import ShapedOutcome
from federation.bench.report import Target
from federation.bench.tally import quantile
from local_group.errors import MoonmeshError

COST_TARGET: Final = 1.15
THROUGHPUT_TARGET: Final = 1.0
FIRST_MS_TARGET: Final = 5.0
WORKERS_COST_TARGET: Final = 1.1
READERS: Final = 2
"""Engines that pull at once, where processes are compared: one pull is one stream, of one at each end."""
BLOCKS: Final = 128
"""Of each such pull, at most; two pairs of groups are there at once."""
ARMS: Final[Mapping[str, tuple[int, int]]] = {"1 + 0": (1, 0), "1 + 1": (1, 1), "2 + 2": (2, 2)}
"""Serving and pulling processes of each pair of groups; with none of the latter its gateway pulls."""
GB: Final = 1e9
DEFERRED, INSIDE = "put deferred", "put inside"
PARTS: Final = {
    DEFERRED: ("get", "stream", "digests"),
    INSIDE: ("get", "stream", "digests", "put"),
}
"""What each kind of pull is made of."""


@dataclass
class Measured:
    """Of one thing, each round: seconds, and seconds of processors by who used them."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[dict[str, float]] = field(default_factory=list)

    def add(self, ms: float, used: dict[str, float]) -> None:
        self.wall_s.append(ms / 1e3)
        self.cpu_s.append(used)

    def figures(self, size: int) -> dict[str, Any]:
        """Medians over the rounds."""
        if not self.wall_s:
            return {}
        names = sorted({name for used in self.cpu_s for name in used})
        by_name = {
            n: statistics.median(u.get(n, 0.0) for u in self.cpu_s) * GB / size for n in names
        }
        return {
            "gb_per_s": size / GB / statistics.median(self.wall_s),
            "core_s_per_gb": statistics.median(map(total, self.cpu_s)) * GB / size,
            **{f"core_s_per_gb of {name}": cost for name, cost in by_name.items() if cost >= 0.005},
        }


@dataclass
class WorkersOutcome:
    """Of each arm.

    Attributes:
        blocks: of one pull.
    """

    arms: dict[str, Measured] = field(default_factory=dict)
    blocks: int = BLOCKS

    def figures(self, block_bytes: int) -> dict[str, Any]:
        """A table for each, and what one costs over the other: the median of the rounds."""
        size = READERS * self.blocks * block_bytes
        found: dict[str, Any] = {
            name: self.arms[name].figures(size) for name in ARMS if name in self.arms
        }
        alone, few, many = (self.arms.get(name, Measured()) for name in ARMS)
        for name, arm, base in (
            ("cost_over_one_of_each", many, few),
            ("cost_of_a_process_to_pull", few, alone),
        ):
            pairs = zip(arm.cpu_s, base.cpu_s, strict=False)  # of rounds, the last may lack one
            if ratios := [total(one) / total(other) for one, other in pairs]:
                found[name] = statistics.median(ratios)
        return found


@dataclass
class Outcome:
    """All that was measured; what ended it early: a signal, 0 for none, or an error."""

    deferred: Measured = field(default_factory=Measured)
    inside: Measured = field(default_factory=Measured)
    part: dict[str, Measured] = field(default_factory=dict)
    first_ms: list[float] = field(default_factory=list)
    shaped: ShapedOutcome = field(default_factory=ShapedOutcome)
    workers: WorkersOutcome = field(default_factory=WorkersOutcome)
    signal: int = 0
    failed: MoonmeshError | None = None


def figures(outcome: Outcome, blocks: int, block_bytes: int) -> dict[str, Any]:
    """A table each for the two pulls and the parts."""
    size = blocks * block_bytes
    found: dict[str, Any] = {"blocks": blocks, "block_bytes": block_bytes}
    cost = {name: each.figures(size) for name, each in outcome.part.items()}
    for name, made_of in PARTS.items():
        pull = outcome.inside if name == INSIDE else outcome.deferred
        row = pull.figures(size)
        if row and all(cost.get(part) for part in made_of):
            core = sum(cost[part]["core_s_per_gb"] for part in made_of)
            slow = 1 / sum(1 / cost[part]["gb_per_s"] for part in made_of)
            row |= {
                "parts_core_s_per_gb": core,
                "cost_over_parts": row["core_s_per_gb"] / core,
                "parts_gb_per_s": slow,
                "speed_over_parts": row["gb_per_s"] / slow,
            }
        found[name] = row
    found |= {f"part: {name}": row for name, row in cost.items()}
    found["first_block_ms_p50"] = quantile(outcome.first_ms, 0.5)
    found["first_block_ms_p99"] = quantile(outcome.first_ms, 0.99)
    found["singles"] = len(outcome.first_ms)
    return found


def targets(found: dict[str, Any]) -> list[Target]:
    """What a pull may cost."""
    made = []
    for name in PARTS:
        row = found[name]
        made.append(
            Target(f"{name}: cost over its parts", row.get("cost_over_parts"), "<=", COST_TARGET)
        )
        speed = row.get("speed_over_parts")
        made.append(Target(f"{name}: speed over its parts", speed, ">=", THROUGHPUT_TARGET))
    first = found["first_block_ms_p50"]
    made.append(Target("first block, p50", first, "<=", FIRST_MS_TARGET, "ms"))
    return made


def workers_targets(found: Mapping[str, Any]) -> list[Target]:
    """What they may cost."""
    ratio = found.get("cost_over_one_of_each")
    return [Target("2 + 2 processes: cost over 1 + 1", ratio, "<=", WORKERS_COST_TARGET)]
