"""What each peer holds, followed for as long as engines here ask for it.

Nothing is pushed and nobody is asked at a miss. While a namespace is in use, one question a peer is open
("what is new after this position?"), which the owner answers as soon as something is. Look-ups never wait.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import aclosing
from itertools import islice

from federation.catalog.interest import Interest
from federation.catalog.log import Position
from federation.catalog.room import LEAST_BLOCKS, Room
from federation.catalog.view import CatalogView
from federation.catalog.wire import Assembler, CatalogError, position_from_wire, position_to_wire
from federation.config import Limits
from federation.counters import counters
from federation.ending import ended
from federation.errors import PeerError
from federation.limits.names import Failure, GuardName
from federation.peering import Sharing
from federation.peers.gossip_config import POSITIONS_MAX
from federation.peers.link import PeerLink
from federation.peers.wire import DeniedError
from federation.timeouts import timeout
from moonmesh.v1 import peer_pb2

RETRY_SECONDS = (0.1, 2.0)
"""First and longest wait after a catalog question that failed; doubled in between, with jitter."""
BYTES_PER_BLOCK_SENT = 2.2
"""Bytes of a block in a whole catalog, on the wire, and a tenth to spare. A larger one than may be under way
from a peer is read as far as that goes, not cut off."""
WHOLE_SECONDS = 30.0
"""Between two times that a view which was cut is asked for as a whole because there is more room for it."""
WORTHWHILE_PART = 8
"""It is, where there is room for a part of so many of its blocks more."""
DENIED_SECONDS = 60.0
"""Wait after the peer has said that it does not share the namespace. Once it does, its hello says so, and it
is asked at once."""
NOT_SHARED = "does not share this namespace with this group"
"""What is said of such a peer."""
ANSWER_SECONDS = 5.0
"""How long an owner may take for an answer beyond the time it was told to wait for news."""

STANDING = "moonmesh_catalog_standing_total"
"""Counts promises that a peer did not keep and did not take back."""

Name = tuple[str, bytes]
"""A peer, and the fingerprint of a namespace."""


class DishonestError(PeerError):
    """A peer goes on promising what it turned out not to have."""

    code = "MM321"
    failure = "dishonest"


class _Subscription:
    """One namespace of one peer, while it is followed."""

    def __init__(self) -> None:
        self.view = CatalogView(blocks_max=0)
        self.news = asyncio.Event()
        """A hello shows something newer, or the peer is back: no need to wait."""
        self.claimed = 0
        """Blocks that the peer's latest snapshot said it has."""
        self.whole_at = float("-inf")
        """When that snapshot came."""
        self.question: asyncio.Task[bool] | None = None
        self.task: asyncio.Task[None] | None = None


