"""One call of a peer: its ticket, and the ways to end it."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections import defaultdict
from types import TracebackType
from typing import NoReturn, TypeAlias

import grpc
import grpc.aio

from federation.counters import counters
from federation.interruptible import Interruptible
from federation.limits.errors import StallError
from federation.limits.guard import Guard
from federation.limits.names import Failure, GuardName, Kind
from federation.limits.orders import AGAIN_SECONDS, SAID
from federation.limits.ticket import Cost, Refusal, Ticket
from federation.peers.wire import RETRY_AFTER
from federation.timeouts import timeout
from federation.trust.handshakes import RefusalLog

Context: TypeAlias = grpc.aio.ServicerContext

ORDER_IS_OVER = "it was paused by its operator for a moment"
"""Said where an order ended a call, and was taken back before that could be said."""


class OpenCalls:
    """The calls under way, so that an order can end them."""

    def __init__(self) -> None:
        # In the order in which they began: simulated worlds end them so, too, each time.
        self._open: defaultdict[tuple[str, Kind], dict[Interruptible, None]] = defaultdict(dict)

    def begin(self, peer: str, kind: Kind) -> Interruptible:
        """One begins, in the task that is running."""
        task = asyncio.current_task()
        assert task is not None, "called in a task"
        part = Interruptible(task)
        self._open[peer, kind][part] = None
        return part

    def over(self, peer: str, kind: Kind, part: Interruptible) -> None:
        """It is over, however it ended."""
        part.over = True
        self._open[peer, kind].pop(part, None)

    def end(self, peer: str, kind: Kind) -> None:
        """Ends those of a peer: each is told why by its guard's order."""
        for part in list(self._open[peer, kind]):
            part.interrupt()


