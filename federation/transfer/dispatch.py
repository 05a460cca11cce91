"""Lets pulls begin and tells what they may be sent: a schedule for each peer, on the clock of a loop."""

from __future__ import annotations

import asyncio
import time

from federation.config import Limits
from federation.limits.guard import BUSY_SECONDS, Guard
from federation.limits.names import Failure, GuardName
from federation.limits.ticket import Cost, Refusal, Ticket
from federation.timeouts import timeout_at
from federation.transfer.allowance import Allowance
from federation.transfer.ask import NobodyWaits
from federation.transfer.fair import PullClass
from federation.transfer.schedule import Claim, Schedule


class Turn:
    """One pull's, from `join` to `leave`."""

    def __init__(self, line: _Line, claim: Claim, cost: Cost) -> None:
        self.line = line
        self.claim = claim
        self.cost = cost
        self.answer: asyncio.Future[Ticket | Refusal] = asyncio.get_running_loop().create_future()
        self.refusal = Refusal(GuardName.STREAMS, BUSY_SECONDS)
        """Why it does not begin yet. It may stand behind others, and never have been told no itself."""
        self.ready = False
        """Whether it would begin now."""
        self.allowance = Allowance()

    def give_up(self) -> None:
        """Nobody wants it any more: if it waits, it is over."""
        if not self.answer.done():
            self.line.schedule.leave(self.claim)
            self.answer.set_exception(NobodyWaits(0, 0))


class _Line:
    """What leads to one peer."""

    def __init__(self, guard: Guard, limits: Limits) -> None:
        self.guard = guard
        self.schedule = Schedule(
            streams=limits.pulls_per_peer,
            most=limits.pulls_waiting_per_peer,
            message_bytes=limits.message_bytes,
        )
        self.turns: dict[Claim, Turn] = {}
        self.timer: asyncio.TimerHandle | None = None
        self.moving = False

    def move(self) -> None:
        """Lets those begin whose turn it is, and gives what there is to give."""
        if self.moving:  # a guard that has something free says so while it is asked
            return
        self.moving = True
        try:
            now = asyncio.get_running_loop().time()
            look_at = self._begin(now)
            for claim, size in self.schedule.credits(now):
                self.turns[claim].allowance.give(size)
        finally:
            self.moving = False
        wake_at = self.schedule.wake_at()
        due = [at for at in (look_at, wake_at) if at is not None]
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if due:
            self.timer = asyncio.get_running_loop().call_at(min(due), self.move)

    def _begin(self, now: float) -> float | None:
        """When to look again although nothing happens; None: not."""
        while (claim := self.schedule.next()) is not None:
            turn = self.turns[claim]
            if not turn.ready:
                return None  # it says so in a moment
            refusal = self.guard.check(turn.cost, time.monotonic())
            if refusal is None:
                self.schedule.begin(claim, now)
                # Nothing ran in between: it is the same answer.
                turn.answer.set_result(self.guard.admit(turn.cost, time.monotonic()))
                continue
            turn.refusal = refusal
            if refusal.passes:
                return now + refusal.retry_after
            self.schedule.leave(claim)
            self.guard.refuse(refusal.reason, time.monotonic())
            turn.answer.set_result(refusal)
        return None


class Dispatch:
    """Of all peers. Not thread-safe: it belongs to one event loop."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lines: dict[str, _Line] = {}

    def join(
        self,
        guard: Guard,
        cost: Cost,
        pull_class: PullClass,
        namespace: bytes,
        blocks: int,
        expects: int | None,
    ) -> Turn | None:
        """One more pull that waits; None where there is no room for it. Ends with `leave`.

        Args:
            expects: bytes that its answer will have; None if nobody knows.
        """
        line = self._lines.get(guard.name)
        if line is None:
            line = self._lines[guard.name] = _Line(guard, self._limits)
        guard.on_release = line.move
        claim = line.schedule.join(pull_class, namespace, blocks, expects)
        if claim is None:
            return None
        turn = line.turns[claim] = Turn(line, claim, cost)
        return turn

    async def admit(self, turn: Turn, until: float) -> Ticket | Refusal:
        """A ticket as soon as it is its turn and there is room, or the refusal that held until then.

        Args:
            until: the caller's deadline, in loop time.

        Raises:
            NobodyWaits: it was given up.
        """
        turn.ready = True
        turn.line.move()
        if not turn.answer.done():
            try:
                async with timeout_at(until):
                    await asyncio.wait({turn.answer})
            except asyncio.TimeoutError:
                if not turn.answer.done():
                    turn.line.guard.refuse(turn.refusal.reason, time.monotonic())
                    return turn.refusal
        return turn.answer.result()

    def came(self, turn: Turn, size: int) -> None:
        """Bytes of its answer."""
        if not turn.claim.free:
            turn.line.schedule.came(turn.claim, size, asyncio.get_running_loop().time())
            turn.line.move()

    def reclass(self, turn: Turn, pull_class: PullClass) -> None:
        """It is of this class now. What it was let be sent stays so."""
        if pull_class is turn.claim.pull_class:
            return
        turn.line.schedule.reclass(turn.claim, pull_class)
        if turn.claim.free:
            turn.allowance.give_all()
        turn.line.move()

    def leave(self, turn: Turn) -> None:
        """It has ended, however it did; what it had is free."""
        line = turn.line
        if line.turns.pop(turn.claim, None) is None:
            return
        line.schedule.leave(turn.claim)
        if turn.answer.done() and not turn.answer.cancelled() and not turn.answer.exception():
            ticket = turn.answer.result()
            if isinstance(ticket, Ticket):
                ticket.done(time.monotonic(), ok=False, kind_of_failure=Failure.OURS)
        line.move()
