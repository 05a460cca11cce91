"""Counters and samples of one process: what `status` shows and metrics are made of."""

from __future__ import annotations

import re
import threading
from collections import deque

COUNTER_NAMES = 4096
"""Names a `Counters` takes; a name made from a peer's input must not become a memory leak. The refusals
alone have 2,646: one a peer (63), guard (21) and direction (2)."""


class Counters:
    """Named ints that only grow; safe from any thread."""

    _NAME = re.compile(r"moonmesh_[a-z0-9_]{1,80}(\{[^{}\n]{1,120}\})?")
    REFUSED = "moonmesh_counter_names_refused_total"

    def __init__(self, names: int = COUNTER_NAMES) -> None:
        self._limit = names
        self._lock = threading.Lock()
        self._values: dict[str, int] = {}

    def add(self, name: str, n: int = 1) -> None:
        """Add `n` to `name`, e.g. `moonmesh_peer_bytes_total` or `moonmesh_x_total{peer="west"}`.

        Beyond the limit of names, new ones are counted under `REFUSED` instead.

        Raises:
            ValueError: for a name that is none, or a negative `n`.
        """
        if n < 0:
            raise ValueError(f"a counter only grows: {name} {n}")
        with self._lock:
            value = self._values.get(name)
            if value is None:
                if not self._NAME.fullmatch(name):
                    raise ValueError(f"not a counter's name: {name!r}")
                if len(self._values) >= self._limit:
                    name, n = self.REFUSED, 1
                value = self._values.get(name, 0)
            self._values[name] = value + n

    def snapshot(self) -> dict[str, int]:
        """All values, sorted by name."""
        with self._lock:
            return dict(sorted(self._values.items()))


counters = Counters()
"""This process's counters."""


class Samples:
    """The newest `limit` values of a quantity, for quantiles; safe from any thread."""

    def __init__(self, limit: int = 8192) -> None:
        self._lock = threading.Lock()
        self._values: deque[float] = deque(maxlen=limit)
        self.count = 0
        """Values ever added."""
        self.total = 0.0
        """Their sum."""

    def add(self, value: float) -> None:
        with self._lock:
            self._values.append(value)
            self.count += 1
            self.total += value

    def quantile(self, q: float) -> float | None:
        """The `q`-quantile (0..1, nearest rank) of the kept values; None without any."""
        with self._lock:
            ordered = sorted(self._values)
        if not ordered:
            return None
        return ordered[min(len(ordered) - 1, max(0, round(q * (len(ordered) - 1))))]

    def mean(self) -> float | None:
        """Mean of all values ever added; None without any."""
        with self._lock:
            return self.total / self.count if self.count else None
