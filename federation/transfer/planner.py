"""Which blocks of a chain to pull, and from whom; sans-IO.

Every block of the leading run goes to the holder that would have delivered it first, after what that one has
to deliver before it. So blocks that several peers have are split among them in proportion to how fast they
are, in turns: the run grows by what all of them deliver together. Of that run as much is pulled as makes
the engine's first token come soonest; the rest is cheaper to compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from federation.catalog.coverage import Holders, cover
from federation.catalog.view import CatalogView
from federation.transfer.speed import Estimate, Speeds

PART_BYTES_MIN: Final = 1 << 20
"""Bytes for which one more peer is asked: a message. A request costs both sides more than a share of less
brings."""
STRETCHES_MAX: Final = 64
"""Stretches of a chain, each of blocks that the same peers have, which are split among those. Of a chain in
more pieces each block of the rest is asked of the fastest that has it."""
HOPE: Final = 0.5
"""Of what the fastest known peer takes, what one of which nothing is known is taken to need."""
TRY_AGAIN_SECONDS: Final = 30.0
"""Between two pulls from a peer that is slower than computing: one that is faster again is found out."""
TRIAL_BYTES: Final = 4 << 20
"""Of such a pull, at most: enough to measure."""
DEAR_TIMES: Final = 8
"""Times that what the fastest peer takes for a pull, from which on the line of another is dear ..."""
DEAR_SECONDS: Final = 0.05
"""... if it takes so long at least: no line within a data centre."""
DEAR_PART: Final = 0.5
"""Of what computing a block takes an engine; from there on a line that takes so long for it is dear too."""
DEAR_FOR_SECONDS: Final = 1.0
"""Between two looks at whether a line is dear."""
BLOCK_BYTES_GUESSED: Final = 64 << 10
"""Size of a block where none has come yet."""

Floats: TypeAlias = npt.NDArray[np.float64]
Numbers: TypeAlias = npt.NDArray[np.int16]


class Run(NamedTuple):
    """Blocks to be asked of one peer in one go: their places in the chain, in order."""

    peer: str
    indices: list[int]


class Plan(NamedTuple):
    """What to do about a chain."""

    runs: list[Run]
    """One a peer, the one with the first block first; no block is in two. Together a leading run."""
    located: int
    """Blocks of the leading run that peers have."""
    left: int
    """Those of them that are cheaper to compute."""
    trial: int
    """Those that are pulled although they are not: to see whether that still holds."""
    pull_seconds: float | None
    """What it would take to pull all of them; None where too little is known of a peer."""
    recompute_seconds: float | None
    """What it would take to compute them; None where the namespace does not say."""

    @property
    def decision(self) -> str:
        """In a word."""
        if not self.located:
            return "nobody has it"
        if self.trial:
            return "trial"
        if not self.left:
            return "pull"
        return "pull a part" if self.runs else "recompute"

    def attributes(self) -> dict[str, str | int | float | list[str]]:
        """For the span of the look-up."""
        found: dict[str, str | int | float | list[str]] = {
            "moonmesh.located": self.located,
            "moonmesh.peers": [run.peer for run in self.runs],
            "moonmesh.decision": self.decision,
        }
        if self.left:
            found["moonmesh.left"] = self.left
        if self.pull_seconds is not None:
            found["moonmesh.pull_ms"] = 1000 * self.pull_seconds
        if self.recompute_seconds is not None:
            found["moonmesh.recompute_ms"] = 1000 * self.recompute_seconds
        return found


class _Cost(NamedTuple):
    first: float
    block: float
    sure: bool


class Planner:
    """Plans over the views of peers.

    Args:
        block_seconds: what computing a block of a namespace (by its fingerprint) takes an engine; None where
            that is not known: then all is pulled that can be.
    """

    def __init__(
        self, speeds: Speeds, block_seconds: Callable[[bytes], float | None] = lambda _: None
    ) -> None:
        self._speeds = speeds
        self._block_seconds = block_seconds
        self._tried_at: dict[str, float] = {}
        self._dear: dict[tuple[bytes, str], tuple[bool, float]] = {}

    def plan(
        self,
        fingerprint: bytes,
        key_hashes: Sequence[int],
        views: Sequence[tuple[str, CatalogView]],
        now: float,
        *,
        kind: str = "",
        whatever_it_takes: bool = False,
    ) -> Plan:
        """Which blocks of a chain to ask of which peer.

        Args:
            key_hashes: the chain, in order.
            views: usable peers with their views, the preferred one first: it is asked where others are no
                faster.
            now: monotonic seconds.
            kind: of pull (see `Speeds`).
            whatever_it_takes: pull what can be had even where computing it is cheaper.
        """
        sizes = [size for _, view in views if (size := view.mean_size) is not None]
        size = sum(sizes) / len(sizes) if sizes else BLOCK_BYTES_GUESSED
        peers = [
            (*view, cost)
            for view, cost in zip(views, self._costs(views, size, now, kind), strict=True)
        ]
        part = max(1, round(PART_BYTES_MIN / size))
        some = min(part, len(key_hashes))
        peers.sort(key=lambda each: each[2].first + some * each[2].block)
        costs = [cost for *_, cost in peers]
        held = cover(
            key_hashes, [view for _, view, _ in peers], now, max(1, len(key_hashes) // part)
        )
        recompute = self._block_seconds(fingerprint)
        if not len(held):
            return Plan([], 0, 0, 0, None, None)
        who, done = share_out(held, costs, part)
        sure = np.array([cost.sure and bool(sizes) for cost in costs])[who]
        # Nothing is certain of the others: they are tried.
        pulled: Floats = np.maximum.accumulate(np.where(sure, done, 0.0))
        keep, trial = len(held), 0
        if recompute is not None and not whatever_it_takes:
            gain = recompute * np.arange(1, len(held) + 1) - pulled
            keep = int(np.argmax(gain)) + 1
            if gain[keep - 1] <= 0:
                keep = 0
            if keep < len(held):
                trial = self._trial(peers[int(who[keep])][0], len(held) - keep, size, now)
                keep += trial
        chosen = who[:keep]
        runs = [
            Run(peer, indices)
            for n, (peer, *_) in enumerate(peers)
            if (indices := np.flatnonzero(chosen == n).tolist())
        ]
        return Plan(
            sorted(runs, key=lambda run: run.indices[0]),
            len(held),
            len(held) - keep,
            trial,
            float(pulled[-1]) if sure.all() else None,
            None if recompute is None else recompute * len(held),
        )

    def dear(self, fingerprint: bytes, peer: str, size: int, now: float) -> bool:
        """Whether blocks of so many bytes should come from a peer as seldom as can be."""
        known = self._dear.get((fingerprint, peer))
        if known is None or now >= known[1]:
            known = (self._is_dear(fingerprint, peer, size, now), now + DEAR_FOR_SECONDS)
            self._dear[fingerprint, peer] = known
        return known[0]

    def _is_dear(self, fingerprint: bytes, peer: str, size: int, now: float) -> bool:
        found = self._speeds.estimate(peer, now)
        if found is None or not found.sure:
            return False
        compute = self._block_seconds(fingerprint)
        if compute is not None and size * found.byte >= DEAR_PART * compute:
            return True
        # Of pulls as large as those that were measured: of larger ones a line of small pulls knows little.
        seconds = found.seconds(found.size)
        fastest = self._speeds.least(found.size, now)
        return seconds >= max(DEAR_SECONDS, DEAR_TIMES * fastest)

    def _costs(
        self, views: Sequence[tuple[str, CatalogView]], size: float, now: float, kind: str
    ) -> list[_Cost]:
        known = [self._speeds.estimate(peer, now, kind) for peer, _ in views]
        told = [each for each in known if each is not None]
        hoped = Estimate(0.0, self._speeds.byte_min)
        if told:
            hoped = Estimate(
                HOPE * min(each.first for each in told), HOPE * min(each.byte for each in told)
            )
        return [
            _Cost(each.first, size * each.byte, each.sure)
            for each in (each or hoped for each in known)
        ]

    def _trial(self, peer: str, left: int, size: float, now: float) -> int:
        """Blocks that are pulled from a peer that is too slow, to see whether it still is."""
        latest = max(self._speeds.told_at(peer), self._tried_at.get(peer, -math.inf))
        if now - latest < TRY_AGAIN_SECONDS:
            return 0
        self._tried_at[peer] = now
        return min(left, max(1, int(TRIAL_BYTES / size)))


def share_out(
    held: Holders, costs: Sequence[tuple[float, float, bool]], part: int
) -> tuple[Numbers, Floats]:
    """Shares the blocks of a leading run out among their holders.

    Args:
        held: who has which, as bits; each block somebody.
        costs: for each holder seconds before anything comes, and for each block.
        part: blocks for which one more holder is asked.

    Returns:
        For each block its holder's number, and after how many seconds it has come.
    """
    free = np.array([first for first, *_ in costs])
    """When each holder is done with what it was given so far."""
    block = np.maximum([each for _, each, *_ in costs], 1e-12)
    who = np.empty(len(held), dtype=np.int16)
    done = np.empty(len(held))
    edges = np.flatnonzero(held[1:] != held[:-1])[: STRETCHES_MAX - 1] + 1
    whole = len(edges) < STRETCHES_MAX - 1
    first = 0
    for end in [*edges.tolist(), *([len(held)] if whole else [])]:
        bits, count = int(held[first]), end - first
        holders = np.array([n for n in range(len(costs)) if bits >> n & 1])
        asked = max(1, min(len(holders), count // part))
        if asked == 1:
            ends = free[holders] + count * block[holders]
            if first:
                # A request more has to bring something: whoever is asked already has that much ahead.
                ends += part * block[holders] * ~np.isin(holders, who[:first])
            best = int(holders[np.argmin(ends)])
            who[first:end] = best
            done[first:end] = free[best] + block[best] * np.arange(1, count + 1)
            free[best] = done[end - 1]
        else:
            order = np.argsort(free[holders] + part * block[holders], kind="stable")
            _in_turns(np.sort(holders[order[:asked]]), free, block, who[first:end], done[first:end])
        first = end
    rest = held[first:].copy()
    for n in np.argsort(block, kind="stable").tolist() if len(rest) else []:
        left = np.flatnonzero(rest >> np.uint64(n) & np.uint64(1))
        rest[left] = 0
        left += first
        who[left] = n
        done[left] = free[n] + block[n] * np.arange(1, len(left) + 1)
    return who, done


def _in_turns(
    holders: npt.NDArray[np.intp], free: Floats, block: Floats, who: Numbers, done: Floats
) -> None:
    """Gives each block to the holder that has delivered it first; fills `who` and `done`, moves `free`."""
    count = len(who)
    begin, each = free[holders], block[holders]
    # All who take part end at about the same time: the one at which together they have delivered all.
    order = np.argsort(begin, kind="stable")
    rates = np.cumsum(1 / each[order])
    ends = (count + np.cumsum(begin[order] / each[order])) / rates
    later = np.append(begin[order][1:], np.inf)
    end = ends[np.flatnonzero(ends <= later)[0]]
    # Blocks are whole: by then each lacks less than one, and the fastest may have to make up for all.
    spare = len(holders)
    counts = np.minimum(count, np.ceil(np.maximum(0.0, end - begin) / each) + spare).astype(int)
    times = np.concatenate(
        [b + e * np.arange(1, n + 1) for b, e, n in zip(begin, each, counts, strict=True)]
    )
    owners = np.repeat(np.arange(len(holders)), counts)
    taken = np.argsort(times, kind="stable")[:count]
    who[:] = holders[owners[taken]]
    done[:] = times[taken]
    given = np.bincount(owners[taken], minlength=len(holders))
    free[holders] = begin + each * given
