"""Adds up what a mode's requests found, and makes the figures of the report from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from federation.bench.engine import Answer
from federation.bench.report import Target

ERRORS_KEPT = 8
FAILED_SHARE_MAX = 0.01
"""With more failed results than this in a mode, its hit rate is the machine's, not the design's."""
RATIO_TARGET = 0.97
WASTED_SHARE_MAX = 0.01
METADATA_SHARE_MAX = 0.005


@dataclass
class Tally:
    """Sums over the answers of one mode. Times in ms."""

    mode: str
    requests: int = 0
    played: set[int] = field(default_factory=set)
    """Numbers of the requests that were answered."""
    local_hits: int = 0
    peer_hits: int = 0
    misses: int = 0
    stale_misses: int = 0
    """Those of `misses` that another group had written just before (see `staleness`)."""
    wrong_bytes: int = 0
    deadline_overruns: int = 0
    """Reads and writes over their deadline, beyond what is excused (see `engine.Answer`)."""
    deadline_overruns_raw: int = 0
    """Reads and writes over their deadline, nothing excused."""
    put_overruns: int = 0
    """Those of `deadline_overruns` that are writes."""
    worst_overrun_ms: float = 0.0
    worst_overrun_raw_ms: float = 0.0
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
        self.played.add(answer.number)
        self.local_hits += answer.local
        self.peer_hits += answer.peer
        self.misses += answer.misses
        self.wrong_bytes += answer.wrong_bytes
        self._add_overruns(answer)
        self.errors += len(answer.errors)
        self.first_errors += answer.errors[: ERRORS_KEPT - len(self.first_errors)]
        self.codes.update(answer.codes)
        self.get_ms.append(answer.get_ms)
        if answer.put_ms:
            self.put_ms.append(answer.put_ms)

    def _add_overruns(self, answer: Answer) -> None:
        excused = (answer.overrun_ms, answer.put_overrun_ms)
        raw = (answer.overrun_raw_ms, answer.put_overrun_raw_ms)
        self.deadline_overruns += sum(ms > 0 for ms in excused)
        self.deadline_overruns_raw += sum(ms > 0 for ms in raw)
        self.put_overruns += answer.put_overrun_ms > 0
        self.worst_overrun_ms = max(self.worst_overrun_ms, *excused)
        self.worst_overrun_raw_ms = max(self.worst_overrun_raw_ms, *raw)

    @property
    def blocks(self) -> int:
        return self.local_hits + self.peer_hits + self.misses

    @property
    def hit_rate(self) -> float | None:
        """Blocks of leading runs over blocks asked for; None before the first answer."""
        return (self.local_hits + self.peer_hits) / self.blocks if self.blocks else None

    @property
    def failed_share(self) -> float:
        """Results that were no hit, no miss and not stored (calls that met their deadline, mostly),
        over the blocks asked for."""
        return sum(self.codes.values()) / self.blocks if self.blocks else 0.0

    @property
    def rate(self) -> float | None:
        """Requests a second that it really was; None before the first answer."""
        return self.requests / self.elapsed_s if self.requests and self.elapsed_s > 0 else None

    def _delay_ms(self, name: str) -> float | None:
        return max((float(s[name]) for s in self.engine_stats if name in s), default=None)

    def figures(self) -> dict[str, Any]:
        """What the report shows of this mode."""
        return {
            "requests": self.requests,
            "blocks": self.blocks,
            "local_hits": self.local_hits,
            "peer_hits": self.peer_hits,
            "misses": self.misses,
            "stale_misses": self.stale_misses,
            "hit_rate": self.hit_rate,
            "wrong_bytes": self.wrong_bytes,
            "deadline_overruns": self.deadline_overruns,
            "deadline_overruns_raw": self.deadline_overruns_raw,
            "put_overruns": self.put_overruns,
            "worst_overrun_ms": self.worst_overrun_ms,
            "worst_overrun_raw_ms": self.worst_overrun_raw_ms,
            "machine_delay_ms_max": self._delay_ms("machine_delay_ms"),
            "thread_delay_ms_max": self._delay_ms("thread_delay_ms"),
            "errors": self.errors,
            "get_ms_p50": quantile(self.get_ms, 0.50),
            "get_ms_p99": quantile(self.get_ms, 0.99),
            "put_ms_p50": quantile(self.put_ms, 0.50),
            "put_ms_p99": quantile(self.put_ms, 0.99),
            "sent_late_ms_p99": quantile(self.late_ms, 0.99),
            "elapsed_s": round(self.elapsed_s, 2),
            "requests_per_s": self.rate,
            "failed_share": self.failed_share,
            "other_codes": dict(self.codes),
        }


def quantile(values: Sequence[float], q: float) -> float | None:
    """Nearest-rank quantile; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(q * (len(ordered) - 1)))]


def main_tally(tallies: Mapping[str, Tally]) -> Tally:
    """The sums that a replay's plain figures are of: the federated mode's, else the first one's."""
    return tallies.get("federated") or next(iter(tallies.values()), Tally("none"))


def replay_figures(
    tallies: Mapping[str, Tally], *, lru: float | None, extra: Mapping[str, Any]
) -> dict[str, Any]:
    """The figures of a whole replay; `extra` (from the gateways) goes before the columns by mode.

    The plain figures are those of `main_tally`. Rates of a mode that played other requests, because
    it was interrupted, are not put beside them: its own column has them.
    """
    main = main_tally(tallies)

    def rate(mode: str) -> float | None:
        """Of a mode that played the very requests that the plain figures are of, else None."""
        tally = tallies.get(mode)
        return tally.hit_rate if tally is not None and tally.played == main.played else None

    federated, one_pool = rate("federated"), rate("one-pool")
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
        "deadline_overruns_raw": sum(t.deadline_overruns_raw for t in tallies.values()),
        "worst_overrun_ms": max((t.worst_overrun_ms for t in tallies.values()), default=None),
        "worst_overrun_raw_ms": max(
            (t.worst_overrun_raw_ms for t in tallies.values()), default=None
        ),
        "errors": sum(t.errors for t in tallies.values()),
        **extra,
        "modes": {name: tally.figures() for name, tally in tallies.items()},
    }


def replay_targets(figures: Mapping[str, Any]) -> list[Target]:
    """What a replay is to show."""
    measured = figures["requests"] > 0
    pool = figures["modes"].get("one-pool", {})
    # A pool that failed is no yardstick: against it, any federation would look good.
    sound = pool.get("failed_share", 0.0) <= FAILED_SHARE_MAX
    ratio = figures["ratio_to_one_pool"] if sound else None
    return [
        Target("wrong_bytes", figures["wrong_bytes"] if measured else None, "==", 0, "B"),
        Target("deadline_overruns", figures["deadline_overruns"] if measured else None, "==", 0),
        Target("ratio_to_one_pool", ratio, ">=", RATIO_TARGET),
        Target("wasted_share", figures.get("wasted_share"), "<=", WASTED_SHARE_MAX),
        Target("metadata_share", figures.get("metadata_share"), "<=", METADATA_SHARE_MAX),
    ]