class Call:
    """Let in by the peer's guard on entry, or refused at once: what comes from peers never queues.

    Args:
        stall: seconds that the peer may take for one message.
        calls: what it is among while it is under way.
    """

    def __init__(
        self,
        peer: str,
        guard: Guard,
        kind: Kind,
        context: Context,
        *,
        stall: float,
        refusals: RefusalLog,
        calls: OpenCalls,
    ) -> None:
        self.peer = peer
        self.guard = guard
        self._kind = kind
        self._cost = Cost(kind=kind)
        self._context = context
        self._stall = stall
        self._refusals = refusals
        self._calls = calls
        self._part: Interruptible | None = None
        self._ticket: Ticket | None = None
        self._how = Failure.OURS
        """What is held against the peer if the call ends by an error."""
        self._writing = 0.0
        """Seconds that the peer, and not we, took."""

    @property
    def ticket(self) -> Ticket:
        """What the guard gave."""
        assert self._ticket is not None, "enter the call first"
        return self._ticket

    async def __aenter__(self) -> Call:
        answer = self.guard.admit(self._cost, time.monotonic())
        if isinstance(answer, Refusal):
            await self._shed(answer.reason, answer.retry_after)
        self._ticket = answer
        self._part = self._calls.begin(self.peer, self._kind)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._part is not None, "enter the call first"
        self._calls.over(self.peer, self._kind, self._part)
        try:
            if self._part.interrupted and isinstance(error, asyncio.CancelledError):
                if sys.version_info >= (3, 11):
                    self._part.task.uncancel()
                await self._shed(GuardName.SWITCH, AGAIN_SECONDS)
        finally:
            # Only here, after the error has been sent: a call that cannot be got rid of takes up its
            # peer's places, and nobody else's.
            self.ticket.done(
                time.monotonic(),
                ok=error is None,
                kind_of_failure=self._how,
                seconds=self._writing,
            )

    async def go_on(self) -> None:
        """One more request has come in this call; ends it if that was one too many."""
        await self.shed_if(self.guard.go_on(self._cost, time.monotonic()), counted=True)

    async def write(self, message: bytes, *, paid: bool = False) -> None:
        """Sends one message of a stream, no faster than the peer may be sent.

        Args:
            paid: whether it was paid for when it was made.

        Raises:
            StallError: the peer does not read. What is held for its stream is to be given back.
        """
        began = time.monotonic()
        limit = self._stall if self.guard.on(GuardName.STALL) else None
        try:
            async with timeout(limit):
                await self._context.write(message)
        except asyncio.TimeoutError:
            self._writing += time.monotonic() - began
            self.guard.refuse(GuardName.STALL, time.monotonic())
            self.guard.note(Failure.STALL, time.monotonic())
            raise StallError(f"nothing was read for {self._stall:g} s", where=self.peer) from None
        now = time.monotonic()
        self._writing += now - began
        if not paid and (pause := self.ticket.spend(len(message), now)):
            await asyncio.sleep(pause)

    async def read(self) -> bytes | None:
        """The next message of the peer in this call, without which nothing can be sent; None at its end.

        Raises:
            StallError: none came. What is held for its stream is to be given back.
        """
        limit = self._stall if self.guard.on(GuardName.STALL) else None
        try:
            async with timeout(limit):
                raw = await self._context.read()
        except asyncio.TimeoutError:
            self.guard.refuse(GuardName.STALL, time.monotonic())
            self.guard.note(Failure.STALL, time.monotonic())
            why = f"no more was let be sent for {self._stall:g} s"
            raise StallError(why, where=self.peer) from None
        return None if raw is grpc.aio.EOF else bytes(raw)

    async def refuse(
        self,
        why: str,
        code: grpc.StatusCode = grpc.StatusCode.PERMISSION_DENIED,
        how: Failure = Failure.OURS,
        *,
        record: bool = True,
    ) -> NoReturn:
        """Ends the call by an error.

        Args:
            how: what is held against the peer.
            record: whether `status` shows it among the refusals.
        """
        self._how = how
        await refuse(self._refusals, self._context, self.peer, why, code, record=record)

    async def shed(self, what: str, retry_after: float) -> NoReturn:
        """Ends the call for want of room, with the time after which there may be some."""
        if self._kind is Kind.PULL:
            counters.add("moonmesh_serves_shed_total")
        ms = max(1, math.ceil(1000 * retry_after))
        await self._context.abort(
            grpc.StatusCode.RESOURCE_EXHAUSTED, what, ((RETRY_AFTER, str(ms)),)
        )
        raise AssertionError("abort raises")

    async def shed_if(self, refusal: Refusal | None, *, counted: bool = False) -> None:
        """Ends the call if there is a refusal, which the guard has counted or not."""
        if refusal is not None:
            if not counted:
                self.guard.refuse(refusal.reason, time.monotonic())
            await self._shed(refusal.reason, refusal.retry_after)

    async def _shed(self, reason: GuardName, retry_after: float) -> NoReturn:
        if reason is GuardName.SWITCH:
            await self.shed(SAID[self.guard.order] or ORDER_IS_OVER, retry_after)
        await self.shed(f"no room for you now ({reason.value})", retry_after)


class Writing:
    """Writes the messages of a stream, each while the next one is made: sending it takes other threads than
    making it. Use it in an `async with`: at its end nothing is being written any more.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Writing:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        task, self._task = self._task, None
        if task is None:
            return
        if kind is not None and not issubclass(kind, Exception):  # there is no time left
            task.cancel()
        try:
            await asyncio.wait(
                {task}
            )  # gRPC takes no word of an error while a message is being sent
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not task.cancelled():
            task.exception()  # how the stream ends is known already

    async def write(self, message: bytes) -> None:
        """Begins to send it, once the one before is sent. Raises as `Call.write`, of that one."""
        await self.done()
        self._task = asyncio.create_task(self._call.write(message))
        await asyncio.sleep(0)  # so that it begins

    async def done(self) -> None:
        """Waits until all is sent. Raises as `Call.write`."""
        task, self._task = self._task, None
        if task is not None:
            await task


async def refuse(
    refusals: RefusalLog,
    context: Context,
    who: str,
    why: str,
    code: grpc.StatusCode = grpc.StatusCode.PERMISSION_DENIED,
    *,
    record: bool = True,
) -> NoReturn:
    """Ends a call by an error, counted and written down."""
    counters.add("moonmesh_refused_requests_total")
    if record:
        refusals.refuse(who, why, time.time())
    await context.abort(code, why)
    raise AssertionError("abort raises")
