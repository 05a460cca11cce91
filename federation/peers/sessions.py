"""What goes on with all peers: hellos every second, and a subscription for each namespace in use.

Nothing is pushed and nobody is asked at a miss. While engines here ask for a namespace, one question
a peer is open ("what is new after this position?"), which the owner answers as soon as something is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import time
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from itertools import islice
from typing import Protocol

from federation.catalog.log import Position
from federation.catalog.view import CatalogView
from federation.catalog.wire import Assembler, CatalogError, position_from_wire, position_to_wire
from federation.config import Limits
from federation.counters import counters
from federation.errors import PeerError
from federation.peering import Sharing
from federation.peers.events import COUNTED, problem
from federation.peers.gossip_config import POSITIONS_MAX
from federation.peers.link import PeerLink
from federation.timeouts import timeout
from federation.trust.handshakes import RefusalLog
from gossip.engine import GossipEngine
from gossip.events import OwnVersionAhead, PeerRestarted, PeerUp, StatementRejected
from gossip.statement import BOOT_NONCE_BYTES
from local_group.process_errors import CoordinationError
from moonmesh.v1 import peer_pb2

log = logging.getLogger(__name__)

RETRY_SECONDS = (0.1, 2.0)
"""First and longest wait after a catalog question that failed; doubled in between, with jitter."""
ANSWER_SECONDS = 5.0
"""How long an owner may take for an answer beyond the time it was told to wait for news."""
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
    ) -> None:
        self.links: Mapping[str, PeerLink] = {link.name: link for link in links}
        self._gossip = gossip
        self._sharing = sharing
        self._limits = limits
        self._terms = terms
        self._raising: asyncio.Task[None] | None = None
        self._refusals = refusals
        self._on_problem = on_problem
        self._on_tick = on_tick
        self._hurry = asyncio.Event()
        self._next_at = float("-inf")
        self._views: dict[tuple[str, bytes], CatalogView] = {}
        self._interest: dict[bytes, float] = {}
        self._followers: dict[tuple[str, bytes], asyncio.Task[None]] = {}
        self._news: dict[tuple[str, bytes], asyncio.Event] = {}
        self._questions: dict[tuple[str, bytes], asyncio.Task[None]] = {}
        self._greeted = False
        """Since the last silence."""
        self._unanswered: set[str] = set()
        self._back_at: dict[str, float] = {}
        for name, link in self.links.items():
            link.on_answer = partial(self._answered, name)
            link.on_silence = partial(self._unheard, name)
            link.on_room = self.answer

    # What the rest of the gateway asks

    def holders(self, fingerprint: bytes) -> list[tuple[PeerLink, CatalogView]]:
        """Peers that can be pulled from now, with what they are believed to hold."""
        now = time.monotonic()
        return [
            (link, view)
            for name, link in self.links.items()
            if (view := self._views.get((name, fingerprint))) is not None and link.usable(now)
        ]

    def touch(self, fingerprint: bytes) -> None:
        """An engine here asks for this namespace: follow it at every peer that has it."""
        self._interest[fingerprint] = time.monotonic()
        for name in self.links:
            key = (name, fingerprint)
            if fingerprint in self._sharing.imports(name) and key not in self._followers:
                task = asyncio.create_task(self._follow(name, fingerprint))
                self._followers[key] = task
                task.add_done_callback(lambda _, key=key: self._forget(key))  # type: ignore[misc]

    def note_positions(self, peer: str, positions: Iterable[peer_pb2.NamespacePosition]) -> None:
        """A hello says where the peer's logs stand: what we have is stale if it is behind."""
        # A peer that shares more namespaces with us than that does not exist; one that says so does.
        for item in islice(positions, POSITIONS_MAX):
            view = self._views.get((peer, item.fingerprint))
            if view is None:
                continue
            try:
                position = position_from_wire(item.position)
            except CatalogError:
                counters.add("moonmesh_bad_positions_total")
                continue
            if position != view.position:
                self._news[(peer, item.fingerprint)].set()

    def views(self) -> Iterable[tuple[str, bytes, CatalogView]]:
        """Every view that is kept."""
        for (peer, fingerprint), view in self._views.items():
            yield peer, fingerprint, view

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
        """Ends everything and closes the links."""
        tasks = [*self._followers.values()]
        tasks += [self._raising] if self._raising else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
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
        self.note_positions(peer, reply.positions)
        self.answer()

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

        A question that is under way hangs, if its connection died without a word: it is asked anew.
        At most once in `peer_breaker_open_ms`, or a peer that bounces would keep us busy.
        """
        now = time.monotonic()
        if now - self._back_at.get(peer, float("-inf")) < self._limits.peer_breaker_open_ms / 1000:
            return
        self._back_at[peer] = now
        self.links[peer].back()
        for (name, _), question in self._questions.items():
            if name == peer:
                question.cancel()
        for (name, _), news in self._news.items():
            if name == peer:
                news.set()

    # Subscriptions

    async def _follow(self, peer: str, fingerprint: bytes) -> None:
        """Keeps the view of one namespace of one peer current for as long as it is in use."""
        link = self.links[peer]
        share = self._limits.view_blocks_per_peer // max(1, len(self._sharing.imports(peer)))
        view = self._views[(peer, fingerprint)] = CatalogView(blocks_max=share)
        news = self._news[(peer, fingerprint)] = asyncio.Event()
        retry = RETRY_SECONDS[0]
        while self._in_use(fingerprint):
            news.clear()
            try:
                if await self._ask(link, fingerprint, view, share):
                    retry = RETRY_SECONDS[0]
                continue
            except CatalogError as error:
                counters.add("moonmesh_catalog_errors_total")
                link.failed(error)
                view.position = None  # whatever was half believed: start over
            except PeerError:
                counters.add("moonmesh_catalog_errors_total")
            # A hello that shows something newer means that the peer answers again: no need to wait.
            try:
                async with timeout(retry * random.uniform(0.8, 1.2)):
                    await news.wait()
            except asyncio.TimeoutError:
                retry = min(2 * retry, RETRY_SECONDS[1])

    async def _ask(self, link: PeerLink, fingerprint: bytes, view: CatalogView, share: int) -> bool:
        """One question; False if it was ended because the peer is back and has to be asked anew.

        Raises:
            PeerError: no answer, or none that can be.
        """
        name = (link.name, fingerprint)
        question = asyncio.create_task(self._refresh(link, fingerprint, view, share))
        self._questions[name] = question
        try:
            await asyncio.wait({question})
        finally:
            question.cancel()
            del self._questions[name]
        if question.cancelled():
            return False
        question.result()
        return True

    async def _refresh(
        self, link: PeerLink, fingerprint: bytes, view: CatalogView, share: int
    ) -> None:
        wait_ms = self._limits.catalog_wait_ms
        request = peer_pb2.CatalogRequest(fingerprint=fingerprint, wait_ms=wait_ms)
        if view.position is not None:
            request.after.CopyFrom(position_to_wire(Position(*view.position)))
        assembler = Assembler(share, None if view.position is None else view.bits)
        answer = None
        async with aclosing(link.catalog(request, wait_ms / 1000 + ANSWER_SECONDS)) as answers:
            async for page in answers:
                if answer is not None:
                    raise CatalogError("a page after the last", where=link.name)
                answer = assembler.feed(page)
        if answer is None:
            raise PeerError("a catalog that ends before its last page", where=link.name)
        if assembler.left_out:
            counters.add("moonmesh_catalog_left_out_total", assembler.left_out)
        view.apply(answer, time.monotonic())

    def _in_use(self, fingerprint: bytes) -> bool:
        last = self._interest.get(fingerprint)
        return last is not None and time.monotonic() - last < 60 * self._limits.interest_minutes

    def _forget(self, key: tuple[str, bytes]) -> None:
        self._followers.pop(key, None)
        self._views.pop(key, None)
        self._news.pop(key, None)


class _Full(Container[str]):
    """Peers for which a hello waits already: what they are to be told is kept until that one is on its way.

    For an interval at most: a peer may hear us well, and only what comes back be lost.
    """

    def __init__(self, links: Mapping[str, PeerLink], now: float) -> None:
        self._links = links
        self._now = now

    def __contains__(self, peer: object) -> bool:
        return self._links[str(peer)].full(self._now)
