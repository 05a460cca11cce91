"""All pulling processes of a gateway: kept running, and given pulls."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import aclosing
from typing import Any

from federation.config import GroupFile
from federation.counters import counters
from federation.ending import ended
from federation.errors import MoonmeshError
from federation.peering import Membership
from federation.peers.bulk import Bulk
from federation.peers.channel import Channel, message_bytes_max
from federation.peers.keeper import Keeper, KeeperError
from federation.peers.link import PeerLink
from federation.peers.pull_worker import PullWorker
from federation.peers.spawn import resident_bytes
from federation.telemetry import inject
from federation.transfer.allowance import Allowance
from federation.transfer.landing import Answer, Room
from federation.transfer.slots import Slots
from federation.trust.credentials import Credentials
from moonmesh.v1 import pulling_pb2, serving_pb2

log = logging.getLogger(__name__)

BACKOFF_SECONDS = (0.1, 10.0)
"""First and longest pause before one is started again; doubled in between."""
STABLE_SECONDS = 60.0
"""Running for so long, its back-off starts anew."""


class _Slot:
    """One of them, over all its lives."""

    def __init__(self) -> None:
        self.pid: int | None = None
        self.worker: PullWorker | None = None
        self.restarts = 0
        self.last_exit = ""


class PullWorkers:
    """Keeps them between `start` and `close`.

    Args:
        on_problem: told what an operator has to know.
    """

    def __init__(
        self,
        config: GroupFile,
        credentials: Credentials,
        *,
        on_problem: Callable[[str], None],
    ) -> None:
        self._config = config
        self._on_problem = on_problem
        tls = credentials.tls
        self._setup = pulling_pb2.PullingSetup(
            limits_json=config.limits.model_dump_json(),
            federation=credentials.federation,
            tls=serving_pb2.ServerTls(
                name=tls.name,
                ca_pem=tls.ca_pem,
                cert_pem=tls.cert_pem,
                key_pem=tls.key_pem,
                not_after=tls.not_after.timestamp(),
            ),
        )
        self._keeper = Keeper(config)
        self._slots = [_Slot() for _ in range(config.pulling.workers)]
        self._tasks: list[asyncio.Task[None]] = []

    def staging(self, size: int) -> Slots:
        """Memory for blocks that they can write to as well.

        Raises:
            MoonmeshError: the process that they are forked from cannot be started.
        """
        try:
            self._memory = Slots(size, self._keeper.keep)
        except (OSError, KeeperError) as error:
            raise MoonmeshError(
                f"no pulling process can be started: {error}",
                hint="its log is logs/pulling.log; without it: pulling.workers = 0",
            ) from error
        return self._memory

    def start(self, links: Iterable[PeerLink]) -> None:
        """Starts them. Blocks of these peers come through them then, and until they are there over
        connections of this process. After `staging`."""
        self._tasks = [asyncio.create_task(self._keep(slot)) for slot in self._slots]
        for link in links:
            for gateway in link.gateways:
                gateway.way = _Way(self, gateway.peer, gateway.address, gateway.bulk)

    def idlest(self) -> PullWorker | None:
        """The one with fewest pulls; None while none is well."""
        well = [slot.worker for slot in self._slots if slot.worker and slot.worker.well]
        return min(well, key=lambda worker: worker.pulls, default=None)

    def status(self) -> list[dict[str, Any]]:
        """For `moonmesh status`."""
        return [
            {
                "pid": slot.pid,
                "state": "pulling" if slot.worker and slot.worker.well else "starting",
                "restarts": slot.restarts,
                "pulls": slot.worker.pulls if slot.worker else 0,
                "rss_bytes": resident_bytes(slot.pid) if slot.pid else None,
                "last_exit": slot.last_exit,
            }
            for slot in self._slots
        ]

    async def close(self) -> None:
        """Ends them."""
        await ended(self._tasks)
        await self._keeper.close()

    async def _keep(self, slot: _Slot) -> None:
        pause = BACKOFF_SECONDS[0]
        while True:
            began = time.monotonic()
            try:
                slot.last_exit = await self._one_life(slot)
            except KeeperError as error:
                self._on_problem(f"there are no pulling processes any more: their keeper: {error}")
                return
            if time.monotonic() - began >= STABLE_SECONDS:
                pause = BACKOFF_SECONDS[0]
            slot.restarts += 1
            counters.add("moonmesh_pulling_restarts_total")
            self._on_problem(f"a pulling process {slot.last_exit}; again in {pause:g} s")
            await asyncio.sleep(pause)
            pause = min(2 * pause, BACKOFF_SECONDS[1])

    async def _one_life(self, slot: _Slot) -> str:
        pid, end = await self._keeper.fork()
        channel = await Channel.open(end, message_bytes_max(self._config.limits))
        worker = PullWorker(channel, self._config.limits, self._memory.offset)
        slot.pid, slot.worker = pid, worker
        try:
            why = await worker.run(self._setup)
        finally:
            slot.worker = None
            slot.pid = None
            try:
                # Only what does not run any more writes nowhere: then its places are given to others.
                await asyncio.shield(self._keeper.end(pid))
            finally:
                worker.ended()
        return why or "ended"


def staging_memory(
    config: GroupFile, member: Membership | None, on_problem: Callable[[str], None]
) -> tuple[Slots, PullWorkers | None]:
    """Staging, and who besides this process writes to it.

    Raises:
        MoonmeshError: see `PullWorkers.staging`.
    """
    if member is None or not config.pulling.workers:
        return Slots(config.limits.staging_bytes), None
    pulling = PullWorkers(config, member.credentials, on_problem=on_problem)
    return pulling.staging(config.limits.staging_bytes), pulling


class _Way:
    """Blocks of one gateway of a peer, through whichever process has fewest pulls.

    Args:
        own: connections of this process, for when there is none.
    """

    def __init__(self, workers: PullWorkers, peer: str, address: str, own: Bulk) -> None:
        self._workers = workers
        self._peer = peer
        self._address = address
        self._own = own

    async def pull(
        self,
        raw: bytes,
        timeout: float,
        stall: float,
        allowance: Allowance | None = None,
        room: Room | None = None,
    ) -> Answer:
        """See `federation.transfer.landing.Way`."""
        worker = None if room is None else self._workers.idlest()
        if worker is None or room is None:
            answer = self._own.pull(raw, timeout, stall, allowance)
        else:
            order = self._order(timeout)
            order.request, order.stall, order.more = raw, stall, allowance is not None
            order.metadata.update(dict(inject()))
            answer = worker.pull(order, raw, allowance, room)
        async with aclosing(answer) as messages:
            async for message in messages:
                yield message

    async def ready(self, seconds: float) -> bool:
        """See there."""
        worker = self._workers.idlest()
        if worker is None:
            return await self._own.ready(seconds)
        return await worker.ready(self._order(seconds))

    async def close(self) -> None:
        """Their connections end with them."""

    def _order(self, timeout: float) -> pulling_pb2.Pull:
        return pulling_pb2.Pull(peer=self._peer, address=self._address, timeout=timeout)
