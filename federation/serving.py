"""The serving process: what peers may ask of a group, in a process of its own beside the gateway.

Its gateway starts it, tells it who it is, what is offered and what to answer to hellos, and starts it
anew when it ends, hangs or grows too large. It keeps nothing that matters: it can be killed at any
moment. It opens no file of the group but its traces.

python -m federation.serving CHANNEL LEASES    (descriptors; see federation/peers/spawn.py)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import resource
import signal
import socket
import sys
import time
from dataclasses import asdict
from typing import Any

from federation import telemetry
from federation.allocator import SERVING_KEPT_BYTES, keep_memory_of_messages
from federation.config import Limits
from federation.counters import counters
from federation.ending import ended
from federation.endpoints import Endpoints
from federation.errors import MoonmeshError
from federation.garbage import leave_alone_what_is_there
from federation.limits.guards import make_guards
from federation.limits.names import GuardName, Kind
from federation.limits.orders import Orders
from federation.limits.shedding import Shedding
from federation.limits.switches import guards_off
from federation.local_store import ADMIN_SECONDS, connect_store
from federation.peers.channel import Channel, message_bytes_max, receive_now, send_now
from federation.peers.details import GUARDS
from federation.peers.gossip_config import gossip_config
from federation.peers.lease_book import LeaseBook
from federation.peers.namespaces import told_to
from federation.peers.relay import Relay
from federation.peers.service import PeerService
from federation.peers.setup import Setup, read_setup
from federation.peers.wire import worker_metadata
from federation.timeouts import unless
from federation.tracking import offering
from federation.transfer.measuring import measure, shedding_limits
from federation.transfer.server import BlockServer
from federation.trust.handshakes import RefusalLog, StderrWatch
from federation.watchdog import StallBook, Watchdog
from local_group.admin import AdminClient
from local_group.breaker import BreakerState
from local_group.gate import StoreStats
from local_group.store import StoreClient
from moonmesh.v1 import serving_pb2

log = logging.getLogger("moonmesh.serving")

RESERVED_BYTES = 768 * 1024 * 1024
"""Memory that is asked for and never touched (thread stacks, allocator arenas): measured 500 MiB. It is
added to `serving_memory` where the kernel counts what is asked for."""


class Serving:
    """All parts of one serving process.

    Args:
        setup: what the group is to its peers.
        leases: what was counted by the process before this one, and is by those beside it.
        stalls: what its event loop was held up by.
    """

    def __init__(self, setup: Setup, leases: LeaseBook, stalls: StallBook) -> None:
        self._stalls = stalls
        self._config = config = setup.group
        self._setup = setup
        self._guards = make_guards(config, setup.callers, random.Random(), os.environ)
        for name, book in leases.books.items():
            self._guards[name].incoming.join(book, time.monotonic())
        self._refusals = RefusalLog()
        self._unyielding = GuardName.GIVING_WAY in guards_off(os.environ)
        self._shedding = Shedding(shedding_limits(config.limits), time.monotonic())
        self._store: StoreClient | None = None
        self._service: PeerService | None = None
        self._offers, self._replica = offering(config, setup.callers.all_exported, self._moved)

    async def run(self, end: socket.socket, stop: asyncio.Event) -> None:
        """Serves until `stop` is set, or the gateway is gone.

        Raises:
            MoonmeshError: the address for peers cannot be had, or the gateway talks nonsense.
        """
        channel = await Channel.open(end, message_bytes_max(self._config.limits))
        relay = Relay(
            channel,
            self._replica,
            callers=self._setup.callers,
            config=gossip_config(self._config.limits),
            report=lambda details: self._report(relay.queues if details else None),
            hushed=self._hushed,
            ordered=self._ordered,
        )
        with StderrWatch(self._refusals):
            work = asyncio.create_task(self._serve(relay, stop))
            parts = [
                asyncio.create_task(relay.listen()),
                asyncio.create_task(relay.speak()),
                asyncio.create_task(relay.tidy()),
                asyncio.create_task(relay.watch()),
            ]
            try:
                await asyncio.wait({work, *parts}, return_when=asyncio.FIRST_COMPLETED)
                for task in (work, *parts):
                    if task.done():
                        task.result()
            finally:
                stop.set()
                await asyncio.gather(work, return_exceptions=True)
                await ended(parts)
                channel.close()

    async def _serve(self, relay: Relay, stop: asyncio.Event) -> None:
        config, limits, setup = self._config, self._config.limits, self._setup
        store = self._store = await connect_store(config, stop)
        if store is None:
            return
        admin = AdminClient(config.admin_url, ADMIN_SECONDS)
        endpoints, measuring = Endpoints(), None
        self._service = PeerService(
            callers=setup.callers,
            hellos=relay,
            offers=self._offers,
            blocks=BlockServer(
                store=store,
                master=admin,
                holdings=self._replica.holdings,
                naming=config.naming,
                limits=limits,
                gone=relay.gone,
                lost=relay.lost,
                shedding=None if self._unyielding else self._shedding,
            ),
            limits=limits,
            guards=self._guards,
            refusals=self._refusals,
            told=lambda caller: told_to(caller, config),
            worker=worker_metadata(setup.worker, config.serving.workers),
        )
        try:
            if await unless(stop, relay.may_serve()):
                stand_back(limits.serving_nice)
                leave_alone_what_is_there()
                await endpoints.serve_peers(config, self._service, setup.tls)
                relay.say(serving_pb2.FromServing(listening=serving_pb2.Listening()))
                log.info("serves peers; %d blocks are offered", len(self._replica.holdings))
                measuring = asyncio.create_task(measure(self._shedding, admin))
                await stop.wait()
        finally:
            if measuring is not None:
                measuring.cancel()
            self._service.leave()
            await endpoints.stop()
            await admin.close()
            await asyncio.to_thread(store.close)

    def _moved(self, fingerprint: bytes) -> None:
        if self._service is not None:
            self._service.moved(fingerprint)

    def _hushed(self) -> None:
        if self._service is not None:
            self._service.wake()

    def _ordered(self, orders: Orders) -> None:
        now = {name: orders.of(name) for name in self._guards}
        for name, order in now.items():
            self._guards[name].incoming.order = order
        if self._service is not None:
            self._service.ordered(now)

    def _report(self, queues: dict[str, int] | None) -> serving_pb2.ServingReport:
        """What it says of itself; with details if there are queues."""
        stats = self._store.stats() if self._store is not None else None
        guards = [guard.incoming for guard in self._guards.values()]
        return serving_pb2.ServingReport(
            counters=counters.snapshot(),
            refused=(
                serving_pb2.RefusedEntry(
                    who=each.who, reason=each.reason, count=each.count, last_at=each.last_at
                )
                for each in self._refusals.entries()
            ),
            # Not connected yet: it does not serve either, and that is known. Called unwell, it would be taken
            # for that until its next report, when it has long begun to serve.
            store_well=stats is None or stats.breaker != BreakerState.OPEN.value,
            details_json="" if queues is None else json.dumps(self._details(queues, stats)),
            pulls=sum(guard.open(Kind.PULL) for guard in guards),
        )

    def _details(self, queues: dict[str, int], stats: StoreStats | None) -> dict[str, Any]:
        now = time.monotonic()
        return {
            GUARDS: {name: guard.incoming.status(now) for name, guard in self._guards.items()},
            "blocks": len(self._replica.holdings),
            "shedding": self._shedding.status(),
            "stalls": self._stalls.status(),
            "store": None if stats is None else asdict(stats),
            "telemetry": telemetry.stats(),
            "queues": queues,
        }


def restrict(limits: Limits) -> None:
    """Takes from this process, for good, what it must not have.

    Memory is bounded twice. The gateway ends us when more than `serving_memory` is in use; should
    that grow faster than it looks, the kernel gives no more. RLIMIT_AS cannot serve for the second:
    Mooncake asks for 2.9 GB of addresses, uses 0.15, and hangs where it does not get them.
    """
    _lower(resource.RLIMIT_DATA, limits.serving_memory + RESERVED_BYTES)
    _lower(resource.RLIMIT_NOFILE, limits.serving_descriptors)


def stand_back(steps: int) -> None:
    """Raises the niceness of every thread of this process, and has none take a core from who is on it.

    Niceness is a smaller share. It does not keep a thread that wakes often, as those of a busy server do,
    from interrupting a local read to get it; SCHED_BATCH does: whoever runs ends its slice (some ms) first.

    Once it is loaded, before the first peer is let in: the start should not take longer than it has to.
    Linux has both for each thread, and a new one has those of its maker; a second round finds those that
    were made during the first.
    """
    for _ in range(2):
        for name in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.sched_setscheduler(int(name), os.SCHED_BATCH, os.sched_param(0))
                os.setpriority(os.PRIO_PROCESS, int(name), steps)


def _lower(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(which, (value, value))


async def _run(setup: Setup, leases: LeaseBook, end: socket.socket, stalls: StallBook) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await Serving(setup, leases, stalls).run(end, stop)


def main() -> int:
    """Runs a serving process; the exit code."""
    channel, book = map(int, sys.argv[1:])
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    end = socket.socket(fileno=channel)
    end.set_inheritable(False)
    farewell = end.dup()
    try:
        first = receive_now(end, serving_pb2.ToServing)  # it may wait here for days, in reserve
        if first is None:
            return 0
        setup = read_setup(first.setup)
        restrict(setup.group.limits)
        keep_memory_of_messages(SERVING_KEPT_BYTES)
        workers = setup.group.serving.workers
        leases = LeaseBook(book, setup.callers, setup.worker, workers)
        os.close(book)
        telemetry.setup("serving", setup.group.name, setup.group.trace_dir)
        stalls = Watchdog("serving").install().book
        asyncio.run(_run(setup, leases, end, stalls))
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
