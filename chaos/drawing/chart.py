"""The course of one run as SVG: faults above latencies, hits by tier, and how peers were seen. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

WIDTH = 860
LEFT, RIGHT = 118, 14
FAULT_ROW = 18
CHAR = 6.4
"""Width of a letter, about."""
LATENCY = 130
TIERS = 56
PEER_ROW = 14
GAP = 22
AXIS = 26
MS_MIN, MS_MAX = 0.1, 10_000.0
PEERS_MAX = 12
"""Rows of peers; more are left out, and it says so."""
TIER_NAMES = ("local", "peer", "miss")


class Chart:
    """One chart; `svg` is all of it.

    Args:
        told: what `chaos.story.story` made.
        name: of the scenario, for who cannot see it.
    """

    def __init__(self, told: Mapping[str, Any], name: str) -> None:
        self._told = told
        self._name = name
        self._seconds = max(0.1, float(told["seconds"]))
        self._bin = float(told["bin_s"])
        peers = dict(told["peers"])
        self._peers = list(peers.items())[:PEERS_MAX]
        self._left_out = len(peers) - len(self._peers)
        self._latency_top = GAP + FAULT_ROW * len(told["faults"]) + GAP
        self._tiers_top = self._latency_top + LATENCY + GAP
        self._peers_top = self._tiers_top + TIERS + GAP
        rows = len(self._peers) + bool(self._left_out)
        self._bottom = self._peers_top + PEER_ROW * rows
        self._height = self._bottom + AXIS

    def svg(self) -> str:
        """The element."""
        parts = [
            f'<svg viewBox="0 0 {WIDTH} {self._height}" role="img" '
            f'aria-label="{escape(self._name)}: latency, hits and peers over time">',
            *self._seconds_axis(),
            *self._faults(),
            *self._latencies(),
            *self._tiers(),
            *self._peer_rows(),
            "</svg>",
        ]
        return "".join(parts)

    # Places

    def _x(self, at: float) -> float:
        at = min(max(at, 0.0), self._seconds)
        return round(LEFT + (WIDTH - LEFT - RIGHT) * at / self._seconds, 1)

    def _y(self, ms: float, low: float, high: float) -> float:
        share = (math.log10(max(ms, low)) - math.log10(low)) / (math.log10(high) - math.log10(low))
        return round(self._latency_top + LATENCY * (1 - min(1.0, share)), 1)

    # Rows

    def _faults(self) -> Iterator[str]:
        yield _text(LEFT - 8, GAP - 4, "faults", "end")
        for row, (what, begin, end) in enumerate(self._told["faults"]):
            x, width = self._x(begin), max(2.0, self._x(end) - self._x(begin))
            y = GAP + FAULT_ROW * row
            title = f"<title>{escape(what)}: {begin:g} to {end:g} s</title>"
            yield (
                f'<rect class="band" x="{x}" y="{y}" width="{width:.1f}" '
                f'height="{self._bottom - y}"/>'
            )
            yield (
                f'<rect class="fault" x="{x}" y="{y}" width="{width:.1f}" '
                f'height="{FAULT_ROW - 4}" rx="2">{title}</rect>'
            )
            long = CHAR * len(what) + 12
            if width >= long:
                yield _text(x + 6, y + 11, what, "start", "inside")
            elif x + width + long < WIDTH:
                yield _text(x + width + 6, y + 11, what, "start", "named")
            else:
                yield _text(x - 6, y + 11, what, "end", "named")

    def _seconds_axis(self) -> Iterator[str]:
        step = next(
            (s for s in (0.5, 1, 2, 5, 10, 20) if self._seconds / s <= 12), self._seconds / 10
        )
        at = 0.0
        while at <= self._seconds:
            x = self._x(at)
            yield f'<line class="grid" x1="{x}" x2="{x}" y1="{GAP}" y2="{self._bottom}"/>'
            yield _text(x, self._bottom + 16, f"{at:g} s", "middle")
            at += step

    def _latencies(self) -> Iterator[str]:
        lines = {"local": self._told["local_ms"], "peer": self._told["peer_ms"]}
        values = [v for bins in lines.values() for pair in bins if pair for v in pair]
        low = 10 ** math.floor(math.log10(max(MS_MIN, min(values, default=1.0))))
        high = 10 ** math.ceil(math.log10(min(MS_MAX, max(values, default=10.0)) + 1e-9))
        high = max(high, low * 10)
        yield _text(LEFT - 8, self._latency_top - 8, "latency", "end", "named")
        yield from self._legend()
        ms = low
        while ms <= high * 1.001:
            y = self._y(ms, low, high)
            yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
            yield _text(LEFT - 8, y + 4, f"{ms:g} ms", "end")
            ms *= 10
        for name, bins in lines.items():
            for number, quantile in enumerate(("p50", "p99")):
                for run in _runs(bins):
                    points = " ".join(
                        f"{self._x((i + 0.5) * self._bin)},{self._y(pair[number], low, high)}"
                        for i, pair in run
                    )
                    if len(run) == 1:  # a line of one point is none
                        points = f"{points} {points}"
                    title = f"<title>{name} {quantile}</title>"
                    yield f'<polyline class="{name} {quantile}" points="{points}">{title}</polyline>'

    def _legend(self) -> Iterator[str]:
        x, y = LEFT, self._latency_top - 8
        for name, words in (("local", "own group"), ("peer", "chains of peers")):
            for quantile in ("p50", "p99"):
                yield (
                    f'<line class="{name} {quantile}" x1="{x}" x2="{x + 20}" '
                    f'y1="{y - 4}" y2="{y - 4}"/>'
                )
                text = f"{words} {quantile}"
                yield _text(x + 25, y, text, "start")
                x += 44 + int(CHAR * len(text))

    def _tiers(self) -> Iterator[str]:
        top = self._tiers_top
        yield _text(LEFT - 8, top + 12, "chains of peers", "end", "named")
        yield _text(LEFT - 8, top + 26, "came from", "end")
        x = LEFT
        for name, words in zip(TIER_NAMES, ("own group", "peer", "nobody"), strict=True):
            yield f'<rect class="tier {name}" x="{x}" y="{top - 12}" width="9" height="9"/>'
            yield _text(x + 13, top - 4, words, "start")
            x += 30 + int(CHAR * len(words))
        for number, counts in enumerate(self._told["tiers"]):
            whole = sum(counts)
            if not whole:
                continue
            left = self._x(number * self._bin)
            width = max(1.0, self._x((number + 1) * self._bin) - left - 0.6)
            y = float(top)
            told = ", ".join(f"{n} {c}" for n, c in zip(TIER_NAMES, counts, strict=True))
            yield f"<g><title>{number * self._bin:g} s: {told} blocks</title>"
            for name, count in zip(TIER_NAMES, counts, strict=True):
                height = TIERS * count / whole
                if count:
                    yield (
                        f'<rect class="tier {name}" x="{left}" y="{y:.1f}" '
                        f'width="{width:.1f}" height="{height:.1f}"/>'
                    )
                y += height
            yield "</g>"

    def _peer_rows(self) -> Iterator[str]:
        top = self._peers_top
        x = LEFT
        for word in ("closed", "half_open", "open", "suspect", "down", "no answer"):
            yield f'<rect class="state {_class(word)}" x="{x}" y="{top - 12}" width="9" height="9"/>'
            yield _text(x + 13, top - 4, word.replace("_", " "), "start")
            x += 30 + int(CHAR * len(word))
        yield _text(LEFT - 8, top - 4, "breakers, peers", "end", "named")
        for row, (name, changes) in enumerate(self._peers):
            y = top + PEER_ROW * row
            yield _text(LEFT - 8, y + 9, name, "end")
            for (begin, state), following in zip(
                changes, [*changes[1:], (self._seconds, "")], strict=True
            ):
                left, right = self._x(begin), self._x(following[0])
                title = f"<title>{escape(name)}: {escape(state)} from {begin:g} s</title>"
                yield (
                    f'<rect class="state {_class(state)}" x="{left}" y="{y}" '
                    f'width="{max(0.5, right - left):.1f}" height="{PEER_ROW - 4}">{title}</rect>'
                )
        if self._left_out:
            y = top + PEER_ROW * len(self._peers) + 9
            yield _text(LEFT, y, f"and {self._left_out} more", "start")


def _runs(bins: Sequence[Sequence[float] | None]) -> list[list[tuple[int, Sequence[float]]]]:
    """Bins with calls, without gaps: a line does not go over a time without any."""
    runs: list[list[tuple[int, Sequence[float]]]] = [[]]
    for number, pair in enumerate(bins):
        if pair is None:
            runs.append([])
        else:
            runs[-1].append((number, pair))
    return [run for run in runs if run]


def _class(state: str) -> str:
    return {"no answer": "gone"}.get(state, state)


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{named}>{escape(text)}</text>'
