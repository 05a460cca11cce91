"""What a topology needs of the network between its gateways, however it is made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

Mode = Literal["clear", "cut", "reset", "rate", "delay", "loss", "jitter", "reorder"]
Kind = Literal["loopback", "namespaces"]
Congestion = Literal["host", "reno"]

STEP = 100
"""Ports of one place."""
COLLECTOR = 50
"""Offset of the port where a group's collector listens."""
PEERS = 2
"""Offset of the port where a gateway is reached by its peers."""


@dataclass(frozen=True)
class Fault:
    """How bytes flow in one direction between two places.

    Attributes:
        mbit: for `rate`, Mbit/s.
        ms: one way, in milliseconds: for `delay`; for `jitter` at most; for `reorder` of the packets that are
            overtaken.
        share: for `loss` and `reorder`, of packets.
    """

    mode: Mode = "clear"
    mbit: float = 0.0
    ms: float = 0.0
    share: float = 0.0


CLEAR = Fault()


@dataclass(frozen=True)
class Places:
    """Who is connected: groups and places for hostile peers, with ports from `port_base` up."""

    groups: tuple[str, ...]
    hostile: tuple[str, ...]
    port_base: int

    @property
    def names(self) -> tuple[str, ...]:
        """Of all places, groups first."""
        return self.groups + self.hostile

    def base(self, name: str) -> int:
        """First port of a place: a group's `port_base`."""
        return self.port_base + self.names.index(name) * STEP

    def peers_port(self, name: str) -> int:
        """Where a place takes connections of peers."""
        return self.base(name) + PEERS


class Network(ABC):
    """Between `up` and `down`: gateways reach each other, and what lies between can be broken.

    The two directions between two places are apart: `change` acts on bytes that flow from `source` to
    `to`, whoever dialled.
    """

    kind: ClassVar[Kind]
    modes: ClassVar[frozenset[Mode]]
    """What it can be changed to."""

    def __init__(self, places: Places) -> None:
        self.places = places

    @abstractmethod
    async def up(self) -> None:
        """Makes it, with nothing broken.

        Raises:
            ChaosError: if that fails.
        """

    @abstractmethod
    async def down(self) -> list[str]:
        """Removes it, after everything that ran in it has ended; what could not be removed."""

    @abstractmethod
    def listen(self, name: str) -> str:
        """The address at which a place takes connections of peers, at `Places.peers_port`."""

    @abstractmethod
    def address(self, source: str, to: str) -> str:
        """`host:port` where `source` reaches `to`."""

    @abstractmethod
    def inside(self, name: str) -> Sequence[str]:
        """What to put before a command so that it runs in a place."""

    @abstractmethod
    async def change(self, source: str, to: str, fault: Fault) -> None:
        """From now on bytes flow so from `source` to `to`.

        Raises:
            ChaosError: this network cannot do that.
        """

    @abstractmethod
    async def heal(self) -> None:
        """Takes back all that was changed."""

    @property
    @abstractmethod
    def pids(self) -> list[int]:
        """Of the processes that the network consists of."""
