"""Replays a trace against the admission policies alone: what each serves, and what it moves; sans-IO.

Groups are LRU pools that know of each other's blocks at once. So this is what a policy is worth where
nothing is late; what real groups make of it is told by `moonmesh bench replay`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, get_args

import xxhash

from federation.bench.frontier import MOVED_TARGET, RATIO_TARGET
from federation.bench.lru import lru_hits
from federation.bench.report import Report, Target
from federation.bench.workload import Workload
from federation.config import Admit
from federation.transfer.policy import AdmissionPolicy

POLICIES: Final[tuple[Admit, ...]] = get_args(Admit)
REGIONS: Final = 2
"""Of the second part: lines between them are dear, and a block is asked of a group of the same region first,
as the planner does."""


class Served(NamedTuple):
    """What became of a trace, in blocks."""

    asked: int
    local: int
    """Of leading runs, from the group's own pool."""
    peer: int
    """... and from another's."""
    admitted: int
    """Put into a pool after they had come from a peer."""
    dear: int = 0
    """Of those from another's, what came from another region."""

    @property
    def hits(self) -> int:
        return self.local + self.peer


class _Group:
    def __init__(self, admit: Admit, capacity: int, region: int) -> None:
        self.pool: OrderedDict[str, None] = OrderedDict()
        self.policy = AdmissionPolicy(admit, lambda: self._written / capacity)
        self._written = 0
        self._foreign: set[str] = set()
        self.region = region
        self._capacity = capacity

    def use(self, keys: Sequence[str]) -> None:
        """These are in the pool now, the first of them newest of all."""
        for key in reversed(keys):
            self._written += key not in self.pool
            self.pool[key] = None
            self.pool.move_to_end(key)
        while len(self.pool) > self._capacity:
            self.pool.popitem(last=False)

    def given(self, key: str, dear: bool) -> bool:
        """Whether a block that came from another group is put into the pool."""
        hashed = xxhash.xxh3_64_intdigest(key.encode())
        copied = self.policy.landed() | self.policy.given(hashed, dear)
        if copied:
            self._foreign.add(key)
        return copied

    def offers(self, key: str) -> bool:
        """Whether others may have it: what came from another group is not offered onward, and is known for it
        even after it was gone."""
        return key in self.pool and key not in self._foreign


def replay(
    workload: Workload, admit: Admit, capacity: int, *, regions: int = 1, sooner: bool = True
) -> Served:
    """Plays all requests, one after the other, against groups that share `capacity` blocks evenly.

    Args:
        regions: over which the groups are spread.
        sooner: whether the policy is told that a line is dear.
    """
    count = workload.groups
    groups = [_Group(admit, capacity // count, n * regions // count) for n in range(count)]
    asked = local = peer = admitted = dear = 0
    for request in workload.requests:
        here = groups[request.group]
        others = [group for group in groups if group is not here]
        others.sort(key=lambda other: other.region != here.region)
        asked += len(request.keys)
        kept: list[str] = []
        lent: dict[int, list[str]] = {}
        run = 0
        for key in request.keys:
            if key in here.pool:
                local += 1
                kept.append(key)
            else:
                holder = next((n for n, other in enumerate(others) if other.offers(key)), None)
                if holder is None:
                    break
                peer += 1
                far = others[holder].region != here.region
                dear += far
                lent.setdefault(holder, []).append(key)
                if here.given(key, far and sooner):
                    admitted += 1
                    kept.append(key)
            run += 1
        for holder, keys in lent.items():
            others[holder].use(keys)
        here.use([*kept, *request.keys[run:]])
    return Served(asked, local, peer, admitted, dear)


def admission_report(workload: Workload, fraction: float) -> Report:
    """All policies on one workload.

    Args:
        fraction: blocks that all groups hold together, over the different ones of the workload.
    """
    capacity = int(fraction * workload.unique_blocks)
    pool, asked = lru_hits((r.keys for r in workload.requests), capacity)
    played = {admit: replay(workload, admit, capacity) for admit in POLICIES}
    report = Report("admission")
    report.figures = {
        "requests": len(workload.requests),
        "blocks": asked,
        "groups": workload.groups,
        "usable_blocks": capacity,
        "one_pool_hit_rate": pool / asked if asked else None,
    }
    never = played["never"].peer
    for admit, served in played.items():
        report.figures[admit] = _figures(served, pool, never)
    chosen: dict[str, Any] = report.figures["second-hit"]
    report.targets = [
        Target("second-hit: ratio_to_one_pool", chosen["ratio_to_one_pool"], ">=", RATIO_TARGET),
        Target("second-hit: moved_over_never", chosen["moved_over_never"], "<=", MOVED_TARGET),
    ]
    if workload.groups > REGIONS:
        _regions(report, workload, capacity, pool)
    report.notes = [
        "Nothing is late here: groups are LRU pools that know of each other's blocks at once."
    ]
    return report


def _regions(report: Report, workload: Workload, capacity: int, pool: int) -> None:
    played = {admit: replay(workload, admit, capacity, regions=REGIONS) for admit in POLICIES}
    blind = replay(workload, "second-hit", capacity, regions=REGIONS, sooner=False)
    never = played["never"]
    columns: dict[str, Served] = {str(admit): served for admit, served in played.items()}
    columns["second-hit, not told"] = blind
    report.figures[f"{REGIONS} regions"] = {
        name: {
            **_figures(served, pool, never.peer),
            "dear_over_never": served.dear / never.dear if never.dear else None,
        }
        for name, served in columns.items()
    }
    report.targets.append(
        Target(
            "second-hit: hits over what a mix of always and not told makes of as many dear blocks",
            _over_a_mix(played["second-hit"], played["always"], blind),
            ">=",
            1,
        )
    )


def _over_a_mix(served: Served, one: Served, other: Served) -> float | None:
    """Hits over those of two policies, each used for as many blocks as moves the same over dear lines."""
    if one.dear == other.dear:
        return None
    part = (served.dear - one.dear) / (other.dear - one.dear)
    return served.hits / (one.hits + part * (other.hits - one.hits))


def _figures(served: Served, pool: int, never: int) -> dict[str, Any]:
    return {
        "hit_rate": served.hits / served.asked if served.asked else None,
        "ratio_to_one_pool": served.hits / pool if pool else None,
        "local_blocks": served.local,
        "peer_blocks": served.peer,
        "admitted_blocks": served.admitted,
        "moved_over_never": served.peer / never if never else None,
    }
