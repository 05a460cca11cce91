"""Follows the KV events of a master that has them: what comes and goes is known before the next listing.

What is stored is held at once, as a listing would find it. What is removed is asked for first, for a block
may be gone from memory and still be on disk; and what was missed, a listing finds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from typing import Any

from federation.config import GroupFile
from federation.counters import counters
from federation.listings import Classify
from federation.timeouts import timeout
from local_group.admin import QUERY_KEYS_MAX, AdminClient
from local_group.errors import MoonmeshError
from local_group.journal import Entry, JournalError
from local_group.ledger import Ledger
from local_group.names import name_of
from local_group.process_errors import AdminError

log = logging.getLogger("moonmesh.gateway")

LINGER_S = 0.1
"""Seconds for which removals are gathered before the master is asked."""
REMOVED_MAX = 16_384
"""Keys that wait to be asked for; with more, Mooncake is listed instead."""
AGAIN_S = 10.0
"""Seconds between two looks at whether the master publishes events."""
MESSAGES_WAITING = 1000
"""Messages that wait in the socket; what is more is lost, and the gap noticed."""


class KvEventsError(MoonmeshError):
    """KV events are configured, and cannot be followed."""

    code = "MM215"


class KvEvents:
    """Events of the master, into the holdings.

    Args:
        address: `host:port` at which the master publishes.
        namespaces: fingerprints of namespaces in which what is stored is held although nobody attested it.
        classify: which block is stored under a key.
        rescan: called when Mooncake has to be listed.
        on_problem: told what an operator has to know.

    Raises:
        KvEventsError: what it takes is not installed.
    """

    def __init__(
        self,
        address: str,
        ledger: Ledger,
        admin: AdminClient,
        *,
        namespaces: Collection[bytes],
        classify: Classify,
        rescan: Callable[[], None],
        on_problem: Callable[[str], None],
    ) -> None:
        try:
            import zmq.asyncio

            from local_group.kv_events import PAYLOAD_BYTES_MAX, EventStream
        except ImportError as error:
            raise KvEventsError(
                f"kv_events needs {error.name}, which is not installed",
                where="[gateway] of group.toml",
                hint='pip install "moonmesh[events]", or leave kv_events out',
            ) from error
        self._zmq = zmq
        self._context: Any = zmq.asyncio.Context
        self._stream = EventStream()
        self._message_bytes_max = PAYLOAD_BYTES_MAX
        self._address = address
        self._ledger = ledger
        self._admin = admin
        self._namespaces = frozenset(namespaces)
        self._classify = classify
        self._rescan = rescan
        self._on_problem = on_problem
        self._removed: dict[str, tuple[bytes, int]] = {}

    @classmethod
    def of(
        cls,
        config: GroupFile,
        namespaces: Collection[bytes],
        ledger: Ledger,
        admin: AdminClient,
        *,
        rescan: Callable[[], None],
        on_problem: Callable[[str], None],
    ) -> KvEvents | None:
        """As group.toml says; None where it names no address of events."""
        if not config.gateway.kv_events:
            return None
        return cls(
            config.gateway.kv_events,
            ledger,
            admin,
            namespaces=namespaces,
            classify=config.naming.classify,
            rescan=rescan,
            on_problem=on_problem,
        )

    async def run(self) -> None:
        """Follows them until it is cancelled; while there are none, it looks now and then."""
        said = False
        while True:
            try:
                enabled = await self._admin.kv_events()
            except AdminError as error:
                log.info("whether there are KV events is not known: %s", error)
            else:
                if enabled:
                    said = False
                    await self._follow()
                elif not said:
                    said = True
                    self._on_problem(
                        "kv_events is set, and the master publishes none (it is built without them, or "
                        "started without --enable_kv_events): holdings follow by listings alone"
                    )
            await asyncio.sleep(AGAIN_S)

    async def _follow(self) -> None:
        """Until the master has not published for a while and says that it does not."""
        context = self._context()
        socket = context.socket(self._zmq.SUB)
        try:
            socket.setsockopt(self._zmq.RCVHWM, MESSAGES_WAITING)
            socket.setsockopt(self._zmq.MAXMSGSIZE, self._message_bytes_max)
            socket.setsockopt(self._zmq.LINGER, 0)
            socket.setsockopt(self._zmq.SUBSCRIBE, b"")
            socket.connect(f"tcp://{self._address}")
            looked = asked = time.monotonic()
            while True:
                try:
                    async with timeout(LINGER_S):
                        frames = await socket.recv_multipart()
                except asyncio.TimeoutError:
                    if time.monotonic() - looked > AGAIN_S:
                        looked = time.monotonic()
                        if not await self._admin.kv_events():
                            return
                else:
                    await self.take(frames)
                if time.monotonic() - asked > LINGER_S or len(self._removed) >= QUERY_KEYS_MAX:
                    asked = time.monotonic()
                    await self.ask()
        except AdminError as error:
            log.info("the master does not answer, and its events are followed later: %s", error)
            self._rescan()
        finally:
            socket.close()
            context.term()

    async def take(self, frames: list[bytes]) -> None:
        """A message has come."""
        counters.add("moonmesh_kv_event_messages_total")
        news = self._stream.receive(frames)
        if self._ledger.elsewhere():
            self._removed.clear()
            return
        doubtful: list[Entry] = []
        for event in news.events:
            block = self._classify(event.stored)
            if block is None:
                continue
            named = bytes(block[0]), name_of(*block)
            if not event.added:
                self._removed[event.stored] = named
            else:
                self._removed.pop(event.stored, None)
                if named[0] in self._namespaces:
                    entry = self._ledger.find(*named, time.monotonic())
                    doubtful += [entry] if entry is not None else []
        if doubtful:
            try:
                await self._ledger.record(doubtful)
            except JournalError as error:
                self._on_problem(str(error))
        if len(self._removed) > REMOVED_MAX:
            self._removed.clear()
            news.rescan = "more is removed than can be asked for"
        if news.rescan:
            counters.add("moonmesh_kv_event_rescans_total")
            log.info("Mooncake is listed: %s", news.rescan)
            self._rescan()

    async def ask(self) -> None:
        """Withdraws what the master has no more of what was removed."""
        while self._removed:
            keys = list(self._removed)[:QUERY_KEYS_MAX]
            asked_at = time.monotonic()
            there = await self._admin.query(keys)
            for key in keys:
                fingerprint, name = self._removed.pop(key, (b"", 0))
                held = self._ledger.holdings.get(fingerprint, name)
                if key not in there and held is not None and held.since < asked_at:
                    self._ledger.holdings.withdraw(fingerprint, name)
