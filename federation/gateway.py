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
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from federation import telemetry
from federation.catalog.offers import Offers
from federation.config import GroupFile, load_group
from federation.endpoints import Endpoints
from federation.errors import MoonmeshError
from federation.identity import Fingerprint, stored_key
from federation.limits.guards import make_guards
from federation.peering import Membership, load_membership
from federation.peers.side import PeerSide, peer_side
from federation.status import Problems, StatusReport
from federation.timeouts import timeout
from federation.transfer.admission import Admission
from federation.transfer.handover import EngineService
from federation.transfer.puller import Puller
from federation.transfer.server import BlockServer
from federation.transfer.staging import Staging
from federation.trust.credentials import load_engine_credentials
from federation.trust.handshakes import RefusalLog, StderrWatch
from gossip.statement import Health
from local_group.admin import AdminClient
from local_group.bounce import PAGE
from local_group.breaker import BreakerState
from local_group.coordination.file import FileCoordination
from local_group.holdings import Holdings
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
HOUSEKEEPING_SECONDS = 1.0


class Gateway:
    """All parts of one gateway.

    Args:
        config: the group.
        member: its place in the federation; None for a group that runs alone.
    """

    def __init__(self, config: GroupFile, member: Membership | None) -> None:
        self._config = config
        self._limits = config.limits
        self._member = member
        names = [peer.name for peer in member.peering.peers] if member else []
        self._guards = make_guards(config, names, random.Random(), os.environ)
        self._refusals = RefusalLog()
        self._problems = Problems()
        self._background: list[asyncio.Task[None]] = []
        self._peers: PeerSide | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Serves until `stop` is set.

        Raises:
            MoonmeshError: if something of the configuration cannot be used.
        """
        config = self._config
        with contextlib.ExitStack() as stack:
            stack.enter_context(StderrWatch(self._refusals))
            store = await self._connect(stop)
            if store is None:
                return
            admin = AdminClient(config.admin_url, ADMIN_SECONDS)
            try:
                await self._serve(stop, store, admin)
            finally:
                await admin.close()
                await asyncio.to_thread(store.close)

    async def _serve(self, stop: asyncio.Event, store: StoreClient, admin: AdminClient) -> None:
        config, limits, member = self._config, self._limits, self._member
        epoch = FileCoordination(config.coordination_dir).next_epoch()
        exported = member.sharing.all_exported if member else frozenset()
        imported = member.sharing.all_imported if member else frozenset()
        offers = Offers(
            log_id=os.urandom(16),
            entries_max=limits.log_entries,
            namespaces=exported,
            changed=self._moved,
        )
        holdings = Holdings(
            blocks_max=limits.holdings_blocks, hop_limit=limits.hop_limit, on_change=offers.take
        )
        ledger = Ledger(holdings, Journal(config.journal_dir, limits.journal_bytes_max))
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
        blocks = BlockServer(store=store, master=admin, holdings=holdings, limits=limits)
        self._peers = peers = (
            peer_side(
                config,
                member,
                epoch,
                offers=offers,
                blocks=blocks,
                guards=self._guards,
                refusals=self._refusals,
                on_problem=self._problem,
            )
            if member
            else None
        )
        puller = Puller(
            staging=staging,
            holders=peers.sessions.holders if peers else lambda fingerprint: [],
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
            touch=peers.sessions.touch if peers else lambda fingerprint: None,
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
            peers=peers,
        )
        endpoints = Endpoints()
        try:
            await self._restore(ledger, admin)
            if peers and member:
                await endpoints.serve_peers(config, peers.service, member.credentials)
                self._start(peers.sessions.run())
            await endpoints.serve_engines(config, engines, report.document)
            if config.gateway.engines_tcp and member:
                folder = member.peering.own.credentials
                inner = load_engine_credentials(folder, config.name, "server")
                await endpoints.serve_remote_engines(config, engines, inner)
            self._start(admission.run())
            self._start(self._housekeeping(staging, store))
            self._start(self._relist(holdings, admin, blocks))
            await endpoints.ready()
            log.info("group %s serves in epoch %d", config.name, epoch)
            await stop.wait()
        finally:
            await endpoints.not_ready()
            for task in self._background:
                task.cancel()
            await asyncio.gather(*self._background, return_exceptions=True)
            await puller.close()
            if peers:
                await peers.sessions.close()
            await endpoints.stop()
            await ledger.close()

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

    # What happens by itself

    async def _restore(self, ledger: Ledger, admin: AdminClient) -> None:
        """Takes back what the last run knew, as far as Mooncake still has it."""
        try:
            keys = await admin.all_keys(self._limits.listing_bytes_max)
            listed = _listed(keys)
        except AdminError as error:
            # Whose a block is must not be forgotten. That some may be gone costs a round trip each.
            self._problem(f"no key listing at start, all of the journal is taken: {error}")
            listed = lambda fingerprint, key: True  # noqa: E731
        known = await ledger.load(listed)
        log.info("%d blocks are known from the journal", known)

    async def _relist(self, holdings: Holdings, admin: AdminClient, blocks: BlockServer) -> None:
        """Corrects the holdings by listings, at their interval, and when serves show a great loss."""
        interval = self._limits.listing_interval_ms / 1000
        soonest = min(interval, self._limits.listing_soonest_ms / 1000)
        lost = asyncio.Event()
        blocks.on_loss = lost.set
        while True:
            await asyncio.sleep(soonest)
            with contextlib.suppress(asyncio.TimeoutError):
                async with timeout(interval - soonest):
                    await lost.wait()
            lost.clear()
            blocks.losses.listed()
            began = time.monotonic()
            try:
                keys = await admin.all_keys(self._limits.listing_bytes_max)
            except AdminError as error:
                self._problem(f"no key listing: {error}")
                continue
            holdings.reconcile(_listed(keys), began)

    async def _housekeeping(self, staging: Staging, store: StoreClient) -> None:
        while True:
            staging.expire(time.monotonic())
            if self._peers is not None:
                well = store.stats().breaker == BreakerState.CLOSED.value
                self._peers.gossip.set_health(
                    Health.OK if well else Health.DEGRADED,
                    "" if well else "its local Mooncake does not answer",
                )
            await asyncio.sleep(HOUSEKEEPING_SECONDS)

    # Small wiring

    def _moved(self, fingerprint: bytes) -> None:
        if self._peers is not None:
            self._peers.service.moved(fingerprint)

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


def _listed(keys: set[str]) -> Callable[[bytes, str], bool]:
    return lambda fingerprint, key: stored_key(Fingerprint(fingerprint), key) in keys


async def _serve(config: GroupFile, member: Membership | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await Gateway(config, member).run(stop)


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
        member = load_membership(config)
        telemetry.setup("gateway", config.name, config.trace_dir)
        asyncio.run(_serve(config, member))
    except MoonmeshError as error:
        print(f"error {error.code}: {error}", file=sys.stderr)
        return error.exit_code
    finally:
        telemetry.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
