"""The gateway: the process beside a group that speaks for it. Puts the parts together; no logic here.

python -m federation.gateway -c group.toml
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from federation import telemetry
from federation.catalog.offers import Offers
from federation.config import GroupFile, load_group
from federation.endpoints import Endpoints
from federation.errors import ConfigError, MoonmeshError
from federation.identity import Fingerprint, stored_key
from federation.limits.guards import make_guards
from federation.peering import Peering, Sharing, load_peering
from federation.peers.link import PeerLink
from federation.peers.service import PeerService
from federation.peers.sessions import Sessions
from federation.status import Problems, StatusReport
from federation.timeouts import timeout
from federation.transfer.admission import Admission
from federation.transfer.handover import EngineService
from federation.transfer.puller import Puller
from federation.transfer.server import BlockServer
from federation.transfer.staging import Staging
from federation.trust.credentials import load_credentials, load_engine_credentials
from federation.trust.handshakes import RefusalLog, StderrWatch
from gossip.config import GossipConfig
from gossip.engine import GossipEngine
from gossip.statement import Health
from local_group.admin import AdminClient
from local_group.bounce import PAGE
from local_group.breaker import BreakerState
from local_group.coordination.file import FileCoordination
from local_group.holdings import Change, Holdings
from local_group.journal import Journal
from local_group.ledger import Ledger
from local_group.process_errors import AdminError
from local_group.store import StoreClient
from local_group.store_config import StoreLimits, StoreSettings

log = logging.getLogger("moonmesh.gateway")

STORE_RETRY_SECONDS = 0.5
"""Between two attempts to reach the local Mooncake at start; the gateway reports NOT_SERVING until then."""
ADMIN_SECONDS = 2.0
"""Deadline of one question to the master's admin endpoint."""
LISTING_SECONDS = 30.0
"""Deadline of one key listing."""
HOUSEKEEPING_SECONDS = 1.0


