"""Hellos to one gateway, on a stream that stays open.

A gateway that does not read blocks nothing and lets nothing pile up: of the hellos that wait for room on the
stream only the newest is kept. That the stream is open proves nothing; an answer does, and it is asked for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import TypeAlias

import grpc
import grpc.aio

from federation.errors import PeerError
from federation.peers.asking import ASKED, EARLY, LATE_INTERVALS, STALE_S, Asking
from federation.peers.wire import UnaskedError

Method: TypeAlias = grpc.aio.StreamStreamMultiCallable[bytes, bytes]


class Greeter:
    """Keeps one stream of hellos open while there is something to say.

    Args:
        method: opens a stream.
        connected: whether the connection that the next stream would be on stands.
        interval: seconds between two hellos.
        answered: told of each answer; a `PeerError` from it ends the stream, and goes to `failed`.
        failed: told why there was no answer; None: none came in time. Again for each hello, while it is so.
        room: called when a hello that waited is on its way, if somebody has found `full` meanwhile.
    """

    def __init__(
        self,
        method: Method,
        connected: Callable[[], bool],
        interval: float,
        *,
        answered: Callable[[bytes], None],
        failed: Callable[[grpc.aio.AioRpcError | PeerError | None], None],
        room: Callable[[], None] = lambda: None,
    ) -> None:
        self._method = method
        self._connected = connected
        self._interval = interval
        self._answered = answered
        self._failed = failed
        self._room = room
        self._stream: _Stream | None = None
        self._patient = False
        """The last stream was not answered: the next one waits for a connection."""
        self._said_at = float("-inf")
        self._wanted = False

    @property
    def hopeful(self) -> bool:
        """Whether hellos are answered, or may be yet."""
        stream = self._stream
        return stream is not None and not stream.asking.late(time.monotonic())

    def full(self, now: float) -> bool:
        """Whether one more hello would take the place of one that has waited for less than an interval."""
        stream = self._stream
        if stream is None or stream.waits is None:
            return False
        if now - self._said_at >= (1 - EARLY) * self._interval:
            return False  # it may be heard, though nothing comes back
        self._wanted = True
        return True

    def say(self, raw: bytes, now: float) -> None:
        """Says a hello as soon as there is room, instead of one that waits."""
        stream = self._stream
        if stream is not None and stream.asking.late(now):
            self._patient = True
            self._failed(None)
        if stream is not None and self._is_over(stream, now):
            self._end(stream)
            stream = None
        if stream is None:
            asking = Asking(self._interval)
            stream = _Stream(self, asking, self._method, patient=self._patient)
            self._stream = stream
        self._said_at = now
        stream.say(raw + ASKED if stream.asking.says(now) else raw)

    def hush(self) -> None:
        """Says nothing more, not even what waits; until `say`."""
        if self._stream is not None:
            self._end(self._stream)

    async def close(self) -> None:
        """Ends the stream."""
        stream = self._stream
        self.hush()
        if stream is not None:
            await asyncio.gather(stream.task, return_exceptions=True)

    def _is_over(self, stream: _Stream, now: float) -> bool:
        # One whose connection has had its time: that ends as soon as nothing is on it.
        return stream.asking.hopeless(now) or (stream.connected and not self._connected())

    def _end(self, stream: _Stream) -> None:
        stream.end()
        self._stream = None

    # For the stream

    def take(self, raw: bytes) -> None:
        """An answer. A `PeerError` ends the stream."""
        self._patient = False
        self._answered(raw)

    def ended(self, stream: _Stream, error: grpc.aio.AioRpcError | PeerError | None) -> None:
        """A stream is over; None: its receiver has ended it in order. The next hello is on another."""
        if self._stream is not stream:
            return  # we have ended it
        self._stream = None
        if error is None and stream.asking.well:
            return
        self._patient = True
        self._failed(error or PeerError("it ended our hellos without an answer"))

    @property
    def stale(self) -> bool:
        """Whether what waits has waited for so long that it is not to be said: a process that was frozen is
        to learn first whether it still speaks for its group."""
        waited = time.monotonic() - self._said_at
        return waited > max(STALE_S, LATE_INTERVALS * self._interval)

    def sent(self) -> None:
        """A hello is on its way, and none waits."""
        if self._wanted:
            self._wanted = False
            self._room()


class _Stream:
    """One call; it begins with the first hello.

    Attributes:
        waits: the hello that is said next.
        connected: whether it has got as far as its gateway.
    """

    def __init__(self, greeter: Greeter, asking: Asking, method: Method, *, patient: bool) -> None:
        self.asking = asking
        self.waits: bytes | None = None
        self.connected = False
        self._greeter = greeter
        self._wake: asyncio.Future[None] | None = None
        self._over = False
        self._call = method(self._hellos(), wait_for_ready=patient)
        self.task = asyncio.create_task(self._run())

    def say(self, raw: bytes) -> None:
        self.waits = raw
        self._rouse()

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def end(self) -> None:
        self._call.cancel()  # at once: its tasks end later, and could say something before
        self.task.cancel()

    async def _hellos(self) -> AsyncIterator[bytes]:
        try:
            await self._call.wait_for_connection()
        except grpc.aio.AioRpcError:
            return  # whoever reads is told
        self.connected = True
        while not self._over:
            if self.waits is None:
                self._wake = asyncio.get_running_loop().create_future()
                await self._wake
                continue
            raw, self.waits = self.waits, None
            if self._greeter.stale:
                continue
            yield raw
            if self.waits is None:
                self._greeter.sent()

    async def _run(self) -> None:
        error: grpc.aio.AioRpcError | PeerError | None = None
        try:
            while (raw := await self._call.read()) is not grpc.aio.EOF:
                if not self.asking.answered(time.monotonic()):
                    raise UnaskedError("more answers than hellos")
                self._greeter.take(raw)
        except (grpc.aio.AioRpcError, PeerError) as caught:
            error = caught
        finally:
            self._call.cancel()
            # gRPC cancels who asks for more only where the call was not over yet.
            self._over = True
            self._rouse()
        self._greeter.ended(self, error)
