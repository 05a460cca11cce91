"""How busy this group is with serving its peers, as it tells them."""

from __future__ import annotations

from federation.counters import counters
from federation.peers.processes import ServingProcesses
from gossip.statement import Load

SERVED_BYTES = "moonmesh_served_bytes_total"


class LoadMeter:
    """Measures what a serving process does, from what it reports once a second."""

    def __init__(self) -> None:
        self._bytes = 0
        self._at: float | None = None

    def measure(self, serving: ServingProcesses, now: float) -> Load:
        """Pulls open now, and bytes a second since the last call."""
        served = counters.snapshot().get(SERVED_BYTES, 0)
        seconds = 0.0 if self._at is None else now - self._at
        rate = int((served - self._bytes) / seconds) if seconds > 0 else 0
        self._bytes, self._at = served, now
        return Load(serving.pulls, max(0, rate))
