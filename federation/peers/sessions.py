"""What goes on with all peers: hellos every second, and what follows from what they say."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from functools import partial
from typing import Protocol

from federation.config import Limits
from federation.counters import counters
from federation.ending import ended
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
        on_tick: called when there is a new statement of ours, or none any more.
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
        self._greeted = False
        """Since the last silence."""
        self._closed = False
        self._unanswered: set[str] = set()
        self._answered_at: dict[str, float] = {}
        self._refused: set[str] = set()
        """Peers that say that they serve us nothing now."""
        self._back_at: dict[str, float] = {}
        for name, link in self.links.items():
            link.on_answer = partial(self._answered, name)
            link.on_silence = partial(self._unheard, name)
            link.on_room = self.answer

    @property
    def unanswered(self) -> Collection[str]:
        """Peers of which no gateway answers our hellos, although we may hear theirs."""
        return self._unanswered

    def answered_ago(self, peer: str, now: float) -> float | None:
        """Seconds since a gateway that speaks for the peer answered a hello of ours; None: none has yet."""
        at = self._answered_at.get(peer)
        return None if at is None else now - at

    def note_positions(self, peer: str, positions: Iterable[peer_pb2.NamespacePosition]) -> None:
        """A hello says where the peer's logs stand: see `Subscriptions.note_positions`."""
        self._take_events()  # now, not at the next tick: it may be back
        self.subscriptions.note_positions(peer, positions)

    # Hellos

    async def run(self) -> None:
        """Greets every peer at each tick, until it is cancelled."""
        said = None
        while True:
            self._hurry.clear()
            began = time.monotonic()
            self.hush()
            self._gossip.tick(began, int(time.time() * 1000))
            if (greeting := self._gossip.greeting()) is not said:
                said = greeting
                self._on_tick()
            self._send()
            self._take_events()
            self._next_at = self._gossip.next_tick_at()
            with contextlib.suppress(asyncio.TimeoutError):
                async with timeout(self._next_at - time.monotonic()):
                    await self._hurry.wait()
            if (early := began + TICK_SECONDS_MIN - time.monotonic()) > 0:
                await asyncio.sleep(early)

    def answer(self) -> None:
        """Something was heard: sends at once what it asks for."""
        self._take_events()  # now, not at the next tick: a peer may be back
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
        """Ends everything and closes the links; what is heard meanwhile is not answered any more."""
        self._closed = True
        raising = [self._raising] if self._raising else []
        await asyncio.gather(ended(raising), self.subscriptions.close())
        await asyncio.gather(*(link.close() for link in self.links.values()))

    def hush(self) -> None:
        """Silent, if the term is over. Called each time before something is said: a process that was frozen
        for longer than its term is here before anything has told it so."""
        if self._terms.valid():
            return
        self._gossip.silence()
        if self._greeted:
            self._greeted = False
            for link in self.links.values():
                link.hush()

    def _send(self) -> None:
        if self._closed:
            return
        self.hush()
        for peer, hello in self._gossip.outbox(_Full(self.links, time.monotonic())):
            self._greeted = True
            try:
                self.links[peer].greet(hello)
            except PeerError:
                self._unheard(peer)

    def _answered(self, peer: str, reply: peer_pb2.HelloReply) -> None:
        if peer in self._unanswered:
            self._unanswered.discard(peer)
            self._is_back(peer)
        self._gossip.receive(peer, reply, time.monotonic())
        if not reply.silent:
            self._answered_at[peer] = time.monotonic()
            self._note_refusal(peer, reply.refuses)
        self.note_positions(peer, reply.positions)
        self.answer()

    def _note_refusal(self, peer: str, why: str) -> None:
        if why:
            self._refused.add(peer)
        elif peer in self._refused:
            self._refused.discard(peer)
            self.subscriptions.back(peer)  # it has taken it back: nothing waits for its time

    def _unheard(self, peer: str) -> None:
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


class _Full(Container[str]):
    """Peers for which a hello waits already: what they are to be told is kept until that one is on its way.

    For an interval at most: a peer may hear us well, and only what comes back be lost.
    """

    def __init__(self, links: Mapping[str, PeerLink], now: float) -> None:
        self._links = links
        self._now = now

    def __contains__(self, peer: object) -> bool:
        return self._links[str(peer)].full(self._now)
