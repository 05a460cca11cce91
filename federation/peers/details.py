"""What a serving process says of itself for `status`: read with care, for it may be broken; sans-IO.

What passes is small and plain enough that `status` can hold it, write it as JSON and show it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from federation.counters import COUNTER_NAMES
from federation.trust.handshakes import ENTRIES_MAX
from local_group.breaker import BreakerState
from moonmesh.v1 import serving_pb2

GUARDS = "guards"
"""Where in the details its guards are, by peer."""
TOLD = frozenset({GUARDS, "blocks", "store", "telemetry", "queues", "shedding", "stalls"})
"""All that a serving process tells; what else there is is left out."""

DETAILS_BYTES = 256 * 1024
"""Of the whole: 63 peers whose guards have all there is to say take 100 KiB."""
DEPTH = 6
"""Tables within tables; guards have 4."""
PULLS_MAX = 1 << 16
"""Open at once: 63 peers with 256 each have fewer."""
_LARGEST = frozenset({"leased_bytes_allowed", "broken_promises", "paused_s"})
"""Of a guard: what each process says of the same thing, or for itself."""
TEXT_CHARS = 300
NUMBER_MAX = 1 << 64
"""Beyond what any count or size is, and within what a float can hold."""


def read_details(raw: str) -> dict[str, Any]:
    """The details of a report.

    Raises:
        ValueError: they are none that a serving process makes.
    """
    if len(raw) > DETAILS_BYTES:
        raise ValueError(f"details of {len(raw)} characters; {DETAILS_BYTES} is the limit")
    try:
        details = json.loads(raw)
    except RecursionError as error:
        raise ValueError("its details are nested too deeply") from error
    if not isinstance(details, dict):
        raise ValueError("its details are no object")
    if not isinstance(details.get(GUARDS, {}), dict):
        raise ValueError("its guards are no object")
    _check(details, DEPTH)
    return {name: said for name, said in details.items() if name in TOLD}


def check_report(report: serving_pb2.ServingReport) -> None:
    """Whether a report is one that a serving process makes, but for its details.

    Raises:
        ValueError: its lists are longer, there are more pulls, or what is no time.
    """
    if len(report.counters) > COUNTER_NAMES:
        raise ValueError(f"{len(report.counters)} counters; {COUNTER_NAMES} is the limit")
    if len(report.refused) > ENTRIES_MAX:
        raise ValueError(f"{len(report.refused)} refusals; {ENTRIES_MAX} is the limit")
    if report.pulls > PULLS_MAX:
        raise ValueError(f"{report.pulls} pulls open; {PULLS_MAX} is the limit")
    if not all(math.isfinite(each.last_at) for each in report.refused):
        raise ValueError("a refusal at no time")


def together(parts: Sequence[Mapping[str, Any]], *, largest: bool = False) -> dict[str, Any]:
    """How several processes guard against one peer, as one: what they count is added up.

    Args:
        largest: of each number the largest instead, as of what all say of the same thing.
    """
    found: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            before = found.get(name)
            most = largest or name in _LARGEST
            if before is None:
                found[name] = value
            elif isinstance(value, dict) and isinstance(before, dict):
                found[name] = together([before, value], largest=most)
            elif isinstance(value, (int, float)) and isinstance(before, (int, float)):
                found[name] = max(before, value) if most else before + value
            elif before == BreakerState.CLOSED.value:
                found[name] = value
    return found


def shortened(text: str) -> str:
    """A text of it that is kept, for `status` and the log."""
    return text[:TEXT_CHARS]


def _check(value: Any, depth: int) -> None:
    if depth == 0:
        raise ValueError("its details are nested too deeply")
    if isinstance(value, dict):
        for name, inner in value.items():
            _check(name, depth)
            _check(inner, depth - 1)
    elif isinstance(value, list):
        for inner in value:
            _check(inner, depth - 1)
    elif isinstance(value, str):
        # A lone half of a surrogate pair, say, could not be written to a terminal.
        if len(value) > TEXT_CHARS or not value.isprintable():
            raise ValueError("a text in its details is too long, or not printable")
    elif isinstance(value, (int, float)) and not abs(value) <= NUMBER_MAX:  # nor is NaN
        raise ValueError("a number in its details is none")
