"""The follower's side: finds the leader, copies what it holds, and tells it what is written here."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from federation.config import Limits
from federation.counters import counters
from federation.ending import ended
from federation.following.copying import Copying, Step
from federation.following.leader import FOLLOW_METHOD
from federation.following.outgoing import Outgoing
from federation.peers.feed import BLOCKS_PER_MESSAGE
from federation.timeouts import timeout
from federation.transfer.handover import REPORT_METHOD
from federation.trust.credentials import EngineCredentials
from local_group.config import MIB
from local_group.coordination.base import Leader
from local_group.journal import Entry, JournalError
from local_group.ledger import Ledger
from moonmesh.v1 import engine_pb2, group_pb2

log = logging.getLogger(__name__)

LOOK_S = 0.5
"""Seconds between two looks at who leads."""
SILENT_S = 3.0
"""Seconds without a word of the leader, who says something each second, after which the stream ends."""
AGAIN_S = (0.2, 2.0)
"""First and longest pause before the leader is followed again; doubled in between, with jitter."""
REPORT_S = 2.0
"""Deadline of one report to the leader."""
TROUBLE_S = 10.0
"""Seconds for which there is a leader that cannot be followed, after which `status` has it as a problem:
a takeover is none."""
REFUSALS = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)
"""A leader that answers a report so would do so again."""
LACKING_AT_ONCE = 4096
"""Blocks that a leader's snapshot lacks and that are looked up in one go: some ms."""


class Terms(Protocol):
    """The group's terms, as this gateway knows them."""

    member: str

    async def leader(self) -> Leader | None:
        """Who leads, as far as is known."""


