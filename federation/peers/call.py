"""One call of a peer: its ticket, and the ways to end it."""

from __future__ import annotations

import asyncio
import math
import time
from types import TracebackType
from typing import NoReturn, TypeAlias

import grpc
import grpc.aio

from federation.counters import counters
from federation.limits.errors import StallError
from federation.limits.guard import Guard
from federation.limits.names import Failure, GuardName, Kind
from federation.limits.ticket import Cost, Refusal, Ticket
from federation.peers.wire import RETRY_AFTER
from federation.timeouts import timeout
from federation.trust.handshakes import RefusalLog

Context: TypeAlias = grpc.aio.ServicerContext


class Call:
    """Let in by the peer's guard on entry, or refused at once: what comes from peers never queues.

    Args:
        stall: seconds that the peer may take for one message.
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
    ) -> None:
        self.peer = peer
        self.guard = guard
        self._kind = kind
        self._cost = Cost(kind=kind)
        self._context = context
        self._stall = stall
        self._refusals = refusals
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
            await self._shed(answer.reason.value, answer.retry_after)
        self._ticket = answer
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
            await self._shed(refusal.reason.value, refusal.retry_after)

    async def _shed(self, reason: str, retry_after: float) -> NoReturn:
        await self.shed(f"no room for you now ({reason})", retry_after)


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
