"""The serving process: what peers may ask of a group, in a process of its own beside the gateway.

Its gateway starts it, tells it what is offered and what to answer to hellos, and starts it anew when
it ends, hangs or grows too large. It keeps nothing that matters: it can be killed at any moment.

python -m federation.serving -c group.toml --channel FD
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import resource
import signal
import socket
import sys
from dataclasses import asdict
from pathlib import Path

from federation import telemetry
from federation.catalog.offers import Offers
from federation.config import GroupFile, Limits, load_group
from federation.counters import counters
from federation.endpoints import Endpoints
from federation.errors import MoonmeshError
from federation.local_store import ADMIN_SECONDS, connect_store
from federation.peering import Membership, load_membership
from federation.peers.channel import Channel, message_bytes_max, send_now
from federation.peers.feed import Replica
from federation.peers.relay import Relay
from federation.peers.service import PeerService
from federation.peers.side import gossip_config, statement_keys
from federation.timeouts import unless
from federation.transfer.server import BlockServer
from federation.trust.handshakes import RefusalLog, StderrWatch
from local_group.admin import AdminClient
from local_group.breaker import BreakerState
from local_group.holdings import Holdings
from local_group.store import StoreClient
from moonmesh.v1 import serving_pb2

log = logging.getLogger("moonmesh.serving")

RESERVED_BYTES = 768 * 1024 * 1024
"""Memory that is asked for and never touched (thread stacks, allocator arenas): measured 500 MiB. It is
added to `serving_memory` where the kernel counts what is asked for."""
REPLICA_FACTOR = 2
"""While a new snapshot replaces an old one, blocks of both are there."""


class Serving:
    """All parts of one serving process."""

    def __init__(self, config: GroupFile, member: Membership) -> None:
        self._config = config
        self._member = member
        self._refusals = RefusalLog()
        self._store: StoreClient | None = None
        self._service: PeerService | None = None
        self._offers = Offers(
            log_id=os.urandom(16),
            entries_max=config.limits.log_entries,
            namespaces=member.sharing.all_exported,
            changed=self._moved,
        )
        self._holdings = Holdings(
            blocks_max=REPLICA_FACTOR * config.limits.holdings_blocks,
            hop_limit=config.limits.hop_limit,
            on_change=self._offers.take,
        )

    async def run(self, end: socket.socket, stop: asyncio.Event) -> None:
        """Serves until `stop` is set, or the gateway is gone.

        Raises:
            MoonmeshError: the address for peers cannot be had, or the gateway talks nonsense.
        """
        channel = await Channel.open(end, message_bytes_max(self._config.limits))
        relay = Relay(
            channel,
            Replica(self._holdings),
            federation=self._member.peering.federation,
            keys=statement_keys(self._member),
            config=gossip_config(self._config),
            report=self._report,
        )
        with StderrWatch(self._refusals):
            work = asyncio.create_task(self._serve(relay, stop))
            parts = [asyncio.create_task(relay.listen()), asyncio.create_task(relay.speak())]
            try:
                await asyncio.wait({work, *parts}, return_when=asyncio.FIRST_COMPLETED)
                for task in (work, *parts):
                    if task.done():
                        task.result()
            finally:
                stop.set()
                await asyncio.gather(work, return_exceptions=True)
                for task in parts:
                    task.cancel()
                await asyncio.gather(*parts, return_exceptions=True)
                channel.close()

    async def _serve(self, relay: Relay, stop: asyncio.Event) -> None:
        config, limits, member = self._config, self._config.limits, self._member
        store = self._store = await connect_store(config, stop)
        if store is None:
            return
        admin = AdminClient(config.admin_url, ADMIN_SECONDS)
        endpoints = Endpoints()
        self._service = PeerService(
            credentials=member.credentials,
            peering=member.peering,
            sharing=member.sharing,
            hellos=relay,
            offers=self._offers,
            blocks=BlockServer(
                store=store,
                master=admin,
                holdings=self._holdings,
                limits=limits,
                gone=relay.gone,
            ),
            limits=limits,
            refusals=self._refusals,
        )
        try:
            if await unless(stop, relay.may_serve()):
                stand_back(limits.serving_nice)
                await endpoints.serve_peers(config, self._service, member.credentials)
                relay.say(serving_pb2.FromServing(listening=serving_pb2.Listening()))
                log.info("serves peers; %d blocks are offered", len(self._holdings))
                await stop.wait()
        finally:
            await endpoints.stop()
            await admin.close()
            await asyncio.to_thread(store.close)

    def _moved(self, fingerprint: bytes) -> None:
        if self._service is not None:
            self._service.moved(fingerprint)

    def _report(self) -> serving_pb2.ServingReport:
        stats = self._store.stats() if self._store is not None else None
        details = {
            "blocks": len(self._holdings),
            "store": None if stats is None else asdict(stats),
            "telemetry": telemetry.stats(),
        }
        return serving_pb2.ServingReport(
            counters=counters.snapshot(),
            refused=(
                serving_pb2.RefusedEntry(
                    who=each.who, reason=each.reason, count=each.count, last_at=each.last_at
                )
                for each in self._refusals.entries()
            ),
            store_well=stats is not None and stats.breaker == BreakerState.CLOSED.value,
            details_json=json.dumps(details),
        )


def restrict(limits: Limits) -> None:
    """Takes from this process, for good, what it must not have.

    Memory is bounded twice. The gateway ends us when more than `serving_memory` is in use; should
    that grow faster than it looks, the kernel gives no more. RLIMIT_AS cannot serve for the second:
    Mooncake asks for 2.9 GB of addresses, uses 0.15, and hangs where it does not get them.
    """
    _lower(resource.RLIMIT_DATA, limits.serving_memory + RESERVED_BYTES)
    _lower(resource.RLIMIT_NOFILE, limits.serving_descriptors)


def stand_back(steps: int) -> None:
    """Raises the niceness of every thread of this process.

    Once it is loaded, before the first peer is let in: the start should not take longer than it has to.
    Linux has a niceness for each thread, and a new one has that of its maker; a second round finds
    those that were made during the first.
    """
    for _ in range(2):
        for name in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.setpriority(os.PRIO_PROCESS, int(name), steps)


def _lower(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(which, (value, value))


async def _run(config: GroupFile, member: Membership, end: socket.socket) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await Serving(config, member).run(end, stop)


def main() -> int:
    """Runs a serving process; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m federation.serving")
    parser.add_argument("-c", "--config", type=Path, required=True, help="the group's group.toml")
    parser.add_argument("--channel", type=int, required=True, help="socket to the gateway")
    arguments = parser.parse_args()
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    end = socket.socket(fileno=arguments.channel)
    end.set_inheritable(False)
    farewell = end.dup()
    try:
        config = load_group(arguments.config)
        restrict(config.limits)
        member = load_membership(config)
        if member is None:
            raise MoonmeshError("the group is in no federation: there is nobody to serve")
        telemetry.setup("serving", config.name, config.trace_dir)
        asyncio.run(_run(config, member, end))
    except MoonmeshError as error:
        print(f"error {error.code}: {error}", file=sys.stderr)
        failed = serving_pb2.Failed(
            code=error.code, what=error.what, where=error.where, hint=error.hint
        )
        send_now(farewell, serving_pb2.FromServing(failed=failed), message_bytes_max(Limits()))
        return error.exit_code
    finally:
        telemetry.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
