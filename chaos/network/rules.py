"""What the kernel is told, as text for its tools: pure functions, so that they can be read and tested.

All traffic between places is forwarded by one namespace, the hub. So every direction between two places
is a pair of addresses there, and nothing has to be set anywhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chaos.network.base import Fault

DELAY_DEVICE = "delay"
DELAY_TABLE = 100
"""Routing table whose only way is through the process that delays."""
BURST = "64kb"
QUEUE = "256kb"
"""Bytes that wait for a slow link, before more are dropped: 0.2 s at 10 Mbit/s."""


@dataclass(frozen=True)
class Way:
    """A direction between two places, by their numbers, which count from 1."""

    source: int
    to: int

    @property
    def addresses(self) -> tuple[str, str]:
        """Of where it begins and where it ends."""
        return address(self.source), address(self.to)


def address(number: int) -> str:
    """Of a place."""
    return f"10.71.{number}.2"


def gateway(number: int) -> str:
    """The hub's own, on the way to a place."""
    return f"10.71.{number}.1"


def device(number: int) -> str:
    """The hub's, on the way to a place."""
    return f"place{number}"


def wires(hub: str, names: Sequence[str]) -> str:
    """A batch for `ip`, in the hub: from each namespace of `names` a wire to it.

    Neither end is ever in the host's own namespace.
    """
    lines = []
    for number, name in enumerate(names, 1):
        lines += [
            f"link add {device(number)} netns {hub} type veth peer name eth0 netns {name}",
            f"address add {gateway(number)}/24 dev {device(number)}",
            f"link set {device(number)} up",
        ]
    lines += [
        f"tuntap add dev {DELAY_DEVICE} mode tun",
        f"link set {DELAY_DEVICE} up",
        f"route add default dev {DELAY_DEVICE} table {DELAY_TABLE}",
    ]
    return _text(lines)


def end(number: int) -> str:
    """A batch for `ip`, in a place: its end of the wire, and its own loopback."""
    return _text(
        [
            "link set lo up",
            f"address add {address(number)}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {gateway(number)}",
        ]
    )


def shapers(count: int) -> str:
    """A batch for `tc`, in the hub: a root on each wire, to hang limits on; it limits nothing."""
    return _text([f"qdisc add dev {device(n)} root handle 1: htb" for n in range(1, count + 1)])


def filters(faults: Mapping[Way, Fault]) -> str:
    """All packet rules, for `iptables-restore`: what was there before is replaced in one step."""
    rules = []
    for way, fault in sorted(faults.items(), key=lambda item: (item[0].source, item[0].to)):
        source, to = way.addresses
        match = f"-A FORWARD -s {source} -d {to}"
        if fault.mode == "cut":
            rules.append(f"{match} -j DROP")
        elif fault.mode == "reset":
            rules.append(f"{match} -p tcp -j REJECT --reject-with tcp-reset")
        elif fault.mode == "loss":
            share = f"-m statistic --mode random --probability {fault.share:.6f}"
            rules.append(f"{match} {share} -j DROP")
    return _text(["*filter", ":FORWARD ACCEPT [0:0]", *rules, "COMMIT"])


def limit(way: Way, mbit: float) -> str:
    """A batch for `tc`: what flows this way goes at `mbit` Mbit/s; the rest of the wire is free."""
    place, flow = f"dev {device(way.to)}", f"1:{way.source:x}"
    return _text(
        [
            f"class add {place} parent 1: classid {flow} htb rate {_bits(mbit)} burst {BURST}",
            f"qdisc add {place} parent {flow} handle {way.source + 1:x}: bfifo limit {QUEUE}",
            f"filter add {place} parent 1: protocol ip prio {way.source} "
            f"u32 match ip src {address(way.source)}/32 flowid {flow}",
        ]
    )


def unlimit(way: Way) -> str:
    """A batch for `tc`: takes back `limit`. What waits is dropped, and sent again by TCP."""
    place = f"dev {device(way.to)}"
    return _text(
        [
            f"filter del {place} parent 1: prio {way.source}",
            f"class del {place} classid 1:{way.source:x}",
        ]
    )


def detour(way: Way) -> list[str]:
    """Arguments for `ip rule add` and `del`: what flows this way goes through the process that delays.

    What comes back from it has another device to come from, and takes the straight way.
    """
    source, to = way.addresses
    return ["iif", device(way.source), "from", source, "to", to, "lookup", str(DELAY_TABLE)]


def _bits(mbit: float) -> str:
    return f"{max(1, round(mbit * 1e6))}bit"


def _text(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n"
