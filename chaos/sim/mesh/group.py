"""A simulated group: a Mooncake, engines, and a gateway put together as `federation.gateway` does it."""

from __future__ import annotations

import asyncio
import datetime
import os
import random
import shutil
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import grpc.aio

from chaos.sim.keys import CheapKey
from chaos.sim.mesh.client import Mooncake, SimAdmin, SimStore
from chaos.sim.mesh.loop import Node
from chaos.sim.mesh.rpc import SimChannel
from chaos.sim.mesh.server import Handle, Servers
from chaos.sim.mesh.serving import SimServing, SimSpawner
from chaos.sim.mesh.store import Pool
from federation.config import GroupFile
from federation.engine_side import EngineSide, engine_side
from federation.giving_back import GivingBack
from federation.how_we_are import tell_how_we_are
from federation.limits.guards import make_guards
from federation.listings import Listings
from federation.order_file import OrderFile
from federation.peering import Membership, OwnConfig, PeerConfig, Peering, Sharing
from federation.peers.processes import ServingProcesses
from federation.peers.setup import Setup
from federation.peers.side import PeerSide, peer_side
from federation.removal import Removal
from federation.switchboard import Switchboard
from federation.tracking import holdings_of
from federation.transfer.copies import Copies
from federation.transfer.slots import Slots
from federation.trust.credentials import Credentials, TlsIdentity
from federation.trust.handshakes import RefusalLog
from gossip.statement import Load
from local_group.admin import AdminClient
from local_group.holdings import Change
from local_group.journal import Entry, Journal
from local_group.ledger import Ledger
from local_group.store import StoreClient

if TYPE_CHECKING:
    from chaos.sim.mesh.world import MeshWorld

HOUSEKEEPING_SECONDS = 1.0
PORT = 7402


class SimKey(CheapKey):
    """A statement key, as peering.toml has it too."""

    @property
    def raw(self) -> bytes:
        return self.sign(b"raw")[:32]

    @property
    def public(self) -> SimKey:
        return self


class SimTls(TlsIdentity):
    """The same of its certificate."""

    def __init__(self, group: SimGroup) -> None:
        end = datetime.datetime(2100, 1, 1, tzinfo=datetime.timezone.utc)
        super().__init__(group.name, b"", b"", b"", end)
        object.__setattr__(self, "_servers", group.world.servers)

    def dial(self, address: str, options: Sequence[tuple[str, Any]]) -> grpc.aio.Channel:
        servers: Servers = getattr(self, "_servers")  # noqa: B009
        return cast(grpc.aio.Channel, SimChannel(servers, address, options, self.name))


class SimCredentials:
    """Who a group is, and the way to its peers: `federation.trust.credentials.Credentials`."""

    def __init__(self, group: SimGroup) -> None:
        self._group = group
        self.group = group.name
        self.federation = group.world.federation
        self.signing_key = group.key
        self.tls = SimTls(group)

    async def why_not(self, address: str, peer: str, seconds: float) -> str:
        return f"{address} does not answer"


