"""Waiting for one's turn at a guard that serves: the guard says yes or no, this says when, and who first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from federation.limits.guard import BUSY_SECONDS, Guard
from federation.limits.names import GuardName
from federation.limits.ticket import Refusal, Ticket
from federation.timeouts import timeout
from federation.transfer.fair import FairQueue, PullClass

WAITING_MAX = 1024
"""Serves of one peer that wait for memory; far more than it may have open (`limits.serves_per_peer`)."""


class Turns:
    """In order of class and namespace, for each guard by itself; bounded by each caller's deadline.

    Only what passes soon is waited for (`Refusal.passes`): who is refused by a breaker is told at once.

    Args:
        guards: whose releases are worth another look.
    """

    def __init__(self, guards: Iterable[Guard] = ()) -> None:
        self._queues: dict[tuple[str, GuardName], FairQueue[object]] = {}
        self._freed = asyncio.Event()
        for guard in guards:
            self.watch(guard)

    def watch(self, guard: Guard) -> None:
        """Looks again whenever this guard has something free."""
        guard.on_release = self._freed.set

    async def hold(
        self,
        guard: Guard,
        ticket: Ticket,
        what: GuardName,
        n: int,
        until: float,
        pull_class: PullClass = PullClass.BATCH,
        namespace: bytes = b"",
    ) -> Refusal | None:
        """Memory for a ticket, as soon as there is room; or the refusal that held until then.

        Args:
            n: bytes.
            until: the caller's deadline, in loop time.
        """
        refusal = await self._turn(guard, ticket, what, n, until, pull_class, namespace)
        if refusal is not None:
            guard.refuse(refusal.reason, time.monotonic())
        return refusal

    def at_once(self, guard: Guard, ticket: Ticket, what: GuardName, n: int) -> bool:
        """Memory for a ticket, if there is some and nobody waits for it; no refusal is noted."""
        if self._queues.get((guard.name, what)) or not ticket.open:
            return False
        return ticket.hold(what, n, time.monotonic()) is None

    async def _turn(
        self,
        guard: Guard,
        ticket: Ticket,
        what: GuardName,
        n: int,
        until: float,
        pull_class: PullClass,
        namespace: bytes,
    ) -> Refusal | None:
        queue = self._queues.setdefault((guard.name, what), FairQueue(WAITING_MAX))
        me = object()
        if not queue.add(me, pull_class, namespace, n):
            return Refusal(what, BUSY_SECONDS)
        # It may stand behind another all the time, and never be told no itself.
        refusal = Refusal(what, BUSY_SECONDS)
        loop = asyncio.get_running_loop()
        try:
            while True:
                wait = until - loop.time()
                if queue.peek() is me:
                    answer = ticket.hold(what, n, time.monotonic())
                    if answer is None:
                        queue.take(me)
                        return None
                    if not answer.passes:
                        return answer
                    refusal = answer
                    wait = min(wait, answer.retry_after)
                if until <= loop.time():
                    return refusal
                await self._wait(wait)
        finally:
            queue.drop(me)
            self._freed.set()  # whoever is next may look

    async def _wait(self, seconds: float) -> None:
        """Until something is free, at most `seconds`."""
        self._freed.clear()
        try:
            async with timeout(seconds):
                await self._freed.wait()
        except asyncio.TimeoutError:
            return
