"""What goes on with all peers: hellos every second, and what follows from what they say."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Protocol

from federation.config import Limits
from federation.counters import counters
from federation.errors import PeerError
from federation.peering import Sharing
from federation.peers.events import COUNTED, problem
from federation.peers.link import PeerLink
from federation.peers.subscriptions import Subscriptions
from federation.timeouts import timeout
from federation.trust.handshakes import RefusalLog
from gossip.engine import GossipEngine
from gossip.events import OwnVersionAhead, PeerRestarted, PeerUp, StatementRejected
from gossip.statement import BOOT_NONCE_BYTES
from local_group.process_errors import CoordinationError
from moonmesh.v1 import peer_pb2

log = logging.getLogger(__name__)

HELLO_INTERVALS = 2
"""Hello intervals for which a hello is waited for its answers."""
TICK_SECONDS_MIN = 0.01
"""Between two ticks of gossip."""


class Terms(Protocol):
    """This group's terms, as its leading gateway has them."""

    def valid(self) -> bool:
        """May this gateway speak for its group, at this moment?"""

    async def above(self, floor: int) -> int:
        """Goes on leading in a new epoch above `floor`, durable and nobody else's.

        Raises:
            CoordinationError: it does not lead, or the epoch cannot be stored.
        """


class Sessions:
    """Links to all peers, with what is believed of each.

    Args:
        gossip: this group's part in the gossip; ticked here.
        sharing: who may have what.
        terms: whether this gateway leads its group, and so may speak; and where its epochs come from.
        refusals: where statements that are not believed are written down.
        on_problem: told what an operator has to know.
        on_tick: called when there is a new statement of ours.
        unattested: namespaces of which unattested blocks are taken.
    """

    def __init__(
        self,
        links: Iterable[PeerLink],
        gossip: GossipEngine,
        sharing: Sharing,
        limits: Limits,
        *,
        terms: Terms,
        refusals: RefusalLog,
        on_problem: Callable[[str], None],
        on_tick: Callable[[], None] = lambda: None,
        unattested: Collection[bytes] = frozenset(),
    ) -> None:
        self.links: Mapping[str, PeerLink] = {link.name: link for link in links}
        self._gossip = gossip
        self.subscriptions = Subscriptions(self.links, sharing, limits, unattested)
        """What the peers hold."""
        self._limits = limits
        self._terms = terms
        self._raising: asyncio.Task[None] | None = None
        self._refusals = refusals
        self._on_problem = on_problem
        self._on_tick = on_tick
        self._hurry = asyncio.Event()
        self._next_at = float("-inf")
        self._hellos: set[asyncio.Task[None]] = set()
        self._busy: dict[str, asyncio.TimerHandle] = {}
        self._unanswered: set[str] = set()
        self._back_at: dict[str, float] = {}

    def note_positions(self, peer: str, positions: Iterable[peer_pb2.NamespacePosition]) -> None:
        """A hello says where the peer's logs stand: see `Subscriptions.note_positions`."""
        self._take_events()  # now, not at the next tick: it may be back
        self.subscriptions.note_positions(peer, positions)

    # Hellos

    async def run(self) -> None:
        """Greets every peer at each tick, until it is cancelled."""
        while True:
            self._hurry.clear()
            self.hush()
            self._gossip.tick(time.monotonic(), int(time.time() * 1000))
            self._on_tick()
            self._send()
            self._take_events()
            await asyncio.sleep(TICK_SECONDS_MIN)
            self._next_at = self._gossip.next_tick_at()
            with contextlib.suppress(asyncio.TimeoutError):
                async with timeout(self._next_at - time.monotonic()):
                    await self._hurry.wait()

    def answer(self) -> None:
        """Something was heard: sends at once what it asks for."""
        self._send()
        if self._gossip.next_tick_at() < self._next_at:
            self._hurry.set()

    def lead(self, epoch: int) -> None:
        """Speaks from now on in another term."""
        self._gossip.lead(
            epoch, os.urandom(BOOT_NONCE_BYTES), time.monotonic(), int(time.time() * 1000)
        )
        self._on_tick()
        self.answer()

    def hurry(self) -> None:
        """What we have to say of ourselves has changed: say it as soon as gossip lets us."""
        self._hurry.set()

    async def close(self) -> None:
        """Ends everything and closes the links."""
        for patience in self._busy.values():
            patience.cancel()
        tasks = [*self._hellos]
        tasks += [self._raising] if self._raising else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, self.subscriptions.close(), return_exceptions=True)
        await asyncio.gather(*(link.close() for link in self.links.values()))

    def hush(self) -> None:
        """Silent, if the term is over. Called each time before something is said: a process that was frozen
        for longer than its term is here before anything has told it so."""
        if not self._terms.valid():
            self._gossip.silence()

    def _send(self) -> None:
        self.hush()
        # A peer that hangs is greeted once an interval, and what it is to be told is kept until then. Not
        # longer: it may hear us well, and only its answers are lost.
        interval = self._limits.hello_interval_ms / 1000
        for peer, hello in self._gossip.outbox(self._busy):
            patience = asyncio.get_running_loop().call_later(interval, self._free, peer)
            self._busy[peer] = patience
            task = asyncio.create_task(self._greet(peer, hello, patience))
            self._hellos.add(task)
            task.add_done_callback(partial(self._greeted, peer, patience))

    def _free(self, peer: str) -> None:
        del self._busy[peer]
        self.answer()

    def _greeted(self, peer: str, patience: asyncio.TimerHandle, task: asyncio.Task[None]) -> None:
        self._hellos.discard(task)
        if not task.cancelled():
            task.result()
            self._let_go(peer, patience)

    def _let_go(self, peer: str, patience: asyncio.TimerHandle) -> None:
        """The hello of this `patience` has been heard, or never will be: the peer can be told more."""
        patience.cancel()
        if self._busy.get(peer) is patience:
            del self._busy[peer]
        self.answer()

    async def _greet(
        self, peer: str, hello: peer_pb2.HelloRequest, patience: asyncio.TimerHandle
    ) -> None:
        """One hello to all gateways of a peer.

        It can be told more once the one that speaks for it has answered: others, slow or not there, delay
        nothing.
        """
        seconds = self._limits.hello_interval_ms / 1000 * HELLO_INTERVALS
        try:
            async with aclosing(self.links[peer].hello(hello, seconds)) as replies:
                async for reply in replies:
                    if peer in self._unanswered:
                        self._unanswered.discard(peer)
                        self._is_back(peer)
                    self._gossip.receive(peer, reply, time.monotonic())
                    self.note_positions(peer, reply.positions)
                    if not reply.silent:
                        self._let_go(peer, patience)
        except PeerError:
            counters.add("moonmesh_hello_errors_total")
            self._unanswered.add(peer)

    def _take_events(self) -> None:
        for event in self._gossip.events():
            if (counter := COUNTED.get(type(event))) is not None:
                counters.add(counter)
            if isinstance(event, (PeerUp, PeerRestarted)):
                self._is_back(event.peer)
            if isinstance(event, StatementRejected):
                why = f"statement refused: {event.detail} ({event.reason.value})"
                self._refusals.refuse(event.peer, why, time.time(), kind=event.reason.value)
                continue
            log.info("gossip: %s", event)
            if said := problem(event):
                self._on_problem(said)
            elif isinstance(event, OwnVersionAhead) and event.proven and not self._is_raising():
                self._raising = asyncio.create_task(self._raise_epoch(event))

    def _is_raising(self) -> bool:
        return self._raising is not None and not self._raising.done()

    async def _raise_epoch(self, event: OwnVersionAhead) -> None:
        """Peers have a later statement of ours than we made, so our epoch was lost: go on above it."""
        try:
            epoch = await self._terms.above(event.version.epoch)
            self.lead(epoch)
        except (CoordinationError, ValueError) as error:
            self._on_problem(f"peers have an epoch {event.version.epoch} of ours: {error}")
            return
        self._on_problem(
            f"the epoch was lost: peer {event.peer} had our statement {event.version}; "
            f"this group goes on in epoch {epoch}"
        )

    def _is_back(self, peer: str) -> None:
        """The peer is heard anew: what failed before says little now, and nothing waits for its time.

        At most once in `peer_breaker_open_ms`, or a peer that bounces would keep us busy.
        """
        now = time.monotonic()
        if now - self._back_at.get(peer, float("-inf")) < self._limits.peer_breaker_open_ms / 1000:
            return
        self._back_at[peer] = now
        self.links[peer].back()
        self.subscriptions.back(peer)