class SimGroup:
    """What of a group outlives its gateways.

    Attributes:
        epoch: the highest that is on its disk.
        gateway: the one that runs, if one does.
        serving: the serving process that listened last.
        orders: what its operator has switched off.
        wrap: changes what its serving process says: of a hostile group.
        stalled_at: when its gateway was frozen, thawed, killed or started last.
    """

    def __init__(
        self, world: MeshWorld, name: str, config: GroupFile, capacity: int, folder: Path
    ) -> None:
        self.world = world
        self.name = name
        self.config = config
        self.folder = folder
        self.key = SimKey(world.random.randbytes(32))
        self.address = f"{name}:{PORT}"
        lease = config.master.lease_ttl_ms / 1000
        pool = Pool(
            capacity,
            lease,
            lambda: world.loop.now,
            lambda key, removed: world.truth.lost(name, key, removed),
        )
        self.mooncake = Mooncake(pool)
        self.sharing = Sharing({}, {})
        self.orders = OrderFile(config.data_dir)
        self.epoch = 0
        self.gateway: SimGateway | None = None
        self.serving: SimServing | None = None
        self.wrap: Callable[[str, Handle], Handle] = lambda method, handle: handle
        self.disturbed_at = 0.0
        self._clock = world.random.random() * 1e5  # its host was started at some time

    def meet(self, peers: Sequence[SimGroup], sharing: Sharing) -> None:
        """Who its peers are, and what is shared with each."""
        self.sharing = sharing
        self.member = Membership(
            Peering.model_construct(
                federation=self.world.federation,
                own=OwnConfig.model_construct(group=self.name, credentials=self.folder),
                peers=tuple(
                    PeerConfig.model_construct(name=p.name, address=p.address, key=cast(Any, p.key))
                    for p in peers
                ),
            ),
            sharing,
            cast(Credentials, SimCredentials(self)),
        )

    def new_node(self, what: str) -> Node:
        """Another process of it."""
        self.world.processes += 1
        return Node(f"{self.name}.{what}#{self.world.processes}", self.name, self._clock)

    # Its gateway

    def start(self) -> None:
        """Starts a gateway, unless one runs."""
        if self.gateway is not None:
            return
        self.epoch += 1
        node = self.new_node("gateway")
        self.disturbed_at = self.world.loop.now
        self.world.tell(self.name, f"{node} starts in epoch {self.epoch}")
        gateway = self.gateway = node.run(SimGateway, self, node)
        node.start(self.world.loop, gateway.run())

    def kill(self, *, disk: bool = False) -> None:
        """Ends its gateway, and so its serving process; with its disk, if it is lost."""
        self.disturbed_at = self.world.loop.now
        if self.gateway is not None:
            self.world.tell(self.name, f"{self.gateway.node} is killed")
            self.world.kill(self.gateway.node)
            self.kill_serving()  # bound to its gateway, it does not outlive it
            self.gateway.close()
            self.gateway = None
        if disk:
            shutil.rmtree(self.config.journal_dir, ignore_errors=True)
            self.epoch = 0

    def kill_serving(self) -> None:
        """Ends its serving process; its gateway starts another one."""
        node = self.serving_node
        if node is not None and node.running:
            self.world.tell(self.name, f"{node} is killed")
            self.world.kill(node)
            if self.gateway is not None:
                self.gateway.spawner.hang_up()

    @property
    def serving_node(self) -> Node | None:
        """The serving process that its gateway has started last."""
        return None if self.gateway is None else self.gateway.spawner.node

    def freeze(self, seconds: float) -> None:
        """Its gateway stands still."""
        gateway = self.gateway
        if gateway is None or gateway.node.stalled:
            return
        self.world.tell(self.name, f"{gateway.node} stands still for {seconds:.2f} s")
        self.disturbed_at = self.world.loop.now
        gateway.node.stall()
        self.world.loop.at(self.world.loop.now + seconds, None, self._thaw, gateway)

    def _thaw(self, gateway: SimGateway) -> None:
        if gateway.node.running and gateway.node.stalled:
            self.disturbed_at = self.world.loop.now
            gateway.node.thaw(self.world.loop)


class NotedLedger(Ledger):
    """As production's; the truth is told of each block of a peer that it is told of."""

    on_pulled: Callable[[bytes, int], None] = staticmethod(lambda fingerprint, name: None)

    def remember(self, entry: Entry) -> None:
        self.on_pulled(entry.fingerprint, entry.name)
        super().remember(entry)


