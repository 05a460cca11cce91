"""One request to one peer, from its waiting to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from federation.catalog.view import CatalogView
from federation.interruptible import Interruptible
from federation.limits.ticket import Refusal, Ticket
from federation.transfer.ask import Wanted
from federation.transfer.dispatch import Dispatch, Turn
from federation.transfer.source import Source


@dataclass(slots=True, eq=False)
class Job:
    """See the module.

    Attributes:
        turn: of the schedule of its peer.
        began: when the peer was asked, in loop time.
        arrived: blocks that came.
        missing: blocks that the peer said it does not have.
        stream: what can be interrupted, once it has begun.
        stream_ends: when the peer was to be done with it, in loop time: fixed as it begins.
        alarm: rings when the next of those who wait have to be told.
        rival: a request for the same blocks to another peer, since one of the two is late.
        hedge: whether this is the later one of the two.
        lost: whether the other one brings the blocks.
        late: whether it lost, and the peer had its time to say something.
        dropped: whether its peer has been switched off.
        active: whether it has not ended.
    """

    source: Source
    view: CatalogView
    fingerprint: bytes
    part: Sequence[Wanted]
    turn: Turn
    dispatch: Dispatch
    began: float = 0.0
    arrived: int = 0
    missing: int = 0
    stream: Interruptible | None = None
    stream_ends: float = 0.0
    alarm: asyncio.TimerHandle | None = None
    rival: Job | None = None
    hedge: bool = False
    lost: bool = False
    late: bool = False
    dropped: bool = False
    active: bool = True

    @property
    def deadline(self) -> float:
        """When the last who waits for one of its blocks gives up, in loop time. It grows with who comes."""
        return max(wanted.until for wanted in self.part)

    @property
    def silent(self) -> bool:
        """Whether nothing has come of what was asked for."""
        return not (self.arrived or self.missing)

    def abandoned(self, now: float) -> bool:
        """Whether the time is over, or blocks are still to come and nobody waits for any of them."""
        if self.lost:
            return True
        left = [wanted for wanted in self.part if not wanted.landed.done()]
        return now >= self.deadline or (bool(left) and not any(w.wanted(now) for w in left))

    async def admitted(self) -> Ticket | Refusal:
        """A ticket, or the refusal that held until the last who waits gave up, whoever came meanwhile.

        Raises:
            NobodyWaits: it was given up.
        """
        while True:
            until = self.deadline
            answer = await self.dispatch.admit(self.turn, until)
            if not isinstance(answer, Refusal) or self.turn.answer.done() or self.deadline <= until:
                return answer

    def left(self) -> None:
        """Somebody waits no longer: ends it if nobody does; what goes on in the background is less urgent.

        A peer that has said nothing yet is listened to: see `Intake.take`.
        """
        self.reclass()
        if self.rival is not None:
            self.rival.end_if_abandoned()
        self.end_if_abandoned()

    def end_if_abandoned(self) -> None:
        """See `left`."""
        if not self.abandoned(asyncio.get_running_loop().time()):
            return
        self.turn.give_up()
        if self.stream is not None and not self.silent:
            self.stream.interrupt()

    def lose(self, listen_until: float) -> None:
        """Another peer brings the blocks.

        Args:
            listen_until: when it is held against the peer of this one that nothing came (loop time).
        """
        self.lost = True
        self.turn.give_up()
        if self.stream is None:
            return
        if self.hedge or not self.silent:
            self.stream.interrupt()
        else:
            asyncio.get_running_loop().call_at(listen_until, self._end_late)

    def _end_late(self) -> None:
        if self.silent and self.stream is not None:
            self.late = True
            self.stream.interrupt()

    def reclass(self) -> None:
        """It has the highest class of what is still to come."""
        left = [wanted.pull_class for wanted in self.part if not wanted.landed.done()]
        if left:
            self.dispatch.reclass(self.turn, min(left))

    def part_with(self) -> None:
        """It is over, and its blocks lead here no more. Else they, and the memory they lie in, stay until
        the next collection of garbage, however long that takes."""
        for wanted in self.part:
            if wanted.carrier is self:
                wanted.carrier = None
        self.stream = self.rival = None
