"""Room for one window of a serve: what a peer that is served takes up here."""

from __future__ import annotations

import asyncio
import time

from federation.limits.errors import ShedError
from federation.limits.guard import Guard
from federation.limits.names import GuardName
from federation.limits.ticket import Refusal, Ticket
from federation.transfer.fair import PullClass
from federation.transfer.turns import Turns


class WindowRoom:
    """What one window takes up for a peer: leases in the pool, and bounce memory until it is sent.

    Args:
        until: when the serve is over, in loop time.
        patience: seconds for which memory is waited for.
        flow: class and namespace of the pull: who waits, waits in that order.
    """

    def __init__(
        self,
        turns: Turns,
        guard: Guard,
        ticket: Ticket,
        until: float,
        patience: float,
        flow: tuple[PullClass, bytes],
    ) -> None:
        self._turns = turns
        self._guard = guard
        self._ticket = ticket
        self._until = until
        self._patience = patience
        self._flow = flow
        self._held = 0

    async def take(self, size: int) -> None:
        """Waits for the memory, not for the leases: those take their time to end.

        Raises:
            ShedError: there is none.
        """
        until = min(self._until, asyncio.get_running_loop().time() + self._patience)
        refusal = await self._turns.hold(
            self._guard, self._ticket, GuardName.WINDOW, size, until, *self._flow
        )
        if refusal is not None:
            raise _shed(refusal)
        self._held = size
        refusal = self._ticket.lease(size, time.monotonic())
        if refusal is not None:
            self._guard.refuse(refusal.reason, time.monotonic())
            raise _shed(refusal)

    def take_now(self, size: int) -> bool:
        """Takes it if nobody waits for memory and there is some, in the pool too."""
        if not self._turns.at_once(self._guard, self._ticket, GuardName.WINDOW, size):
            return False
        self._held = size
        if self._ticket.lease(size, time.monotonic()) is not None:
            self.give()
            return False
        return True

    def give(self) -> None:
        """The window has been sent, or will not be."""
        held, self._held = self._held, 0
        if held and self._ticket.open:
            self._ticket.give(GuardName.WINDOW, held)


def _shed(refusal: Refusal) -> ShedError:
    return ShedError(
        f"no room for you now ({refusal.reason.value})", retry_after=refusal.retry_after
    )
