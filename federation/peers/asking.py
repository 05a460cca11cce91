"""Both ends of a stream of hellos, without IO: when one asks for an answer, and when one gives one."""

from __future__ import annotations

from collections.abc import Sequence

from moonmesh.v1 import peer_pb2

ASK_INTERVALS = 10
"""Hello intervals after an answer in which the next one is asked for: most hellos need none."""
LATE_INTERVALS = 2
"""Hello intervals for which an answer that was asked for is waited for; each hello asks again meanwhile."""
ANEW_INTERVALS = 6
"""Hello intervals after which a stream that does not answer is given up for a new one: so what a frozen
gateway finds when it is thawed are that many old hellos, and not all of them."""
STALE_S = 1.0
"""Seconds, and `LATE_INTERVALS` if that is longer, after which a hello that waits is not said any more."""
EARLY = 0.1
"""Hello intervals by which one may come before its time, since timers are not exact."""

ASKED = peer_pb2.HelloRequest(answer=True).SerializeToString()
"""Behind an encoded hello it asks for an answer: what follows a message is read as more of it."""


class Asking:
    """One stream, as its sender sees it.

    Args:
        interval: seconds between two hellos.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._answered_at = float("-inf")
        self._asked_at: float | None = None
        self._said = 0

    @property
    def well(self) -> bool:
        """Whether it has ever been answered."""
        return self._answered_at > float("-inf")

    def says(self, now: float) -> bool:
        """A hello is said; whether it asks for an answer."""
        self._said += 1
        due = self._answered_at + (ASK_INTERVALS - EARLY) * self._interval
        if self._asked_at is None and now >= due:
            self._asked_at = now
        return self._asked_at is not None

    def answered(self, now: float) -> bool:
        """An answer has come; False if there are more of them than there were hellos."""
        self._asked_at = None
        self._answered_at = now
        self._said -= 1
        return self._said >= 0

    def late(self, now: float) -> bool:
        """Whether an answer that was asked for ought to be here."""
        return self._waits(LATE_INTERVALS, now)

    def hopeless(self, now: float) -> bool:
        """Whether it has been late for so long that another stream is tried."""
        return self._waits(ANEW_INTERVALS, now)

    def _waits(self, intervals: float, now: float) -> bool:
        waited = -1.0 if self._asked_at is None else now - self._asked_at
        return waited >= (intervals - EARLY) * self._interval


class Told:
    """One stream, as its receiver sees it: what was said in the last answer."""

    def __init__(self) -> None:
        self._last: tuple[bool, str, Sequence[object]] | None = None

    def is_due(
        self, hello: peer_pb2.HelloRequest, reply: peer_pb2.HelloReply, positions: Sequence[object]
    ) -> bool:
        """Whether a hello gets its answer; then it has been said.

        Args:
            positions: of all logs that the sender may import.
        """
        said = (reply.silent, reply.refuses, positions)
        if said == self._last and not hello.answer and not reply.HasField("statement"):
            return False
        self._last = said
        return True
