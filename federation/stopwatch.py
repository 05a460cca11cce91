"""Time spent in many short pieces, told as one span."""

from __future__ import annotations

import time
from collections.abc import Mapping

from federation.telemetry import tracer


class Stopwatch:
    """Enter it for each piece; `record` makes one span, from the first of them on."""

    def __init__(self) -> None:
        self._first = 0
        self._entered = 0
        self._total = 0

    def __enter__(self) -> None:
        self._entered = time.time_ns()
        self._first = self._first or self._entered

    def __exit__(self, *_: object) -> None:
        self._total += time.time_ns() - self._entered

    def record(self, name: str, attributes: Mapping[str, int]) -> None:
        """The span; none if nothing was timed."""
        if self._first:
            made = tracer().start_span(name, start_time=self._first, attributes=attributes)
            made.end(self._first + self._total)
