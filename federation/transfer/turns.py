"""Waiting for one's turn at a guard: the guards say yes or no, this says when."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from federation.limits.guard import BUSY_SECONDS, Guard
from federation.limits.names import GuardName
from federation.limits.ticket import Cost, Refusal, Ticket
from federation.timeouts import timeout, timeout_at


class Turns:
    """First come, first served, for each guard by itself; bounded by each caller's deadline.

    Only what passes soon is waited for (`Refusal.passes`): who is refused by a breaker is told at once.

    Args:
        guards: whose releases are worth another look.
    """

    def __init__(self, guards: Iterable[Guard] = ()) -> None:
        self._queues: dict[tuple[str, GuardName], asyncio.Lock] = {}
        self._freed = asyncio.Event()
        for guard in guards:
            self.watch(guard)

    def watch(self, guard: Guard) -> None:
        """Looks again whenever this guard has something free."""
        guard.on_release = self._freed.set

    async def admit(self, guard: Guard, cost: Cost, until: float) -> Ticket | Refusal:
        """A ticket as soon as there is room, or the refusal that held until then.

        Args:
            until: the caller's deadline, in loop time.
        """
        self.watch(guard)
        refusal = await self._turn(
            guard, GuardName.STREAMS, lambda now: guard.check(cost, now), until
        )
        if refusal is not None:
            guard.refuse(refusal.reason, time.monotonic())
            return refusal
        return guard.admit(cost, time.monotonic())  # nothing ran in between: it is the same answer

    async def hold(
        self, guard: Guard, ticket: Ticket, what: GuardName, n: int, until: float
    ) -> Refusal | None:
        """Memory for a ticket, as soon as there is room; or the refusal that held until then."""
        refusal = await self._turn(guard, what, lambda now: ticket.hold(what, n, now), until)
        if refusal is not None:
            guard.refuse(refusal.reason, time.monotonic())
        return refusal

    async def _turn(
        self,
        guard: Guard,
        what: GuardName,
        attempt: Callable[[float], Refusal | None],
        until: float,
    ) -> Refusal | None:
        """Tries until it succeeds, is refused for good, or the time is over; in the order of asking."""
        queue = self._queues.setdefault((guard.name, what), asyncio.Lock())
        refusal: Refusal | None = None
        if not queue.locked():
            refusal = attempt(time.monotonic())
            if refusal is None or not refusal.passes:
                return refusal
        try:
            async with timeout_at(until), queue:
                while (refusal := attempt(time.monotonic())) is not None and refusal.passes:
                    await self._wait(refusal.retry_after)
        except asyncio.TimeoutError:
            # It may have stood behind another all the time, and never been told no itself.
            return refusal or Refusal(what, BUSY_SECONDS)
        return refusal

    async def _wait(self, seconds: float) -> None:
        """Until something is free, at most `seconds`."""
        self._freed.clear()
        try:
            async with timeout(seconds):
                await self._freed.wait()
        except asyncio.TimeoutError:
            return
