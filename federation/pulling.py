"""The pulling process: takes blocks of peers from the connection into staging, for its gateway.

The gateway plans, asks, limits and decides. This does what costs cores: TLS, the copy into the block's
place, its digest. It keeps nothing that matters. It is forked, see `federation.pulling_keeper`.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import mmap
import resource
import socket
import sys
from contextlib import aclosing

from federation.allocator import keep_memory_of_messages
from federation.config import Limits
from federation.errors import PeerError
from federation.identity import block_digest
from federation.limits.errors import ShedError
from federation.peers.bulk import Bulk
from federation.peers.channel import Channel, message_bytes_max, receive_now
from federation.peers.dialling import bulk_channels
from federation.transfer.allowance import Allowance
from federation.transfer.frames import HEADER_BYTES, Block, Decoder, NoRoomError
from federation.trust.credentials import TlsIdentity
from moonmesh.v1 import peer_pb2, pulling_pb2

log = logging.getLogger("moonmesh.pulling")

DATA_BYTES_MAX = 4 << 30
"""Memory of its own that it may ask for, staging not included: thread stacks, messages on their way."""
UNTAKEN_MAX = 4
"""Messages of one pull that the gateway has yet to deal with; no more are read until it has."""
AHEAD_BYTES = 4 << 20
AHEAD_BLOCKS = 64
"""Memory that is asked for before it is needed, as if what comes were as large as what came: a question for
each block would be waited for each time."""
WAYS_MAX = 256
"""Gateways of peers that it has connections to: 63 peers with four each have fewer."""


class _Pull:
    """One pull."""

    def __init__(self, order: pulling_pb2.Pull, message_bytes: int) -> None:
        self.id = order.id
        self.over = pulling_pb2.Over(id=order.id)
        """How it ended; where it was stopped the gateway knows why."""
        self.request = peer_pb2.PullRequest.FromString(order.request)
        self.places: dict[int, memoryview] = {}
        self.last, self.size = -1, 0
        """The block whose header came last."""
        self.asked = -1
        """The last block for which memory was asked."""
        self.none = False
        self.untaken = 0
        self.changed = asyncio.Event()
        self.allowance = Allowance() if order.more else None
        self.decoder = Decoder(
            self.request.max_sizes,
            message_bytes + HEADER_BYTES * (1 + len(self.request.keys)),
            self._place,
        )

    def _place(self, index: int, size: int) -> memoryview | None:
        place = self.places.pop(index, None)
        return place if place is not None and len(place) == size else None

    def lacks(self, message: bytes) -> list[tuple[int, int]]:
        """The blocks that begin in a message, and have no place of their size."""
        return [
            (index, size)
            for index, size in self.decoder.announced(message)
            if index not in self.places or len(self.places[index]) != size
        ]


class Pulling:
    """All of one pulling process.

    Args:
        staging: the memory that blocks are put into.
    """

    def __init__(self, setup: pulling_pb2.PullingSetup, staging: mmap.mmap) -> None:
        tls = setup.tls
        self._limits = Limits.model_validate_json(setup.limits_json)
        self._federation = setup.federation
        self._tls = TlsIdentity(
            tls.name,
            tls.ca_pem,
            tls.cert_pem,
            tls.key_pem,
            datetime.datetime.fromtimestamp(tls.not_after, datetime.timezone.utc),
        )
        self._staging = memoryview(staging)
        self._ways: dict[tuple[str, str], Bulk] = {}
        self._pulls: dict[int, tuple[_Pull, asyncio.Task[None]]] = {}
        self._said: list[pulling_pb2.FromPulling] = []
        self._say = asyncio.Event()

    async def run(self, end: socket.socket) -> None:
        """Until the gateway is gone."""
        channel = await Channel.open(end, message_bytes_max(self._limits))
        speaking = asyncio.create_task(self._speak(channel))
        try:
            while True:
                message = await channel.receive(pulling_pb2.ToPulling)
                if message is None:
                    return
                self._take(message)
        finally:
            speaking.cancel()
            channel.close()

    def _take(self, message: pulling_pb2.ToPulling) -> None:
        which = message.WhichOneof("what")
        if which == "ping":
            self._tell(pulling_pb2.FromPulling(pong=message.ping))
        elif which == "pull":
            pull = _Pull(message.pull, self._limits.message_bytes)
            task = asyncio.create_task(self._pull(pull, message.pull))
            self._pulls[pull.id] = (pull, task)
            # And not at the end of the task: one that is stopped before it runs has none.
            task.add_done_callback(lambda _: self._over(pull))
        elif which == "more":
            if found := self._pulls.get(message.more.id):
                allowance = found[0].allowance
                assert allowance is not None
                if message.more.more.all:
                    allowance.give_all()
                else:
                    allowance.give(message.more.more.credit)
        elif which == "room":
            if found := self._pulls.get(message.room.id):
                pull = found[0]
                pull.none = pull.none or message.room.none
                for place in message.room.places:
                    pull.places[place.index] = self._staging[
                        place.offset : place.offset + place.size
                    ]
                pull.changed.set()
        elif which == "taken":
            if found := self._pulls.get(message.taken):
                found[0].untaken -= 1
                found[0].changed.set()
        elif which == "stop" and (found := self._pulls.get(message.stop)):
            found[1].cancel()

    async def _pull(self, pull: _Pull, order: pulling_pb2.Pull) -> None:
        over = pull.over
        try:
            way = self._way(order.peer, order.address)
            if not order.request:
                over.ended = await way.ready(order.timeout)
                return
            async with aclosing(
                way.pull(
                    order.request,
                    order.timeout,
                    order.stall,
                    pull.allowance,
                    metadata=tuple(order.metadata.items()),
                )
            ) as messages:
                async for message in messages:
                    assert isinstance(message, bytes)
                    await self._land(pull, message)
            over.ended = pull.decoder.ended
        except NoRoomError:
            over.error = NoRoomError.__name__
        except PeerError as error:
            over.error, over.what = type(error).__name__, error.what
            if isinstance(error, ShedError):
                over.retry_after = error.retry_after
        except Exception as error:
            log.exception("a pull from %s ended by a defect", order.peer)
            over.error, over.what = "Defect", str(error)

    def _over(self, pull: _Pull) -> None:
        del self._pulls[pull.id]
        self._tell(pulling_pb2.FromPulling(over=pull.over))

    async def _land(self, pull: _Pull, message: bytes) -> None:
        """Puts what is in a message in its place, and tells the gateway."""
        if lacking := pull.lacks(message):
            self._ask(pull, lacking)
            while pull.lacks(message):
                if pull.none:
                    raise NoRoomError
                pull.changed.clear()
                await pull.changed.wait()
        came = pulling_pb2.Came(id=pull.id, size=len(message))
        fingerprint = pull.request.fingerprint
        for event in pull.decoder.feed(message):
            pull.last = max(pull.last, event.index)
            arrival = came.arrivals.add(index=event.index)
            if not isinstance(event, Block):
                arrival.missing = True
                continue
            key = pull.request.keys[event.index]
            arrival.digest, arrival.hops = event.digest, event.hops
            arrival.attested = event.attested
            arrival.good = block_digest(fingerprint, key, event.data) == event.digest
        pull.untaken += 1
        self._tell(pulling_pb2.FromPulling(came=came))
        if pull.size and len(pull.places) * pull.size < AHEAD_BYTES // 2:
            self._ask(pull, [])
        while pull.untaken >= UNTAKEN_MAX:
            pull.changed.clear()
            await pull.changed.wait()

    def _ask(self, pull: _Pull, lacking: list[tuple[int, int]]) -> None:
        """Asks for memory: for what has begun to come, and for what will, if that is as large as the last."""
        need = pulling_pb2.Need(id=pull.id)
        for index, size in lacking:
            pull.places.pop(index, None)
            need.wishes.add(index=index, size=size)
            pull.last, pull.size = index, size
        pull.asked = max(pull.asked, pull.last)
        ahead = min(AHEAD_BLOCKS, max(1, AHEAD_BYTES // pull.size))
        end = min(len(pull.request.keys), pull.last + 1 + ahead)
        for index in range(pull.asked + 1, end):
            if pull.size <= pull.request.max_sizes[index]:
                need.wishes.add(index=index, size=pull.size, ahead=True)
        pull.asked = max(pull.asked, end - 1)
        if need.wishes:
            self._tell(pulling_pb2.FromPulling(need=need))

    def _way(self, peer: str, address: str) -> Bulk:
        way = self._ways.get((peer, address))
        if way is None:
            assert len(self._ways) < WAYS_MAX, "more gateways of peers than there can be"
            way = bulk_channels(peer, address, self._federation, self._tls, self._limits)
            self._ways[(peer, address)] = way
        return way

    def _tell(self, message: pulling_pb2.FromPulling) -> None:
        # Bounded by what may be under way: for each pull a few messages that are not dealt with.
        self._said.append(message)
        self._say.set()

    async def _speak(self, channel: Channel) -> None:
        while True:
            await self._say.wait()
            self._say.clear()
            said, self._said = self._said, []
            try:
                await channel.send(*said)
            except OSError:
                return  # the gateway is gone: `run` sees it too


def run(channel: int, staging: mmap.mmap) -> int:
    """Runs a pulling process; the exit code.

    Args:
        channel: a descriptor, taken over.
    """
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    end = socket.socket(fileno=channel)
    first = receive_now(end, pulling_pb2.ToPulling)
    if first is None:
        return 0
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES_MAX, DATA_BYTES_MAX))
    keep_memory_of_messages()
    asyncio.run(Pulling(first.setup, staging).run(end))
    return 0
