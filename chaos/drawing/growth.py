"""What processes used over a soak: a row each, with its course. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

MIB = 1024 * 1024
WIDTH, HEIGHT, EDGE = 180, 28, 2


def growth(report: Mapping[str, Any]) -> Iterator[str]:
    """The table of a report of `moonmesh chaos soak`; nothing for another's."""
    if "soak" not in report:
        return
    soak = report["soak"]
    yield (
        "<h2>What grew</h2><p>The first third of each life left out; no trend where a line through the rest "
        "gains no more than the noise about it, or one MiB, descriptor or thread. "
        f"{soak['short_lives']} processes lived too short to say anything of.</p>"
        '<table><thead><tr><th>process<th>figure<th class="n">minutes<th>course<th class="n">at first'
        '<th class="n">growth<th class="n">noise<th></thead><tbody>'
    )
    for one in soak["trends"]:
        unit, suffix = (MIB, " MiB") if one["figure"] == "rss" else (1, "")
        numbers = "".join(
            f'<td class="n">{one[name] / unit:.1f}{suffix}' for name in ("begin", "growth", "noise")
        )
        word, kind = ("no trend", "held") if one["held"] else ("grows", "broken")
        yield (
            f"<tr><td>{escape(one['process'])}<td>{escape(one['figure'])}"
            f'<td class="n">{one["seconds"] / 60:.1f}<td>{course(one["medians"], unit)}{numbers}'
            f'<td><span class="mark {kind}">{word}</span>'
        )
    yield "</tbody></table>"


def course(values: Sequence[float], unit: float) -> str:
    """A small line from the first value to the last. Its height is their range, ten units at the least: what
    hardly moves is to look like it."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    middle, reach = (low + high) / 2, max(high - low, 10 * unit)
    step = (WIDTH - 2 * EDGE) / (len(values) - 1)
    points = " ".join(
        f"{EDGE + n * step:.1f},{EDGE + (HEIGHT - 2 * EDGE) * (0.5 - (value - middle) / reach):.1f}"
        for n, value in enumerate(values)
    )
    return (
        f'<svg class="course" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{low / unit:.1f} to {high / unit:.1f}">'
        f"<title>{low / unit:.1f} to {high / unit:.1f}</title>"
        f'<polyline class="local" points="{points}"/></svg>'
    )