class Follower:
    """A gateway's copy of what its leader holds, kept current while another gateway leads.

    Args:
        namespaces: fingerprints whose blocks are of interest to any peer.
        list_blocks: takes out of the holdings what Mooncake has no more.
        credentials: the gateways' half of the group's inner mTLS, for a leader on another host; None where
            `engines_tcp` is not set.
        on_problem: told what an operator has to know.
    """

    def __init__(
        self,
        terms: Terms,
        ledger: Ledger,
        outgoing: Outgoing,
        namespaces: Collection[bytes],
        limits: Limits,
        *,
        list_blocks: Callable[[], Awaitable[None]],
        credentials: EngineCredentials | None,
        on_problem: Callable[[str], None],
    ) -> None:
        self._terms = terms
        self._ledger = ledger
        self._outgoing = outgoing
        self._namespaces = frozenset(namespaces)
        self._limits = limits
        self._list_blocks = list_blocks
        self._credentials = credentials
        self._on_problem = on_problem
        self._follows = asyncio.Event()
        self._to_tell = asyncio.Event()
        self._attempt: asyncio.Task[str] | None = None
        self._copying: Copying | None = None
        self._leader: Leader | None = None
        self._heard_at: float | None = None
        self._trouble_since: float | None = None
        self._error = ""
        self._barred = ""
        self._pause = AGAIN_S[0]

    # For the gateway

    def follow(self) -> None:
        """Another gateway may lead: from now on it is looked for and followed."""
        self._follows.set()

    def rest(self) -> None:
        """This gateway leads: it follows nobody, and tells nobody."""
        self._follows.clear()
        self._outgoing.clear()
        self._error = ""
        if self._attempt is not None:
            self._attempt.cancel()

    def bar(self, why: str) -> None:
        """Nobody may be followed, and why; "" when it may be again."""
        self._barred = why
        if why and self._attempt is not None:
            self._attempt.cancel()

    def wrote(self, entries: Collection[Entry]) -> None:
        """Engines here have written these, which are this group's own."""
        if self._follows.is_set():
            self._outgoing.add(entries)
            if self._copying is not None:
                self._copying.wrote(entries)
            self._to_tell.set()

    def status(self) -> dict[str, Any] | None:
        """How far the copy is; None where this gateway leads."""
        if not self._follows.is_set():
            return None
        copying, heard = self._copying, self._heard_at
        return {
            "connected": copying is not None,
            "complete": copying is not None and copying.complete,
            "blocks": copying.blocks if copying is not None else 0,
            "age_s": None if heard is None else round(time.monotonic() - heard, 3),
            "untold_blocks": len(self._outgoing),
            "error": self._error,
        }

    async def run(self) -> None:
        """Follows whenever it may, until it is cancelled."""
        while True:
            await self._follows.wait()
            attempt = self._attempt = asyncio.create_task(self._once())
            try:
                await asyncio.wait({attempt})
            finally:
                attempt.cancel()
                await asyncio.gather(attempt, return_exceptions=True)
                self._attempt = self._copying = None
            if attempt.cancelled():
                continue
            self._ended(attempt.result())
            await asyncio.sleep(self._pause * random.uniform(0.8, 1.2))
            self._pause = min(2 * self._pause, AGAIN_S[1])

    def _ended(self, why: str) -> None:
        now = time.monotonic()
        known, self._error = self._error == why, why
        if self._leader is None:  # nobody leads: that is a problem of coordination, and told as one
            self._trouble_since = None
            return
        if not known:
            log.info("following %s: %s", self._leader.member, why)
        counters.add("moonmesh_follow_errors_total")
        if self._trouble_since is None:
            self._trouble_since = now
        elif now - self._trouble_since >= TROUBLE_S:
            self._on_problem(f"the leader {self._leader.member} cannot be followed: {why}")

    # One stream

    async def _once(self) -> str:
        """Finds the leader and follows it; why that has ended."""
        leader = await self._terms.leader()
        if leader is None or leader.member == self._terms.member:
            self._leader = None  # one of that name is an earlier process of this gateway
            return "nobody is known to lead"
        self._leader = leader
        if self._barred:
            return self._barred
        channel = self._channel(leader.address)
        if isinstance(channel, str):
            return channel
        copying = Copying(
            self._ledger.holdings, self._outgoing.__contains__, self._namespaces, self._limits
        )
        parts = [
            asyncio.create_task(self._copy(channel, leader, copying)),
            asyncio.create_task(self._tell(channel, copying)),
            asyncio.create_task(self._look(leader)),
        ]
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            return next(task.result() for task in parts if task.done())
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        finally:
            await ended(parts)
            await channel.close(None)

    async def _copy(self, channel: grpc.aio.Channel, leader: Leader, copying: Copying) -> str:
        request = group_pb2.FollowRequest(member=self._terms.member, epoch=leader.epoch)
        call = channel.unary_stream(FOLLOW_METHOD)(request.SerializeToString())
        try:
            while True:
                try:
                    async with timeout(SILENT_S):
                        raw = await call.read()
                except asyncio.TimeoutError:
                    return f"it said nothing for {SILENT_S:g} s"
                if raw is grpc.aio.EOF:
                    return "it leads no more"
                try:
                    page = group_pb2.FollowPage.FromString(raw)
                except DecodeError:
                    return "it sent bytes that are no message"
                if page.epoch < leader.epoch:
                    return f"it speaks in epoch {page.epoch}, and {leader.epoch} is known"
                await self._apply(page, copying)
        finally:
            call.cancel()

    async def _apply(self, page: group_pb2.FollowPage, copying: Copying) -> None:
        self._copying = copying
        self._heard_at = time.monotonic()
        self._trouble_since, self._error, self._pause = None, "", AGAIN_S[0]
        step = copying.take(page)
        await self._do(step)
        if page.HasField("snapshot_end"):
            await self._list_blocks()  # what Mooncake has lost need not be told to the leader
            copying.listed = True
            self._to_tell.set()

    async def _do(self, step: Step) -> None:
        for fingerprint, name in step.gone:
            self._ledger.holdings.withdraw(fingerprint, name)
        counters.add("moonmesh_follow_blocks_total", len(step.news))
        try:
            await self._ledger.copy(step.news)
        except JournalError as error:
            counters.add("moonmesh_report_journal_errors_total")
            self._on_problem(str(error))

    async def _tell(self, channel: grpc.aio.Channel, copying: Copying) -> str:
        report = channel.unary_unary(REPORT_METHOD)
        limits = self._limits
        blocks_max = limits.report_batch_max
        while True:
            self._to_tell.clear()
            batch = self._outgoing.batch(blocks_max, limits.control_message_bytes_max)
            if not batch:
                lacking = copying.lacking(LACKING_AT_ONCE)
                self._outgoing.add(lacking)
                if not lacking:
                    await self._to_tell.wait()
                continue
            try:
                await report(_report(batch), timeout=REPORT_S)
                counters.add("moonmesh_forwarded_blocks_total", len(batch))
            except grpc.aio.AioRpcError as error:
                if error.code() not in REFUSALS:
                    raise  # kept, and told in the next stream
                if len(batch) > 1:  # its limits are lower than ours
                    blocks_max = len(batch) // 2
                    continue
                # It will not have this one, now or later.
                counters.add("moonmesh_forward_dropped_total")
                self._on_problem(
                    f"the leader takes fewer reports than this gateway: {error.details()}; give all "
                    "places of the group the same [limits]"
                )
            self._outgoing.told(batch)

    async def _look(self, leader: Leader) -> str:
        while True:
            await asyncio.sleep(LOOK_S)
            now = await self._terms.leader()
            if now is not None and (now.member, now.address) != (leader.member, leader.address):
                return f"{now.member} leads now"

    def _channel(self, address: str) -> grpc.aio.Channel | str:
        """To the leader; or why there is none."""
        page_bytes = BLOCKS_PER_MESSAGE * 256 + MIB
        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", page_bytes),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        path = address.removeprefix("unix:")
        if path != address:
            if not os.path.exists(path):
                return (
                    f"its socket {path} is not on this host: for places on several hosts, "
                    "engines_tcp = true in [gateway] of each"
                )
            return grpc.aio.insecure_channel(address, options)
        if self._credentials is None:
            return f"{address} needs mTLS: set engines_tcp = true in [gateway] here too"
        options += self._credentials.channel_options()
        return grpc.aio.secure_channel(address, self._credentials.channel_credentials(), options)


def _report(batch: list[Entry]) -> bytes:
    request = engine_pb2.ReportRequest(fingerprint=batch[0].fingerprint)
    for entry in batch:
        request.written.add(name=entry.name, size=entry.size, digest=entry.digest)
    return bytes(request.SerializeToString())
