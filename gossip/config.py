"""Every interval and limit of gossip, in one place."""

from __future__ import annotations

from dataclasses import dataclass

GAP_MIN = 0.02
"""Seconds between two hellos to one peer, however short the interval: what peers allow is 50 a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GossipConfig:
    """Intervals and limits of one group's gossip. Times are seconds where nothing else is said.

    Use a preset; change it with `replace`. Times hold for up to `full_mesh` groups; above, statements
    are made less often, and whatever waits for one is longer by the same factor.

    Raises:
        ValueError: if the values contradict each other.
    """

    # Speaking
    hello_interval: float = 1.0
    """Between two rounds of hellos."""
    hello_min_gap: float = 0.1
    """Between two statements, and between two hellos to one peer, at least."""
    full_mesh: int = 64
    """Groups up to which a round of hellos is for every peer, each with a new statement."""
    fanout: int = 8
    """Peers of a round above that."""
    rumour_extra: int = 6
    """A statement is relayed ceil(log2(groups)) and this many times by each group that learns it;
    above `full_mesh`."""
    push_pull_interval: float = 5.0
    """Between two rounds in which whole version vectors are compared."""
    push_pull_peers: int = 2
    """Peers of such a round."""

    # Noticing silence
    ask_after: float = 1.2
    """Hello intervals without a word from a peer itself until it is asked once more."""
    direct_after: float = 1.6
    """Hello intervals without a word from a peer itself until the link from it is called cut."""
    route_after: float = 2.0
    """Hello intervals that a link stays cut until nothing is routed to its peer."""
    phi: float = 8.0
    """Suspicion at which a peer is SUSPECT: -log10 of the chance that it is only late."""
    suspect_floor: float = 3.0
    """Without a newer statement: SUSPECT not before this ..."""
    suspect_ceiling: float = 6.0
    """... and no later than this."""
    down_after: float = 12.0
    """Without a newer statement until a SUSPECT peer is DOWN, if another group does not hear it either."""
    probe_peers: int = 3
    """Groups that are asked, each interval, about a peer that is not heard."""
    probe_timeout: float = 2.0
    """How long a group that is asked waits for news of that peer until it says that there are none."""
    health_max: int = 8
    """Stalls of our own, less calm intervals, that are counted: see `detector.LocalHealth`."""
    lead_after: float = 5.0
    """Hello intervals for which a later statement of our own must not have been followed by another,
    until we may speak above it: or else somebody is still speaking."""

    # Limits
    max_groups: int = 2048
    """Groups of the federation, this one included."""
    max_epoch: int = 1 << 32
    """Highest epoch that is believed. At a leader term a second it lasts 136 years, so a higher one
    is a fault, and believing it would lock the group's entry for ever."""
    max_seq: int = 1 << 48
    """Highest seq that is believed, for the same reason."""
    max_statement_bytes: int = 16 * 1024
    """Bytes of a statement's body."""
    max_vector_entries: int = 4096
    """Entries of a version vector in one hello; above `max_groups`, so that groups can be added
    one gateway after the other."""
    max_not_heard: int = 16
    """Names in `not_heard_from`; how many more there are is a number."""
    relay_per_hello: int = 128
    """Statements of others that one hello carries, and that are read of one."""
    relay_bytes_per_hello: int = 64 * 1024
    """Bytes of their bodies."""
    max_bad_relayed: int = 8
    """Statements in one hello that are not believed, after which the rest is not read: each costs the
    verification of a signature."""
    positions_per_hello: int = 1024
    """Namespaces of which one hello says where their logs stand."""
    max_hello_bytes: int = 512 * 1024
    """Bytes of a hello: twice of what one with all of the above can have in earnest."""
    probes_per_hello: int = 32
    """Probes, and answers to probes, that one hello carries, and that are read of one."""
    max_probed: int = 512
    """Questions about silent peers that are open here for others; who asks has its share of them."""
    max_events: int = 1024
    """Events kept until they are fetched; then the oldest are dropped and counted."""

    def __post_init__(self) -> None:
        if not 0 < self.hello_min_gap <= self.hello_interval:
            raise ValueError("hello_min_gap must be above 0 and at most hello_interval")
        if not self.hello_interval < self.suspect_floor <= self.suspect_ceiling < self.down_after:
            raise ValueError(
                "hello_interval < suspect_floor <= suspect_ceiling < down_after must hold"
            )
        if not 1 < self.ask_after < self.direct_after:
            raise ValueError("1 < ask_after < direct_after must hold")
        if max(self.max_epoch, self.max_seq) >= 1 << 64:
            raise ValueError("max_epoch and max_seq must stay below 2**64: the wire has 64 bits")
        if not 0 < self.max_groups <= self.max_vector_entries:
            raise ValueError("max_groups must be above 0 and at most max_vector_entries")
        if not 0 < self.phi <= 15:
            raise ValueError("phi must be above 0 and at most 15: beyond, 1 - 10**-phi is 1")
        times = (self.push_pull_interval, self.probe_timeout, self.lead_after)
        if min(times) <= 0 or self.route_after < 0:
            raise ValueError("times must be above 0")
        limits = (
            self.full_mesh, self.fanout, self.push_pull_peers, self.probe_peers, self.relay_per_hello,
            self.relay_bytes_per_hello, self.max_bad_relayed, self.probes_per_hello, self.max_probed,
            self.max_not_heard, self.max_statement_bytes, self.max_events, self.health_max,
            self.positions_per_hello, self.max_hello_bytes,
        )  # fmt: skip
        if min(limits) < 1 or self.rumour_extra < 0:
            raise ValueError("limits must be above 0")

    @classmethod
    def wan(cls) -> GossipConfig:
        """Between data centres (the default): survives a few lost hellos and seconds of jitter."""
        return cls()

    @classmethod
    def lan(cls) -> GossipConfig:
        """Within one building: notices a dead peer in about two seconds."""
        return cls.of_interval(0.5)

    @classmethod
    def test(cls) -> GossipConfig:
        """For tests on real processes: everything happens within a second or two."""
        return cls.of_interval(0.1)

    @classmethod
    def of_interval(cls, hello_interval: float) -> GossipConfig:
        """`wan`, with every time in proportion to another interval of hellos."""
        wan = cls.wan()
        times = hello_interval / wan.hello_interval
        return cls(
            hello_interval=hello_interval,
            hello_min_gap=min(wan.hello_min_gap, max(GAP_MIN, wan.hello_min_gap * times)),
            push_pull_interval=wan.push_pull_interval * times,
            suspect_floor=wan.suspect_floor * times,
            suspect_ceiling=wan.suspect_ceiling * times,
            down_after=wan.down_after * times,
            probe_timeout=wan.probe_timeout * times,
        )
