"""Adds up what a mode's requests found, and makes the figures of the report from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from federation.bench.engine import Answer
from federation.bench.report import Target

ERRORS_KEPT = 8
RATIO_TARGET = 0.97


@dataclass
class Tally:
    """Sums over the answers of one mode. Times in ms."""

    mode: str
    requests: int = 0
    local_hits: int = 0
    peer_hits: int = 0
    misses: int = 0
    wrong_bytes: int = 0
    deadline_overruns: int = 0
    errors: int = 0
    first_errors: list[str] = field(default_factory=list)
    codes: Counter[str] = field(default_factory=Counter)
    get_ms: list[float] = field(default_factory=list)
    put_ms: list[float] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)
    """By how much requests were sent after they were due."""
    elapsed_s: float = 0.0
    engine_stats: list[dict[str, Any]] = field(default_factory=list)
    gateways: list[dict[str, Any]] = field(default_factory=list)

    def add(self, answer: Answer) -> None:
        self.requests += 1
        self.local_hits += answer.local
        self.peer_hits += answer.peer
        self.misses += answer.misses
        self.wrong_bytes += answer.wrong_bytes
        self.deadline_overruns += answer.overrun_ms > 0
        self.errors += len(answer.errors)
        self.first_errors += answer.errors[: ERRORS_KEPT - len(self.first_errors)]
        self.codes.update(answer.codes)
        self.get_ms.append(answer.get_ms)
        if answer.put_ms:
            self.put_ms.append(answer.put_ms)

    @property
    def blocks(self) -> int:
        return self.local_hits + self.peer_hits + self.misses

    @property
    def hit_rate(self) -> float | None:
        """Blocks of leading runs over blocks asked for; None before the first answer."""
        return (self.local_hits + self.peer_hits) / self.blocks if self.blocks else None

    def figures(self) -> dict[str, Any]:
        """What the report shows of this mode."""
        return {
            "requests": self.requests,
            "blocks": self.blocks,
            "local_hits": self.local_hits,
            "peer_hits": self.peer_hits,
            "misses": self.misses,
            "hit_rate": self.hit_rate,
            "wrong_bytes": self.wrong_bytes,
            "deadline_overruns": self.deadline_overruns,
            "errors": self.errors,
            "get_ms_p50": quantile(self.get_ms, 0.50),
            "get_ms_p99": quantile(self.get_ms, 0.99),
            "put_ms_p50": quantile(self.put_ms, 0.50),
            "put_ms_p99": quantile(self.put_ms, 0.99),
            "sent_late_ms_p99": quantile(self.late_ms, 0.99),
            "elapsed_s": round(self.elapsed_s, 2),
            "other_codes": dict(self.codes),
        }


def quantile(values: Sequence[float], q: float) -> float | None:
    """Nearest-rank quantile; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(q * (len(ordered) - 1)))]


def replay_figures(
    tallies: Mapping[str, Tally], *, lru: float | None, extra: Mapping[str, Any]
) -> dict[str, Any]:
    """The figures of a whole replay; `extra` (from the gateways) goes before the columns by mode.

    The plain figures are those of the federated mode, or of the only mode that ran.
    """
    main = tallies.get("federated") or next(iter(tallies.values()), Tally("none"))

    def rate(mode: str) -> float | None:
        return tallies[mode].hit_rate if mode in tallies else None

    federated, one_pool = rate("federated"), rate("one-pool")
    played = {t.requests for t in tallies.values() if t.mode in ("federated", "one-pool")}
    if len(played) > 1:  # one was interrupted: hit rates of different parts cannot be compared
        federated = None
    return {
        "requests": main.requests,
        "blocks": main.blocks,
        "local_hits": main.local_hits,
        "peer_hits": main.peer_hits,
        "misses": main.misses,
        "hit_rate": main.hit_rate,
        "isolated_hit_rate": rate("isolated"),
        "one_pool_hit_rate": one_pool,
        "one_pool_lru_hit_rate": lru,
        "ratio_to_one_pool": federated / one_pool if federated is not None and one_pool else None,
        "wrong_bytes": sum(t.wrong_bytes for t in tallies.values()),
        "deadline_overruns": sum(t.deadline_overruns for t in tallies.values()),
        "errors": sum(t.errors for t in tallies.values()),
        **extra,
        "modes": {name: tally.figures() for name, tally in tallies.items()},
    }


def replay_targets(figures: Mapping[str, Any]) -> list[Target]:
    """What a replay is to show."""
    measured = figures["requests"] > 0
    return [
        Target("wrong_bytes", figures["wrong_bytes"] if measured else None, "==", 0, "B"),
        Target("deadline_overruns", figures["deadline_overruns"] if measured else None, "==", 0),
        Target("ratio_to_one_pool", figures["ratio_to_one_pool"], ">=", RATIO_TARGET),
    ]
