"""Every interval and limit of gossip, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GossipConfig:
    """Intervals (seconds) and limits of one group's gossip. Use a preset; change it with `replace`.

    Raises:
        ValueError: if the values contradict each other.
    """

    hello_interval: float = 1.0
    """Seconds between two hellos to a peer; each has a new statement."""
    hello_min_gap: float = 0.1
    """Seconds between two statements at least, even if the group's health flaps."""
    suspect_after: float = 4.0
    """Seconds without a newer statement until a peer is SUSPECT: nothing is routed to it."""
    down_after: float = 15.0
    """Seconds without a newer statement until a peer is DOWN."""

    max_groups: int = 64
    """Groups in the federation, this one included: the full mesh costs n² hellos an interval."""
    max_epoch: int = 1 << 32
    """Highest epoch that is believed. At a leader term a second it lasts 136 years, so a higher one
    is a fault, and believing it would lock the group's entry for ever."""
    max_seq: int = 1 << 48
    """Highest seq that is believed, for the same reason."""
    max_statement_bytes: int = 16 * 1024
    """Bytes of a statement's body."""
    max_vector_entries: int = 256
    """Entries of a version vector in one hello; above `max_groups`, so that groups can be added
    one gateway after the other."""
    max_reason_chars: int = 256
    """Characters of a health reason."""
    max_events: int = 1024
    """Events kept until they are fetched; then the oldest are dropped and counted."""

    def __post_init__(self) -> None:
        if not 0 < self.hello_min_gap <= self.hello_interval:
            raise ValueError("hello_min_gap must be above 0 and at most hello_interval")
        if not self.hello_interval < self.suspect_after < self.down_after:
            raise ValueError("hello_interval < suspect_after < down_after must hold")
        if max(self.max_epoch, self.max_seq) >= 1 << 64:
            raise ValueError("max_epoch and max_seq must stay below 2**64: the wire has 64 bits")
        if not 0 < self.max_groups <= self.max_vector_entries:
            raise ValueError("max_groups must be above 0 and at most max_vector_entries")
        if min(self.max_statement_bytes, self.max_reason_chars, self.max_events) < 1:
            raise ValueError("limits must be above 0")

    @classmethod
    def wan(cls) -> GossipConfig:
        """Between data centres (the default): survives a few lost hellos and seconds of jitter."""
        return cls()

    @classmethod
    def lan(cls) -> GossipConfig:
        """Within one building: notices a dead peer in about two seconds."""
        return cls(hello_interval=0.5, suspect_after=2.0, down_after=6.0)

    @classmethod
    def test(cls) -> GossipConfig:
        """For tests on real processes: everything happens within a second or two."""
        return cls(hello_interval=0.1, hello_min_gap=0.02, suspect_after=0.6, down_after=2.0)
