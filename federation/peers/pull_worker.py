"""One pulling process, as its gateway sees it: what it is asked for, and what comes of that."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

from federation.config import Limits
from federation.ending import ended
from federation.errors import MoonmeshError, PeerError
from federation.identity import DIGEST_BYTES
from federation.limits.errors import DigestError, LateError, ShedError, StallError
from federation.peers.channel import PING_SECONDS, Channel
from federation.peers.details import shortened
from federation.peers.watch import Watch
from federation.peers.wire import (
    DeniedError,
    LostError,
    OversizeError,
    RefusedError,
    UnreachableError,
    sent,
)
from federation.timeouts import timeout as timeout_of
from federation.transfer.allowance import Allowance
from federation.transfer.frames import Block, FrameError, Missing, NoRoomError
from federation.transfer.landing import Answer, Room, Taken
from local_group.holdings import HOPS_MAX
from moonmesh.v1 import peer_pb2, pulling_pb2

log = logging.getLogger(__name__)

START_SECONDS = 30.0
"""Until its first word, silence is no fault: Python loads."""
UNTAKEN_MAX = 8
"""Messages of one pull that wait here: twice what it sends without being told that they were taken."""
GRACE_SECONDS = 1.0
"""Beyond the time of a pull, for its process to say how it ended."""
LOST = "LostError"
_ERRORS: dict[str, type[PeerError]] = {
    kind.__name__: kind
    for kind in (
        DeniedError,
        DigestError,
        FrameError,
        LateError,
        LostError,
        OversizeError,
        PeerError,
        RefusedError,
        StallError,
        UnreachableError,
    )
}


class Remote:
    """One pull."""

    def __init__(self, request: peer_pb2.PullRequest, room: Room) -> None:
        self._sizes = list(request.max_sizes)
        self._room = room
        self._places: dict[int, memoryview] = {}
        self.come: deque[Taken] = deque()
        self.over: pulling_pb2.Over | None = None
        self.changed = asyncio.Event()
        self._left = False

    def need(self, need: pulling_pb2.Need, offset: Callable[[memoryview], int]) -> pulling_pb2.Room:
        """Gives memory."""
        answer = pulling_pb2.Room(id=need.id)
        for wish in need.wishes:
            if not (wish.index < len(self._sizes) and 0 < wish.size <= self._sizes[wish.index]):
                raise ValueError("memory for what was not asked for")
            place = self._places.get(wish.index)
            if place is not None and len(place) != wish.size:
                self._room.give(len(self._places.pop(wish.index)))
                place = None
            if place is None and not self._left:
                place = self._room.take(wish.index, wish.size)
            if place is None:
                answer.none = answer.none or not wish.ahead
                break
            self._places[wish.index] = place
            answer.places.add(index=wish.index, offset=offset(place), size=wish.size)
        return answer

    def came(self, came: pulling_pb2.Came) -> None:
        """Takes what has landed."""
        if len(self.come) >= UNTAKEN_MAX:
            raise ValueError("more messages than were taken")
        events: list[Block | Missing] = []
        for each in came.arrivals:
            if each.missing:
                if each.index >= len(self._sizes):
                    raise ValueError("a block that was not asked for")
                events.append(Missing(each.index))
                continue
            place = self._places.pop(each.index, None)
            if place is None or len(each.digest) != DIGEST_BYTES or each.hops > HOPS_MAX:
                raise ValueError("a block that has no place")
            if self._left:
                self._room.give(len(place))
                continue
            events.append(
                Block(each.index, each.digest, each.hops, place, each.attested, each.good)
            )
        if not self._left:
            self.come.append(Taken(came.size, events))
            self.changed.set()

    def end(self, over: pulling_pb2.Over) -> None:
        """Nothing of it is written any more."""
        self.over = over
        for place in self._places.values():
            self._room.give(len(place))
        self._places.clear()
        self.changed.set()

    def leave(self) -> None:
        """Nobody takes what comes of it any more. What is being written stays until the end."""
        self._left = True
        for taken in self.come:
            for event in taken.events:
                if isinstance(event, Block):
                    self._room.give(len(event.data))
        self.come.clear()

    def raise_if_failed(self, peer: str) -> None:
        """The error that it ended with, if any."""
        assert self.over is not None
        name, what = self.over.error, shortened(self.over.what)
        if name == NoRoomError.__name__:
            raise NoRoomError
        if name == ShedError.__name__:
            raise ShedError(what, retry_after=self.over.retry_after, where=peer)
        if name:
            raise _ERRORS.get(name, LostError)(what, where=peer)


class PullWorker:
    """One life of one, from its first message to its end.

    Args:
        offset: where in staging a place begins.
    """

    def __init__(
        self, channel: Channel, limits: Limits, offset: Callable[[memoryview], int]
    ) -> None:
        self._channel = channel
        self._limits = limits
        self._offset = offset
        self._pulls: dict[int, Remote] = {}
        self._id = 0
        self._out: list[pulling_pb2.ToPulling] = []
        self._wake = asyncio.Event()
        self._watch = Watch()
        self.well = False
        """Whether it has said a word, and takes pulls."""

    @property
    def pulls(self) -> int:
        """Under way."""
        return len(self._pulls)

    async def run(self, setup: pulling_pb2.PullingSetup) -> str:
        """Until it ends or has to be ended: why, "" where it ended by itself."""
        self._tell(pulling_pb2.ToPulling(setup=setup))
        parts = [asyncio.create_task(each()) for each in (self._hear, self._speak, self._look)]
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            return next((said for task in parts if task.done() and (said := task.result())), "")
        finally:
            self.well = False
            await ended(parts)

    def ended(self) -> None:
        """It does not run any more: nor does any pull of it."""
        for number, remote in list(self._pulls.items()):
            what = "the process that pulled ended"
            remote.end(pulling_pb2.Over(id=number, error=LOST, what=what))
        self._pulls.clear()
        self._channel.close()

    async def pull(
        self,
        order: pulling_pb2.Pull,
        raw: bytes,
        allowance: Allowance | None,
        room: Room,
    ) -> Answer:
        """One answer; see `federation.transfer.landing.Way`."""
        remote = self._begin(order, peer_pb2.PullRequest.FromString(raw), room)
        telling: asyncio.Task[None] | None = None
        if allowance is not None:
            telling = asyncio.create_task(self._more(order.id, allowance))
        until = time.monotonic() + order.timeout + GRACE_SECONDS
        try:
            while True:
                while remote.come:
                    yield remote.come.popleft()
                    self._tell(pulling_pb2.ToPulling(taken=order.id))
                if remote.over is not None:
                    break
                remote.changed.clear()
                try:
                    async with timeout_of(until - time.monotonic()):
                        await remote.changed.wait()
                except asyncio.TimeoutError:
                    raise LateError("no answer within the deadline", where=order.peer) from None
            remote.raise_if_failed(order.peer)
            if remote.over.ended:
                yield Taken(0, (), ended=True)
        finally:
            if telling is not None:
                telling.cancel()
            remote.leave()
            if remote.over is None:
                self._tell(pulling_pb2.ToPulling(stop=order.id))

    async def ready(self, order: pulling_pb2.Pull) -> bool:
        """Whether it has a connection, or gets one in the time of `order`."""
        remote = self._begin(order, peer_pb2.PullRequest(), _NoRoom())
        try:
            async with timeout_of(order.timeout + GRACE_SECONDS):
                await remote.changed.wait()
        except asyncio.TimeoutError:
            return False
        return remote.over is not None and remote.over.ended

    def _begin(self, order: pulling_pb2.Pull, request: peer_pb2.PullRequest, room: Room) -> Remote:
        self._id += 1
        order.id = self._id
        remote = self._pulls[order.id] = Remote(request, room)
        self._tell(pulling_pb2.ToPulling(pull=order))
        return remote

    async def _more(self, number: int, allowance: Allowance) -> None:
        async for more in allowance.messages():
            sent(more)  # counted here
            self._tell(pulling_pb2.ToPulling(more=pulling_pb2.More(id=number, more=more)))

    def _tell(self, message: pulling_pb2.ToPulling) -> None:
        # Bounded by the pulls under way: a few messages each that it has not read.
        self._out.append(message)
        self._wake.set()

    async def _speak(self) -> str:
        while True:
            await self._wake.wait()
            self._wake.clear()
            out, self._out = self._out, []
            try:
                await self._channel.send(*out)
            except OSError:
                return ""

    async def _hear(self) -> str:
        while True:
            try:
                message = await self._channel.receive(pulling_pb2.FromPulling)
                if message is None:
                    return ""
                self._take(message)
            except Exception as error:  # whatever it sends, the gateway goes on
                if not isinstance(error, (MoonmeshError, ValueError)):
                    log.warning("a message of a pulling process", exc_info=True)
                return f"sent what it may not ({error!s:.200}) and was killed"

    def _take(self, message: pulling_pb2.FromPulling) -> None:
        self._watch.pong()
        which = message.WhichOneof("what")
        if which == "pong":
            self.well = True
        elif which == "need":
            remote = self._pulls.get(message.need.id)
            if remote is None:
                raise ValueError("of no pull")
            room = remote.need(message.need, self._offset)
            if room.places or room.none:
                self._tell(pulling_pb2.ToPulling(room=room))
        elif which == "came":
            remote = self._pulls.get(message.came.id)
            if remote is None:
                raise ValueError("of no pull")
            remote.came(message.came)
        elif which == "over":
            remote = self._pulls.pop(message.over.id, None)
            if remote is None:
                raise ValueError("of no pull")
            remote.end(message.over)

    async def _look(self) -> str:
        ticks = 0
        while True:
            ticks += 1
            self._tell(pulling_pb2.ToPulling(ping=ticks))
            await asyncio.sleep(PING_SECONDS)
            silent = self._limits.serving_silence_ms / 1000 if self.well else START_SECONDS
            if self._watch.tick() * PING_SECONDS >= silent:
                return f"did not answer for {silent:g} s and was killed"


class _NoRoom:
    """For an order that no block comes of."""

    def take(self, index: int, size: int) -> memoryview | None:
        return None

    def give(self, size: int) -> None:
        return
