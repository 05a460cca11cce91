"""The gateway: the process beside a group that speaks for it. Puts the parts together; no logic here."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Sequence

from federation.admin_service import AdminService
from federation.allocator import give_back_now_and_then
from federation.background import Background
from federation.config import GroupFile
from federation.endpoints import Endpoints, inner_credentials
from federation.engine_side import engine_side
from federation.following.follower import Follower
from federation.following.leader import GroupService
from federation.following.outgoing import Outgoing
from federation.garbage import leave_alone_what_is_there
from federation.giving_back import GivingBack
from federation.how_we_are import tell_how_we_are
from federation.kv_events import KvEvents
from federation.leading import Leading
from federation.limits.guards import make_guards
from federation.listings import Listings
from federation.local_store import ADMIN_SECONDS, connect_store
from federation.namespaces import namespaces_document
from federation.order_file import OrderFile
from federation.peering import Membership
from federation.peers.load import LoadMeter
from federation.peers.processes import ServingProcesses
from federation.peers.pulling import staging_memory
from federation.peers.setup import Setup
from federation.peers.side import PeerSide, peer_side
from federation.peers.spawn import Spawner
from federation.pool import PoolWatch, has_places
from federation.purge import Purge
from federation.removal import Removal
from federation.status import Problems, StatusReport
from federation.switchboard import Switchboard
from federation.timeouts import unless
from federation.tracking import holdings_of
from federation.transfer.copies import Copies
from federation.transfer.staging import Staging
from federation.trial_watch import TrialWatch
from federation.trust.credentials import EngineCredentials
from federation.trust.handshakes import RefusalLog, StderrWatch
from federation.watchdog import StallBook
from local_group.admin import AdminClient
from local_group.holdings import Change
from local_group.journal import Entry, Journal
from local_group.ledger import Ledger
from local_group.store import StoreClient

log = logging.getLogger("moonmesh.gateway")

HOUSEKEEPING_SECONDS = 1.0


class Gateway:
    """All parts of one gateway.

    Args:
        config: the group.
        member: its place in the federation; None for a group that runs alone.
        spawner: where its serving process comes from; for a member only.
        stalls: what its event loop was held up by.
        trials: whether what `member` goes by is on trial.
    """

    def __init__(
        self,
        config: GroupFile,
        member: Membership | None,
        spawner: Spawner | None,
        stalls: StallBook,
        trials: TrialWatch,
    ) -> None:
        self._config = config
        self._limits = config.limits
        self._member = member
        self._spawner = spawner
        self._stalls = stalls
        self._trials = trials
        names = [peer.name for peer in member.peering.peers] if member else []
        self._guards = make_guards(config, names, random.Random(), os.environ)
        self._refusals = RefusalLog()
        self._dialled = RefusalLog()
        self._problems = Problems()
        self._background = Background()
        self._switchboard = Switchboard(OrderFile(config.data_dir))
        self._peers: PeerSide | None = None
        self._exported = member.sharing.all_exported if member else frozenset()
        self._shared = self._exported | (member.sharing.all_imported if member else frozenset())
        self._leading = Leading(config, self._problem)
        self._copies = Copies(config.limits.foreign_percent)
        self._holdings = holdings_of(config, self._moved, self._hidden)
        self._group = GroupService(self._holdings, self._shared, self._leading)
        self._ledger: Ledger | None = None
        self._follower: Follower | None = None
        self._serving: ServingProcesses | None = None
        self._lost = asyncio.Event()
        self._load = LoadMeter()

    async def run(self, stop: asyncio.Event) -> None:
        """Serves until `stop` is set.

        Raises:
            MoonmeshError: if something of the configuration cannot be used.
        """
        config, serving = self._config, None
        leading = self._leading
        self._switchboard.load(self._guards)
        on_trial = self._trials.run(lambda: self._peers.reached() if self._peers else ())
        self._background.start(on_trial)
        admin = AdminClient(config.admin_url, ADMIN_SECONDS)
        pool = None
        if self._member and has_places(config):
            pool = PoolWatch(config, leading, admin, self._is_elsewhere)
        with StderrWatch(self._refusals, dialled=self._dialled, listens=config.gateway.engines_tcp):
            try:
                if not await unless(stop, leading.start(pool.look if pool else None)):
                    return
                epoch = leading.epoch if leading.valid() else None
                if self._member and self._spawner:
                    self._peers = self._peer_side(self._member, epoch)
                    serving = self._serving_processes(self._member, self._spawner, self._peers)
                    self._switchboard.serve_by(serving)
                    await serving.start()  # they connect while we do
                self._serving = serving
                store = await connect_store(config, stop)
                if store is None:
                    return
                try:
                    await self._serve(stop, store, admin, pool)
                finally:
                    await asyncio.to_thread(store.close)
            finally:
                if serving:
                    await serving.close()
                await leading.end()
                await admin.close()

    async def _serve(
        self, stop: asyncio.Event, store: StoreClient, admin: AdminClient, pool: PoolWatch | None
    ) -> None:
        config, limits, member = self._config, self._limits, self._member
        peers, serving, holdings = self._peers, self._serving, self._holdings
        naming = config.naming
        journal = Journal(config.journal_dir, limits.journal_bytes_max)
        ledger = self._ledger = Ledger(
            holdings,
            journal,
            self._wrote,
            imported=member.sharing.all_imported if member else (),
            foreign_max=limits.foreign_blocks,
            alone=config.coordination.alone,
            elsewhere=lambda: bool(self._leading.barred),
        )
        listings = Listings(
            ledger,
            admin,
            limits,
            self._problem,
            namespaces=self._exported,
            classify=naming.classify,
        )
        events = KvEvents.of(
            config, self._exported, ledger, admin, rescan=self._lost.set, on_problem=self._problem
        )
        inner = inner_credentials(config, member)
        if member:
            self._follower = self._make_follower(ledger, listings, inner)
        slots, pulling = staging_memory(config, member, self._problem)
        side = engine_side(
            config,
            slots=slots,
            exported=self._exported,
            shared=self._shared,
            store=store,
            ledger=ledger,
            copies=self._copies,
            guards=self._guards,
            subscriptions=peers.sessions.subscriptions if peers else None,
            on_problem=self._problem,
        )
        staging, puller = side.staging, side.puller
        self._switchboard.pull_by(puller, peers.sessions.subscriptions if peers else None)
        report = StatusReport(
            config=config,
            leading=self._leading,
            group=self._group,
            follower=self._follower,
            store=store,
            holdings=holdings,
            staging=staging,
            slots=side.slots,
            puller=puller,
            queues={
                "admission_blocks": lambda: side.admission.queued,
                "journal_bytes": lambda: ledger.journal_bytes,
                "foreign_blocks": lambda: ledger.remembered,
                "copies_bytes": lambda: self._copies.bytes,
                "feed_blocks": lambda: self._serving.waiting if self._serving else 0,
                "pulls": lambda: puller.waiting,
                "engines": lambda: side.engines.attached.count(time.monotonic()),
                "followers_blocks": lambda: self._group.waiting,
            },
            problems=self._problems,
            refusals=self._refusals,
            listings=listings,
            dialled=self._dialled,
            peers=peers,
            serving=serving,
            pulling=pulling,
            switchboard=self._switchboard,
            stalls=self._stalls,
            trials=self._trials,
        )
        removal = Removal(store, holdings, listings.stored_keys)
        purge = Purge(removal=removal, holdings=holdings, staging=staging)
        admin_service = AdminService(
            report.document,
            purge,
            peers,
            lambda: namespaces_document(config, peers, listings.unmatched),
            self._switchboard.take,
            pool.adopt if pool else None,
        )
        endpoints, start = Endpoints(), self._background.start
        try:
            if pulling and peers:
                pulling.start(peers.sessions.links.values())
            await listings.restore()
            if serving:
                serving.begin()
            await endpoints.serve_engines(
                config, side.engines, side.router, self._group, admin_service, side.slots
            )
            if inner:
                await endpoints.serve_remote_engines(
                    config, side.engines, side.router, self._group, inner
                )
            start(side.admission.run())
            start(self._housekeeping(staging, store))
            start(give_back_now_and_then())
            start(listings.run(self._lost))
            start(GivingBack(self._copies, removal, admin).run())
            start(self._switchboard.watch())
            if events:
                start(events.run())
            if serving and peers:
                if not await unless(stop, serving.listening()):
                    return
                start(serving.failed())
                self._say_how_we_are(store)  # the first that peers hear is that we are well
                start(peers.sessions.run())
            start(self._leading.run(self._lead, self._follow))
            if self._follower:
                start(self._follower.run())
            if pool:
                start(pool.run())
            leave_alone_what_is_there()
            await endpoints.ready()
            self._trials.ready = True
            log.info("group %s serves: %s", config.name, self._leading.role)
            await stop.wait()
        finally:
            await endpoints.not_ready()
            self._group.close()
            await self._background.end()
            await puller.close()
            if pulling:
                await pulling.close()
            if peers:
                await peers.sessions.close()
            # Beside the serving process's end: Mooncake takes most of a second to let go of either.
            await asyncio.gather(endpoints.stop(store), *([serving.close()] if serving else []))
            await ledger.close()

    # Parts

    def _peer_side(self, member: Membership, epoch: int | None) -> PeerSide:
        return peer_side(
            self._config,
            member,
            epoch,
            terms=self._leading,
            guards=self._guards,
            refusals=self._refusals,
            on_problem=self._problem,
            on_tick=self._tell_serving,
        )

    def _serving_processes(
        self, member: Membership, spawner: Spawner, peers: PeerSide
    ) -> ServingProcesses:
        return ServingProcesses(
            Setup.of(self._config, member),
            spawner,
            peers,
            holdings=self._holdings,
            exported=self._exported,
            gone=self._gone,
            lost=self._lost.set,
            refusals=self._refusals,
            on_problem=self._problem,
        )

    def _make_follower(
        self, ledger: Ledger, listings: Listings, inner: EngineCredentials | None
    ) -> Follower:
        follower = Follower(
            self._leading,
            ledger,
            Outgoing(),
            self._shared,
            self._limits,
            list_blocks=listings.correct,
            credentials=inner,
            on_problem=self._problem,
        )
        follower.bar(self._leading.barred)
        if not self._leading.valid():
            follower.follow()
        return follower

    # What happens by itself

    async def _housekeeping(self, staging: Staging, store: StoreClient) -> None:
        while True:
            staging.expire(time.monotonic())
            self._say_how_we_are(store)
            await asyncio.sleep(HOUSEKEEPING_SECONDS)

    def _lead(self, epoch: int) -> None:
        log.info("leads in epoch %d", epoch)
        if self._follower:
            self._follower.rest()
        if self._peers:
            self._peers.sessions.lead(epoch)

    def _follow(self, epoch: int) -> None:
        log.warning("epoch %d is over: silent until this gateway leads again", epoch)
        self._group.rest()
        if self._peers:
            self._peers.sessions.hurry()  # it notices, and is silent
        if self._follower:
            self._follower.follow()

    def _is_elsewhere(self, why: str) -> None:
        """What there is to say against this place's pool; "" for nothing."""
        if self._leading.barred and not why:
            self._lost.set()  # nothing was taken from listings meanwhile
        self._leading.bar(why)
        if self._follower:
            self._follower.bar(why)

    # Small wiring

    def _say_how_we_are(self, store: StoreClient) -> None:
        if self._peers is not None and self._serving is not None:
            load = self._load.measure(self._serving, time.monotonic())
            tell_how_we_are(self._peers.gossip, self._serving, store, load, self._limits)

    def _moved(self, change: Change) -> None:
        if self._serving is not None:
            self._serving.take(change)
        self._group.take(change)

    def _wrote(self, entries: Sequence[Entry]) -> None:
        if self._follower is not None:
            self._follower.wrote(entries)

    def _hidden(self, change: Change) -> None:
        self._copies.follow(self._holdings, change.fingerprint, change.name)
        self._group.take(change)

    def _tell_serving(self) -> None:
        if self._serving is not None:
            self._serving.nudge()

    def _gone(self, fingerprint: bytes, name: int, since: float, changed: bool) -> None:
        """Mooncake did not have a block when it was to be served, or has other bytes than were written; one
        put since then stands."""
        held = self._holdings.get(fingerprint, name)
        if held is None or held.since != since or self._leading.barred:
            return
        if changed and self._ledger is not None:
            self._ledger.withhold(fingerprint, name)
        else:
            self._holdings.withdraw(fingerprint, name)

    def _problem(self, what: str) -> None:
        log.warning("%s", what)
        self._problems.note(what)