class SimGateway:
    """One gateway process."""

    def __init__(self, group: SimGroup, node: Node) -> None:
        self.group = group
        self.node = node
        config = self._config = group.config
        member = group.member
        self._limits = config.limits
        names = [peer.name for peer in member.peering.peers]
        self.guards = make_guards(config, names, random.Random(), {})
        self.refusals = RefusalLog()
        self._exported = member.sharing.all_exported
        self._shared = self._exported | member.sharing.all_imported
        self.copies = Copies(config.limits.foreign_percent)
        self.holdings = holdings_of(config, self._moved, self._hidden)
        self._lost = asyncio.Event()
        self.spawner = SimSpawner(group)
        self.peers: PeerSide = peer_side(
            config,
            member,
            group.epoch,
            terms=self,
            guards=self.guards,
            refusals=self.refusals,
            on_problem=self._problem,
            on_tick=self._tell_serving,
        )
        self.serving: ServingProcesses | None = None
        self.switchboard = Switchboard(group.orders)
        self.switchboard.load(self.guards)
        self.store = SimStore(group.mooncake, random.Random(), config.limits.bounce_bytes)
        self.journal = Journal(config.journal_dir, config.limits.journal_bytes_max)
        self.ledger = NotedLedger(
            self.holdings,
            self.journal,
            imported=member.sharing.all_imported,
            foreign_max=config.limits.foreign_blocks,
            alone=True,
        )
        self.ledger.on_pulled = partial(group.world.truth.landed, group.name)
        self.side: EngineSide | None = None
        self.ready = False

    async def run(self) -> None:
        """As `federation.gateway.Gateway.run`, without its end: it is killed."""
        group, config, limits = self.group, self._config, self._limits
        serving = self.serving = ServingProcesses(
            Setup.of(config, group.member),
            self.spawner.as_spawner(),
            self.peers,
            holdings=self.holdings,
            exported=self._exported,
            gone=self._gone,
            lost=self._lost.set,
            refusals=self.refusals,
            on_problem=self._problem,
        )
        self.switchboard.serve_by(serving)
        await serving.start()
        admin = cast(AdminClient, SimAdmin(group.mooncake))
        listings = Listings(
            self.ledger,
            admin,
            limits,
            self._problem,
            namespaces=self._exported,
            classify=config.naming.classify,
        )
        side = self.side = engine_side(
            config,
            exported=self._exported,
            shared=self._shared,
            store=cast(StoreClient, self.store),
            ledger=self.ledger,
            copies=self.copies,
            guards=self.guards,
            slots=Slots(limits.staging_bytes),
            subscriptions=self.peers.sessions.subscriptions,
            on_problem=self._problem,
        )
        self.switchboard.pull_by(side.puller, self.peers.sessions.subscriptions)
        removal = Removal(self.store, self.holdings, listings.stored_keys)
        await listings.restore()
        serving.begin()
        self.ready = True
        parts: list[Coroutine[Any, Any, None]] = [
            side.admission.run(),
            self._housekeeping(side, serving),
            listings.run(self._lost),
            GivingBack(self.copies, removal, admin).run(),
            self.switchboard.watch(),
            serving.failed(),
            self._speak(serving),
        ]
        await asyncio.gather(*parts)

    async def _speak(self, serving: ServingProcesses) -> None:
        await serving.listening()
        self._say_how_we_are(serving)
        await self.peers.sessions.run()

    async def _housekeeping(self, side: EngineSide, serving: ServingProcesses) -> None:
        while True:
            side.staging.expire(time.monotonic())
            self._say_how_we_are(serving)
            await asyncio.sleep(HOUSEKEEPING_SECONDS)

    def _say_how_we_are(self, serving: ServingProcesses) -> None:
        load = Load(
            serving.pulls, 0
        )  # its bytes a second are counted by process, and here all are one
        store = cast(StoreClient, self.store)
        tell_how_we_are(self.peers.gossip, serving, store, load, self._limits)

    def close(self) -> None:
        """What the kernel closes when a process ends."""
        self.spawner.close()
        if self.side is not None:
            os.close(self.side.slots.fd)

    # Its terms: it leads as long as it runs

    def valid(self) -> bool:
        return True

    async def above(self, floor: int) -> int:
        self.group.epoch = max(self.group.epoch, floor) + 1
        return self.group.epoch

    # As in production

    def _moved(self, change: Change) -> None:
        if self.serving is not None:
            self.serving.take(change)

    def _hidden(self, change: Change) -> None:
        self.copies.follow(self.holdings, change.fingerprint, change.name)

    def _tell_serving(self) -> None:
        if self.serving is not None:
            self.serving.nudge()

    def _gone(self, fingerprint: bytes, name: int, since: float, changed: bool) -> None:
        held = self.holdings.get(fingerprint, name)
        if held is None or held.since != since:
            return
        if changed:
            self.ledger.withhold(fingerprint, name)
        else:
            self.holdings.withdraw(fingerprint, name)

    def _problem(self, what: str) -> None:
        self.group.world.tell(self.group.name, what)
