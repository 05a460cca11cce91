"""The serving process of a simulated gateway: put together as `federation.serving` does it."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from chaos.sim.mesh.client import SimAdmin, SimStore
from chaos.sim.mesh.loop import Node
from chaos.sim.mesh.pipe import End, make_pair
from chaos.sim.mesh.server import Server
from federation.limits.guards import make_guards
from federation.limits.names import Kind
from federation.limits.orders import Orders
from federation.peers.arrivals import server_bounds
from federation.peers.callers import Callers
from federation.peers.channel import Channel, message_bytes_max
from federation.peers.gossip_config import gossip_config
from federation.peers.lease_book import LeaseBook, make_book
from federation.peers.relay import Relay
from federation.peers.service import OVERSIZE_READ_FACTOR, PeerService
from federation.peers.spawn import Spawned, Spawner
from federation.tracking import offering
from federation.transfer.server import BlockServer
from federation.trust.handshakes import RefusalLog
from local_group.breaker import BreakerState
from moonmesh.v1 import peer_pb2, serving_pb2

if TYPE_CHECKING:
    from chaos.sim.mesh.group import SimGroup

LOAD_SECONDS = 0.3
"""Until a process that is started has loaded and does something."""
KILLED = -9


class SimServing:
    """One serving process.

    Args:
        end: of the channel to its gateway.
        book: the memory with its predecessor's leases.
    """

    def __init__(self, group: SimGroup, node: Node, end: End, book: int) -> None:
        self.group = group
        self.node = node
        self._end = end
        config = group.config
        self.callers = Callers.of(group.member)
        self.guards = make_guards(config, self.callers, random.Random(), {})
        for name, counts in LeaseBook(book, self.callers).books.items():
            self.guards[name].incoming.join(counts, time.monotonic())
        os.close(book)
        self.refusals = RefusalLog()
        self.store: SimStore | None = None
        self.service: PeerService | None = None
        self.server: Server | None = None
        self.offers, self.replica = offering(config, self.callers.all_exported, self._moved)
        self.relay: Relay | None = None

    async def run(self) -> None:
        """Serves until its gateway is gone."""
        await asyncio.sleep(LOAD_SECONDS)
        limits = self.group.config.limits
        channel = await Channel.open(cast(Any, self._end), message_bytes_max(limits))
        if await channel.receive(serving_pb2.ToServing) is None:  # its setup, which it has
            return
        relay = self.relay = Relay(
            channel,
            self.replica,
            callers=self.callers,
            config=gossip_config(limits),
            report=self._report,
            hushed=self._hushed,
            ordered=self._ordered,
        )
        await asyncio.gather(
            relay.listen(), relay.speak(), relay.tidy(), relay.watch(), self._serve(relay)
        )

    async def _serve(self, relay: Relay) -> None:
        group, limits = self.group, self.group.config.limits
        mooncake = group.mooncake
        self.store = SimStore(mooncake, random.Random(), limits.bounce_bytes)
        service = self.service = PeerService(
            callers=self.callers,
            hellos=relay,
            offers=self.offers,
            blocks=BlockServer(
                store=self.store,
                master=SimAdmin(mooncake),
                holdings=self.replica.holdings,
                naming=group.config.naming,
                limits=limits,
                gone=relay.gone,
                lost=relay.lost,
            ),
            limits=limits,
            guards=self.guards,
            refusals=self.refusals,
            told=lambda caller: peer_pb2.NamespacesReply(),
        )
        await relay.may_serve()
        self.server = Server(
            self.node,
            service.handlers(),
            group.world.federation,
            calls_max=server_bounds(limits, service.peers)[0],
            message_bytes_max=OVERSIZE_READ_FACTOR * limits.control_message_bytes_max,
            wrap=group.wrap,
        )
        group.world.servers.listen(group.address, self.server)
        relay.say(serving_pb2.FromServing(listening=serving_pb2.Listening()))
        group.serving = self

    def _moved(self, fingerprint: bytes) -> None:
        if self.service is not None:
            self.service.moved(fingerprint)

    def _hushed(self) -> None:
        if self.service is not None:
            self.service.wake()

    def _ordered(self, orders: Orders) -> None:
        now = {name: orders.of(name) for name in self.guards}
        for name, order in now.items():
            self.guards[name].incoming.order = order
        if self.service is not None:
            self.service.ordered(now)

    def _report(self, details: bool) -> serving_pb2.ServingReport:
        stats = None if self.store is None else self.store.stats()
        return serving_pb2.ServingReport(
            store_well=stats is None or stats.breaker != BreakerState.OPEN.value,
            pulls=sum(guard.incoming.open(Kind.PULL) for guard in self.guards.values()),
        )


class SimChild:
    """What a gateway has of a process that it has started: `subprocess.Popen`, as far as it is used."""

    pid = -1

    def __init__(self, group: SimGroup, node: Node, end: End) -> None:
        self.returncode: int | None = None
        self._group = group
        self._node = node
        self.end = end

    def poll(self) -> int | None:
        if not self._node.running and self.returncode is None:
            self.returncode = KILLED
        return self.returncode

    def kill(self) -> None:
        if self.returncode is None:
            self.returncode = KILLED
            self._group.world.kill(self._node)
            self.end.close()

    terminate = kill


class SimSpawner:
    """Starts serving processes, as `federation.peers.spawn` does."""

    def __init__(self, group: SimGroup) -> None:
        self.log = Path("/nonexistent/serving.log")
        self.reserve_pid = -1
        self._group = group
        self._book = make_book()
        self._last: SimChild | None = None

    def take(self) -> Spawned:
        group = self._group
        ours, theirs = make_pair()
        node = group.new_node("serving")
        serving = SimServing(group, node, theirs, os.dup(self._book))
        self._last = SimChild(group, node, theirs)
        node.start(group.world.loop, serving.run())
        return Spawned(
            cast("subprocess.Popen[bytes]", self._last), cast(Any, ours), time.monotonic()
        )

    def prepare(self) -> None:
        """There is always one in reserve, as far as anybody asks."""

    def close(self) -> None:
        if self._book >= 0:
            os.close(self._book)
            self._book = -1

    def hang_up(self) -> None:
        """The process that was started last is gone, and so is its end of the channel."""
        if self._last is not None:
            self._last.end.close()

    @property
    def node(self) -> Node | None:
        """The process that was started last."""
        return None if self._last is None else self._last._node

    def as_spawner(self) -> Spawner:
        """For production, which knows no other kind."""
        return cast(Spawner, self)