class Subscriptions:
    """The views of all peers.

    Args:
        sharing: who may have what.
        unattested: namespaces of which unattested blocks are taken.
    """

    def __init__(
        self,
        links: Mapping[str, PeerLink],
        sharing: Sharing,
        limits: Limits,
        unattested: Collection[bytes] = frozenset(),
    ) -> None:
        self._links = links
        self._sharing = sharing
        self._limits = limits
        self._unattested = frozenset(unattested)
        self._interest = Interest(60.0 * limits.interest_minutes)
        self._room = Room(limits.views_bytes)
        self._followed: dict[Name, _Subscription] = {}
        self._closed = False

    # What the rest of the gateway asks

    def holders(self, fingerprint: bytes) -> list[tuple[PeerLink, CatalogView]]:
        """Peers that can be pulled from now, with what they are believed to hold."""
        now = time.monotonic()
        return [
            (link, followed.view)
            for name, link in self._links.items()
            if (followed := self._followed.get((name, fingerprint))) is not None
            and link.usable(now)
        ]

    def known(self, fingerprint: bytes) -> list[tuple[PeerLink, CatalogView | None]]:
        """All peers that the namespace is imported from, whether they can be pulled from or not.

        None in the place of a view: nobody has asked for the namespace lately.
        """
        found = []
        for name, link in self._links.items():
            if fingerprint in self._sharing.imports(name):
                followed = self._followed.get((name, fingerprint))
                found.append((link, None if followed is None else followed.view))
        return found

    def views(self) -> Iterable[tuple[str, bytes, CatalogView]]:
        """Every view that is kept."""
        for (peer, fingerprint), followed in self._followed.items():
            yield peer, fingerprint, followed.view

    def touch(self, fingerprint: bytes) -> None:
        """An engine here asks for this namespace: follow it at every peer that has it."""
        self._interest.touch(fingerprint, time.monotonic())
        for name in self._links:
            key = (name, fingerprint)
            new = key not in self._followed and not self._closed
            if new and fingerprint in self._sharing.imports(name):
                followed = self._followed[key] = _Subscription()
                self._make_room(key, 0)
                followed.task = asyncio.create_task(self._follow(key, followed))

    # What is heard of peers

    def note_positions(self, peer: str, positions: Iterable[peer_pb2.NamespacePosition]) -> None:
        """A hello says where the peer's logs stand: what we have is stale, or known to be current."""
        # A peer that shares more namespaces with us than that does not exist; one that says so does.
        for item in islice(positions, POSITIONS_MAX):
            followed = self._followed.get((peer, item.fingerprint))
            if followed is None:
                continue
            try:
                position = position_from_wire(item.position)
            except CatalogError:
                counters.add("moonmesh_bad_positions_total")
                continue
            if position != followed.view.position:
                followed.news.set()
            else:
                followed.view.confirmed_at = time.monotonic()

    def back(self, peer: str) -> None:
        """The peer is heard anew. A question that is under way hangs, if its connection died without a word:
        it is asked anew, and nothing waits for its time."""
        for (name, _), followed in self._followed.items():
            if name == peer:
                followed.view.trouble = ""
                if followed.question is not None:
                    followed.question.cancel()
                followed.news.set()

    async def close(self) -> None:
        """Ends all of them, and none begins any more: engines ask until the gateway is gone."""
        self._closed = True
        await ended(followed.task for followed in self._followed.values() if followed.task)

    # One subscription

    def _make_room(self, name: Name, blocks: int) -> None:
        """For so many blocks of one view, if they are within its share. Others may have to give some up."""
        if self._room.want(*name, blocks):
            self._share_out()

    def _share_out(self) -> None:
        readable = int(self._limits.peer_catalog_bytes / BYTES_PER_BLOCK_SENT)
        for name, followed in self._followed.items():
            followed.view.limit(min(self._room.blocks(*name), readable))

    async def _follow(self, name: Name, followed: _Subscription) -> None:
        """Keeps one view current for as long as it is in use; then it is gone."""
        try:
            await self._keep_current(name, followed)
        finally:
            # At once: who asks from now on begins a new one.
            del self._followed[name]
            if self._room.leave(*name):
                self._share_out()

    async def _keep_current(self, name: Name, followed: _Subscription) -> None:
        link = self._links[name[0]]
        retry = RETRY_SECONDS[0]
        while self._interest.lasts(name[1], time.monotonic()):
            followed.news.clear()
            try:
                changes = await self._ask(link, name, followed)
                if changes is None:
                    continue
                followed.view.trouble = ""
                self._adapt(name, followed)
                if changes:
                    retry = RETRY_SECONDS[0]
                else:
                    # All anew although changes were asked for: right now and then, not at each question.
                    await asyncio.sleep(retry)
                    retry = min(2 * retry, RETRY_SECONDS[1])
                continue
            except CatalogError as error:
                pause = self._note(followed, error, retry)
                link.failed(error)
                followed.view.position = None  # whatever was half believed: start over
            except PeerError as error:
                pause = self._note(followed, error, retry)
            # A hello that shows something newer means that the peer answers again: no need to wait.
            try:
                async with timeout(pause * random.uniform(0.8, 1.2)):
                    await followed.news.wait()
            except asyncio.TimeoutError:
                retry = min(2 * retry, RETRY_SECONDS[1])

    @staticmethod
    def _note(followed: _Subscription, error: PeerError, retry: float) -> float:
        """A question has failed: what is said of that, and how long to wait for the next one."""
        counters.add("moonmesh_catalog_errors_total")
        if isinstance(error, DeniedError):
            followed.view.trouble = f"{NOT_SHARED} ({error.what}); `moonmesh namespaces` shows why"
            return DENIED_SECONDS
        followed.view.trouble = error.what
        return retry

    def _adapt(self, name: Name, followed: _Subscription) -> None:
        """The view is another one than before: so may be the room that it needs."""
        view, now = followed.view, time.monotonic()
        self._judge(name[0], view, now)
        view.limit(view.blocks_max)  # its share may have become less while the answer came
        self._make_room(name, max(len(view), followed.claimed) if view.is_cut else len(view))
        more = view.blocks_max - len(view)
        if (
            view.is_cut
            and more > max(LEAST_BLOCKS, len(view) // WORTHWHILE_PART)
            and now - followed.whole_at > WHOLE_SECONDS
        ):
            view.position = None

    def _judge(self, peer: str, view: CatalogView, now: float) -> None:
        """Promises that stand although they were not kept: each is a failure of the peer, once they are far
        more than can be explained."""
        standing = view.judge(now)
        if not standing:
            return
        counters.add(f'{STANDING}{{peer="{peer}"}}', standing)
        guard = self._links[peer].guard
        if view.honesty.dishonest and guard.on(GuardName.HONESTY):
            self._links[peer].blame(DishonestError("its catalog promises what it does not have"))
            for _ in range(min(standing, self._limits.peer_breaker_failures)):
                guard.note(Failure.DISHONEST, now)

    async def _ask(self, link: PeerLink, name: Name, followed: _Subscription) -> bool | None:
        """One question: whether what came is what was asked for, and not all anew instead of changes; None if
        it was ended because the peer is back and has to be asked anew.

        Raises:
            PeerError: no answer, or none that can be.
        """
        question = asyncio.create_task(self._refresh(link, name, followed))
        followed.question = question
        try:
            await asyncio.wait({question})
        finally:
            question.cancel()
            followed.question = None
        return None if question.cancelled() else question.result()

    async def _refresh(self, link: PeerLink, name: Name, followed: _Subscription) -> bool:
        view = followed.view
        wait_ms = self._limits.catalog_wait_ms
        request = peer_pb2.CatalogRequest(
            fingerprint=name[1], wait_ms=wait_ms, unattested=name[1] in self._unattested
        )
        if view.position is not None:
            request.after.CopyFrom(position_to_wire(Position(*view.position)))
        bits = None if view.position is None else view.bits
        assembler: Assembler | None = None
        answer = None
        async with aclosing(link.catalog(request, wait_ms / 1000 + ANSWER_SECONDS)) as answers:
            async for page in answers:
                if answer is not None:
                    raise CatalogError("a page after the last", where=link.name)
                if assembler is None:
                    if page.snapshot:
                        followed.claimed, followed.whole_at = page.blocks, time.monotonic()
                        self._make_room(name, page.blocks)
                    assembler = Assembler(view.blocks_max, bits)
                answer = assembler.feed(page)
                if answer is not None and not page.last:
                    break  # there is no room for the rest
        if answer is None or assembler is None:
            raise PeerError("a catalog that ends before its last page", where=link.name)
        if assembler.left_out:
            counters.add("moonmesh_catalog_left_out_total", assembler.left_out)
        view.apply(answer, time.monotonic())
        return answer.snapshot is None or bits is None
