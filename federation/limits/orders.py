"""What an operator has switched off: a peer, or the federation; sans-IO."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

RECORD_BYTES_MAX: Final = 32 * 1024
"""Of a record: 256 names of 31 characters take 14 KiB."""
NAMES_MAX: Final = 256
"""Peers with an order of their own; a group has 63, and may have had others."""
AGAIN_SECONDS: Final = 1.0
"""What a peer that is refused by an order is told to wait: nobody knows when it is taken back, and then it is
to be heard of soon."""
REASON_CHARS: Final = 120
"""Of what a peer says of its own orders; the rest is cut off."""


class Order(str, enum.Enum):
    """What holds for one peer. The value is its name in `status` and in the record."""

    ON = "on"
    PAUSED = "paused"
    """Nothing is taken from it and nothing served to it; what is under way is ended."""
    DRAINED = "drained"
    """As paused, but what is under way goes on to its end."""
    OFF = "off"
    """As paused, with every peer: the federation is off."""


SAID: Final[Mapping[Order, str]] = {
    Order.ON: "",
    Order.PAUSED: "paused by its operator",
    Order.DRAINED: "drained by its operator",
    Order.OFF: "its operator has switched its federation off",
}
"""What a peer that is refused hears."""

SAID_HERE: Final[Mapping[Order, str]] = {
    Order.ON: "",
    Order.PAUSED: "paused here: moonmesh peer resume",
    Order.DRAINED: "drained here: moonmesh peer resume",
    Order.OFF: "the federation is off here: moonmesh federation on",
}
"""What our own operators and routers hear."""


@dataclass(frozen=True)
class Orders:
    """All that is switched off in one place.

    Attributes:
        off: the whole federation.
        peers: those with an order of their own, which is not `ON` or `OFF`.
        changed_at: seconds since 1970; 0 if nothing ever was.
    """

    off: bool = False
    peers: Mapping[str, Order] = field(default_factory=dict)
    changed_at: float = 0.0

    def of(self, peer: str) -> Order:
        """What holds for a peer."""
        return Order.OFF if self.off else self.peers.get(peer, Order.ON)

    def with_peer(self, peer: str, order: Order, at: float) -> Orders:
        """The same with another order for one peer.

        Raises:
            ValueError: more than `NAMES_MAX` peers have one.
        """
        peers = {name: kept for name, kept in self.peers.items() if name != peer}
        if order is not Order.ON:
            peers[peer] = order
        if len(peers) > NAMES_MAX:
            raise ValueError(f"{len(peers)} peers with orders; {NAMES_MAX} is the limit")
        return Orders(self.off, peers, at)

    def with_federation(self, *, off: bool, at: float) -> Orders:
        """The same with the federation off, or on; what holds for single peers stays."""
        return replace(self, off=off, changed_at=at)

    def encode(self) -> bytes:
        """As it is kept, and told to the serving process."""
        peers = {name: order.value for name, order in sorted(self.peers.items())}
        record = {"federation": "off" if self.off else "on", "peers": peers, "at": self.changed_at}
        return json.dumps(record).encode()

    @classmethod
    def decode(cls, raw: bytes) -> Orders:
        """What `encode` made.

        Raises:
            ValueError: it did not make this.
        """
        if len(raw) > RECORD_BYTES_MAX:
            raise ValueError(f"{len(raw)} bytes; {RECORD_BYTES_MAX} is the limit")
        found = json.loads(raw)
        if not isinstance(found, dict) or set(found) != {"federation", "peers", "at"}:
            raise ValueError("it has other fields than federation, peers and at")
        peers, at = found["peers"], found["at"]
        if found["federation"] not in ("on", "off"):
            raise ValueError("federation is neither on nor off")
        if not isinstance(peers, dict) or len(peers) > NAMES_MAX:
            raise ValueError(f"peers is no table of {NAMES_MAX} at most")
        if not isinstance(at, (int, float)) or isinstance(at, bool):
            raise ValueError("at is no time")
        orders = {name: Order(value) for name, value in peers.items()}
        if not set(orders.values()) <= {Order.PAUSED, Order.DRAINED}:
            raise ValueError("a peer is neither paused nor drained")
        return cls(found["federation"] == "off", orders, float(at))
