"""Connections for blocks to one gateway of a peer: one, and one for each more serving process that it has.

A connection leads to one of them, so one is worth no more than that is. Pulls go over whichever has fewest.
Between one process and one, several were no faster than one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio

from federation.limits.errors import StallError
from federation.peers.wire import PULL_METHOD, LostError, explain, sent, which_worker
from federation.telemetry import inject
from federation.timeouts import timeout as timeout_of
from federation.transfer.allowance import Allowance
from federation.transfer.landing import Answer, Room

MOVE_SECONDS = 0.5
"""Between two connections that are made anew to reach another process of the peer, at least."""

_READY = grpc.ChannelConnectivity.READY
_BROKEN = grpc.ChannelConnectivity.TRANSIENT_FAILURE


class Bulk:
    """See the module, and `federation.transfer.landing.Way`.

    None is made before the first pull; how many serving processes the peer has is in its first answer.
    Connections are made anew until they lead to different ones.

    Args:
        peer: its name, for errors.
        make: makes a channel, with connections of its own.
        most: of them.
        retry_after_max_ms: for which a peer can have us wait.
    """

    def __init__(
        self,
        peer: str,
        make: Callable[[], grpc.aio.Channel],
        most: int,
        retry_after_max_ms: int,
    ) -> None:
        self._make = make
        self._most = most
        self.channels = [make()]
        self._leads: list[int | None] = [None]
        """To which of the peer's serving processes each leads."""
        self._workers = 1
        self._moved_at = float("-inf")
        self._closing: set[asyncio.Task[None]] = set()
        self._peer = peer
        self._open = [0]
        self._retry_after_max_ms = retry_after_max_ms

    async def pull(
        self,
        raw: bytes,
        timeout: float,
        stall: float,
        allowance: Allowance | None = None,
        room: Room | None = None,
        metadata: tuple[tuple[str, str], ...] | None = None,
    ) -> Answer:
        """The raw messages of one answer; see `Way`.

        While the caller looks at one message the next is on its way: gRPC's threads receive and decrypt one
        when it is asked for.
        """
        telling: asyncio.Task[None] | None = None
        call: grpc.aio.UnaryStreamCall[Any, Any] | grpc.aio.StreamStreamCall[Any, Any]
        metadata = inject() if metadata is None else metadata
        self._spread()
        with self._one() as place:
            channel, told = self.channels[place], False
            if allowance is None:
                call = channel.unary_stream(PULL_METHOD)(raw, timeout=timeout, metadata=metadata)
            else:
                call = channel.stream_stream(PULL_METHOD)(timeout=timeout, metadata=metadata)
                telling = asyncio.create_task(_tell(call, raw, allowance))
            coming = _reading(call)
            try:
                while True:
                    try:
                        async with timeout_of(stall):
                            message = await coming
                    except asyncio.TimeoutError:
                        why = f"nothing came for {stall:g} s"
                        raise StallError(why, where=self._peer) from None
                    if message is grpc.aio.EOF:
                        return
                    if not told:
                        told = True
                        self._heard(place, channel, which_worker(await call.initial_metadata()))
                    coming = _reading(call)
                    await asyncio.sleep(0)  # so that it begins
                    yield message
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNAVAILABLE and self._stands:
                    what = f"a connection was lost: {error.details()}"
                    raise LostError(what, where=self._peer) from error
                raise explain(error, self._peer, self._retry_after_max_ms) from error
            finally:
                coming.cancel()
                # What it failed with leads here, and to all that waits for it: a ring, which would stay, with
                # the blocks that came, until Python looks for rings.
                del coming
                if telling is not None:
                    telling.cancel()
                call.cancel()

    async def ready(self, seconds: float) -> bool:
        """Waits for a connection, for at most `seconds`; whether one stands."""
        waiting = [asyncio.create_task(_standing(channel)) for channel in self.channels]
        try:
            async with timeout_of(seconds):
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.TimeoutError:
            return False
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        return True

    async def close(self) -> None:
        """Closes the connections; calls on them end with an error."""
        await asyncio.gather(*(channel.close(None) for channel in self.channels), *self._closing)

    @property
    def _stands(self) -> bool:
        return any(channel.get_state() is _READY for channel in self.channels)

    def _heard(self, place: int, channel: grpc.aio.Channel, said: tuple[int, int]) -> None:
        if self.channels[place] is channel:
            self._leads[place], self._workers = said
            while len(self.channels) < min(self._most, self._workers):
                self.channels.append(self._make())
                self._leads.append(None)
                self._open.append(0)

    def _spread(self) -> None:
        """Makes a connection anew that leads where another does, while processes are left to which none does.

        Where it leads then is for the peer's kernel to say: so once in a while, and one that has no pull.
        """
        known = [worker for worker in self._leads if worker is not None]
        now = time.monotonic()
        if len(set(known)) == min(len(known), self._workers) or now < self._moved_at + MOVE_SECONDS:
            return
        for place, worker in enumerate(self._leads):
            if worker is not None and known.count(worker) > 1 and not self._open[place]:
                self._moved_at = now
                old, self.channels[place] = self.channels[place], self._make()
                self._leads[place] = None
                closing = asyncio.create_task(old.close(None))
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
                return

    @contextmanager
    def _one(self) -> Iterator[int]:
        """The place of the channel for one more pull, counted until the end.

        One that stands; as long as none does, one that is not known to be broken. Of those the one with
        fewest: whichever breaks would soon have none, and be chosen for it.
        """
        states = [channel.get_state(try_to_connect=True) for channel in self.channels]
        places = range(len(states))
        usable = [place for place in places if states[place] is _READY]
        usable = usable or [place for place in places if states[place] is not _BROKEN]
        place = min(usable or places, key=self._open.__getitem__)
        self._open[place] += 1
        try:
            yield place
        finally:
            self._open[place] -= 1


async def _standing(channel: grpc.aio.Channel) -> None:
    while (state := channel.get_state(try_to_connect=True)) is not _READY:
        await channel.wait_for_state_change(state)


def _reading(
    call: grpc.aio.UnaryStreamCall[Any, Any] | grpc.aio.StreamStreamCall[Any, Any],
) -> asyncio.Task[Any]:
    """The next message. That it failed need not be of interest to anybody."""

    async def read() -> Any:
        return await call.read()

    def over(task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            task.exception()

    task = asyncio.create_task(read())
    task.add_done_callback(over)
    return task


async def _tell(
    call: grpc.aio.StreamStreamCall[Any, Any], raw: bytes, allowance: Allowance
) -> None:
    """Asks for blocks, and tells what may be sent of them as that grows. Its reader sees why a call ended."""
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        await call.write(raw)
        async for more in allowance.messages():
            await call.write(sent(more))