class Gateway:
    """All parts of one gateway.

    Args:
        config: the group.
        peering: its peers; None for a group that runs alone.
    """

    def __init__(self, config: GroupFile, peering: Peering | None) -> None:
        self._config = config
        self._limits = config.limits
        self._peering = peering
        self._sharing = peering.check_against(config) if peering else Sharing({}, {})
        self._credentials = (
            load_credentials(peering.own.credentials, config.name, peering.federation)
            if peering
            else None
        )
        self._refusals = RefusalLog()
        names = [peer.name for peer in self._all_peers()]
        self._guards = make_guards(config, names, random.Random(), os.environ)
        self._problems = Problems()
        self._background: list[asyncio.Task[None]] = []
        self._offers: Offers | None = None
        self._peers: PeerService | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Serves until `stop` is set.

        Raises:
            MoonmeshError: if something of the configuration cannot be used.
        """
        config, limits = self._config, self._limits
        with contextlib.ExitStack() as stack:
            stack.enter_context(StderrWatch(self._refusals))
            store = await self._connect(stop)
            if store is None:
                return
            admin = AdminClient(config.admin_url, ADMIN_SECONDS)
            listing = AdminClient(config.admin_url, LISTING_SECONDS)
            epoch = FileCoordination(config.coordination_dir).next_epoch()
            holdings = Holdings(
                blocks_max=limits.holdings_blocks,
                hop_limit=limits.hop_limit,
                on_change=self._changed,
            )
            ledger = Ledger(holdings, Journal(config.journal_dir, limits.journal_bytes_max))
            exported = frozenset[bytes]().union(
                *(self._sharing.exports(p.name) for p in self._all_peers())
            )
            imported = frozenset[bytes]().union(
                *(self._sharing.imports(p.name) for p in self._all_peers())
            )
            self._offers = Offers(
                log_id=os.urandom(16),
                entries_max=limits.log_entries,
                namespaces=exported,
                changed=self._moved,
            )
            gossip = self._gossip(epoch) if self._peering and self._credentials else None
            sessions = (
                Sessions(self._links(gossip), gossip, self._sharing, limits, self._refusals)
                if gossip
                else None
            )
            staging = Staging(
                bytes_max=limits.staging_bytes,
                hold=limits.staging_hold_ms / 1000,
                shares=self._guards.staging,
            )
            admission = Admission(
                store=store,
                ledger=ledger,
                queue_max=limits.admission_queue_blocks,
                on_error=self._problem,
            )
            puller = Puller(
                staging=staging,
                holders=sessions.holders if sessions else lambda fingerprint: [],
                landed=admission.offer,
                limits=limits,
            )
            engines = EngineService(
                group=config.name,
                known=(e.fingerprint() for e in config.namespaces.values()),
                namespaces=exported | imported,
                exported=exported,
                ledger=ledger,
                puller=puller,
                touch=sessions.touch if sessions else lambda fingerprint: None,
                limits=limits,
                on_error=self._problem,
            )
            report = StatusReport(
                config=config,
                epoch=epoch,
                store=store,
                holdings=holdings,
                staging=staging,
                puller=puller,
                problems=self._problems,
                refusals=self._refusals,
                gossip=gossip,
                sessions=sessions,
                credentials=self._credentials,
                guards=self._guards,
            )
            endpoints = Endpoints()
            try:
                await self._restore(ledger, listing)
                if gossip and sessions and self._peering and self._credentials:
                    self._peers = PeerService(
                        credentials=self._credentials,
                        peering=self._peering,
                        sharing=self._sharing,
                        gossip=gossip,
                        sessions=sessions,
                        offers=self._offers,
                        blocks=BlockServer(
                            store=store, master=admin, holdings=holdings, limits=limits
                        ),
                        limits=limits,
                        guards=self._guards,
                        refusals=self._refusals,
                    )
                    await endpoints.serve_peers(config, self._peers, self._credentials)
                    self._start(sessions.run())
                await endpoints.serve_engines(config, engines, report.document)
                if config.gateway.engines_tcp:
                    inner = load_engine_credentials(self._folder(), config.name, "server")
                    await endpoints.serve_remote_engines(config, engines, inner)
                self._start(admission.run())
                self._start(self._housekeeping(staging, store, gossip))
                self._start(self._relist(holdings, listing))
                await endpoints.ready()
                log.info("group %s serves in epoch %d", config.name, epoch)
                await stop.wait()
            finally:
                await endpoints.not_ready()
                for task in self._background:
                    task.cancel()
                await asyncio.gather(*self._background, return_exceptions=True)
                await puller.close()
                if sessions:
                    await sessions.close()
                await endpoints.stop()
                await ledger.close()
                await admin.close()
                await listing.close()
                await asyncio.to_thread(store.close)

    # Parts

    async def _connect(self, stop: asyncio.Event) -> StoreClient | None:
        """The local Mooncake, as soon as it answers; None if told to stop before."""
        config, limits = self._config, self._limits
        settings = StoreSettings(
            local_hostname=config.host,
            master_address=config.master_address,
            protocol=config.protocol,
        )
        block = limits.block_bytes_max + PAGE
        store_limits = StoreLimits(
            bounce_bytes=limits.bounce_bytes,
            window_bytes=min(limits.bounce_bytes, max(limits.serve_window_bytes, block)),
        )
        while not stop.is_set():
            try:
                return await asyncio.to_thread(StoreClient.connect, settings, store_limits)
            except MoonmeshError as error:
                log.warning("the local Mooncake does not answer yet: %s", error)
            with contextlib.suppress(asyncio.TimeoutError):
                async with timeout(STORE_RETRY_SECONDS):
                    await stop.wait()
        return None

    def _gossip(self, epoch: int) -> GossipEngine:
        assert self._peering is not None
        assert self._credentials is not None
        interval = self._limits.hello_interval_ms / 1000
        config = GossipConfig(
            hello_interval=interval,
            hello_min_gap=min(0.1, interval),
            suspect_after=4 * interval,
            down_after=15 * interval,
        )
        return GossipEngine(
            self._config.name,
            self._peering.federation,
            self._credentials.signing_key,
            {p.name: [key.public for key in p.keys] for p in self._peering.peers},
            epoch=epoch,
            boot_nonce=os.urandom(16),
            config=config,
            now=time.monotonic(),
            wall_time_ms=int(time.time() * 1000),
        )

    def _links(self, gossip: GossipEngine) -> list[PeerLink]:
        assert self._credentials is not None

        def epoch_of(name: str) -> int:
            version = gossip.versions.get(name)
            return version.epoch if version else 0

        return [
            PeerLink(
                peer,
                self._credentials,
                self._limits,
                guard=self._guards[peer.name].outgoing,
                alive=lambda now, name=peer.name: gossip.pullable(name, now),  # type: ignore[misc]
                epoch=lambda name=peer.name: epoch_of(name),  # type: ignore[misc]
            )
            for peer in self._all_peers()
        ]

    # What happens by itself

    async def _restore(self, ledger: Ledger, admin: AdminClient) -> None:
        """Takes back what the last run knew, as far as Mooncake still has it."""
        try:
            keys = await admin.all_keys(self._limits.listing_bytes_max)
        except AdminError as error:
            # Without a listing nothing of the past is offered: rather too little than ghosts.
            self._problem(f"no key listing at start, earlier blocks are not offered: {error}")
            keys = set()
        known = await ledger.load(_listed(keys))
        log.info("%d of %d blocks are known from the journal", known, len(keys))

    async def _relist(self, holdings: Holdings, admin: AdminClient) -> None:
        """Corrects the holdings by listings, at their interval."""
        while True:
            await asyncio.sleep(self._limits.listing_interval_ms / 1000)
            began = time.monotonic()
            try:
                keys = await admin.all_keys(self._limits.listing_bytes_max)
            except AdminError as error:
                self._problem(f"no key listing: {error}")
                continue
            holdings.reconcile(_listed(keys), began)

    async def _housekeeping(
        self, staging: Staging, store: StoreClient, gossip: GossipEngine | None
    ) -> None:
        while True:
            staging.expire(time.monotonic())
            if gossip is not None:
                well = store.stats().breaker == BreakerState.CLOSED.value
                gossip.set_health(
                    Health.OK if well else Health.DEGRADED,
                    "" if well else "its local Mooncake does not answer",
                )
            await asyncio.sleep(HOUSEKEEPING_SECONDS)

    # Small wiring

    def _folder(self) -> Path:
        if self._peering is None:
            raise ConfigError(
                "gateway.engines_tcp needs credentials, and there is no peering.toml",
                where="group.toml",
                hint="name one in gateway.peering, or set engines_tcp = false",
            )
        return self._peering.own.credentials

    def _all_peers(self) -> tuple[Any, ...]:
        return self._peering.peers if self._peering else ()

    def _changed(self, change: Change) -> None:
        if self._offers is not None:
            self._offers.take(change)

    def _moved(self, fingerprint: bytes) -> None:
        if self._peers is not None:
            self._peers.moved(fingerprint)

    def _problem(self, what: str) -> None:
        log.warning("%s", what)
        self._problems.note(what)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(_die_with)
        self._background.append(task)


def _die_with(task: asyncio.Task[None]) -> None:
    """A background task that ends by an error is a defect: say so, and let the supervisor restart us."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("a part of the gateway failed", exc_info=error)
        os.kill(os.getpid(), signal.SIGTERM)


def _listed(keys: set[str]) -> Any:
    return lambda fingerprint, key: stored_key(Fingerprint(fingerprint), key) in keys


async def _serve(config: GroupFile, peering: Peering | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await Gateway(config, peering).run(stop)


def main() -> int:
    """Runs a gateway in the foreground; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m federation.gateway")
    parser.add_argument("-c", "--config", type=Path, required=True, help="the group's group.toml")
    arguments = parser.parse_args()
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        config = load_group(arguments.config)
        peering = load_peering(config.gateway.peering) if config.gateway.peering else None
        telemetry.setup("gateway", config.name, config.trace_dir)
        asyncio.run(_serve(config, peering))
    except MoonmeshError as error:
        print(f"error {error.code}: {error}", file=sys.stderr)
        return error.exit_code
    finally:
        telemetry.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
