"""Which pull of one peer may begin, and what those under way may be sent; sans-IO.

Streams: whoever waits for a first token goes first, and part of the streams is kept for such; below that
the others share by class and namespace. Bytes: a pull for a first token is sent all that it asked for at
once. The others are given credit piece by piece, shared among them in the same way, so that what is under
way for all of them together stays within a window: see `federation.transfer.flight`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Final

from federation.transfer.fair import Fairness, FairQueue, PullClass
from federation.transfer.flight import Flight

KEPT_PERCENT: Final = 25
"""Of the streams, and of the places to wait, that only pulls for a first token may have."""
PREFETCH_PERCENT: Final = 50
"""Of the rest of the streams, what prefetches may have at most: a long one gives its stream back late."""
LOWER_BLOCKS_MAX: Final = 64
"""Blocks that a pull of a lower class asks for in one go: its stream is then for whoever is next."""
STARVED_SECONDS: Final = 1.0
"""A pull that has begun is given a piece after so long, whoever else is served: a peer ends a stream on
which nothing moves (`limits.peer_stall_ms`)."""


class Claim:
    """One pull, from its waiting to its end. Compared by identity."""

    __slots__ = (
        "_marks",
        "began",
        "blocks",
        "credited_at",
        "expects",
        "free",
        "given",
        "got",
        "initial",
        "namespace",
        "pull_class",
    )

    def __init__(
        self, pull_class: PullClass, namespace: bytes, blocks: int, expects: int | None
    ) -> None:
        self.pull_class = pull_class
        self.namespace = namespace
        self.blocks = blocks
        self.expects = expects
        """Bytes that its answer will have, as far as anybody knows; None: nobody does."""
        self.began = False
        self.free = False
        """Whether it may be sent all."""
        self.initial = 0
        """Bytes that it may be sent from the beginning."""
        self.given = 0
        """Bytes that it may be sent by now, those included."""
        self.got = 0
        """Bytes that came."""
        self.credited_at = 0.0
        self._marks: deque[tuple[int, int, float]] = deque()

    def __repr__(self) -> str:
        state = f"{self.got} of {self.given} bytes" if self.began else "waits"
        return f"Claim({self.pull_class.name}, {state})"

    @property
    def outstanding(self) -> int:
        """Bytes that it may be sent and that have not come."""
        return 0 if self.free else max(0, self.given - self.got)

    @property
    def wants(self) -> bool:
        """Whether it has a use for more."""
        return self.expects is None or self.given < self.expects or self.given <= self.got

    def give(self, size: int, now: float) -> None:
        """It may be sent more."""
        self.given = max(self.given, self.got) + size
        self.credited_at = now
        self._marks.append((self.given, size, now))

    def take(self, size: int) -> Iterator[tuple[int, float]]:
        """Bytes came; the pieces that are whole by now: how many bytes, and when they were given."""
        self.got += size
        while self._marks and self._marks[0][0] <= self.got:
            _, piece, at = self._marks.popleft()
            yield piece, at


class Schedule:
    """The pulls of one peer.

    Args:
        streams: open at once.
        most: pulls that run or wait.
        message_bytes: of one full message.
    """

    def __init__(self, *, streams: int, most: int, message_bytes: int) -> None:
        self.flight = Flight(message_bytes)
        self._most = {PullClass.FIRST_TOKEN: most}
        self._open = {PullClass.FIRST_TOKEN: streams}
        rest = _rest(streams)
        self._open[PullClass.BATCH] = rest
        self._open[PullClass.PREFETCH] = max(1, rest * PREFETCH_PERCENT // 100)
        for each in (PullClass.BATCH, PullClass.PREFETCH):
            self._most[each] = _rest(most)
        self._queue: FairQueue[Claim] = FairQueue(most)
        self._running: dict[Claim, None] = {}
        self._classes: Counter[PullClass] = Counter()
        self._credit = Fairness()

    def __len__(self) -> int:
        """Pulls that run or wait."""
        return len(self._queue) + len(self._running)

    @property
    def urgent(self) -> bool:
        """Whether a first token is waited for."""
        first = PullClass.FIRST_TOKEN
        return bool(self._classes[first] or self._queue.count(first))

    @property
    def outstanding(self) -> int:
        """Bytes that pulls of lower classes may be sent and that have not come."""
        return sum(claim.outstanding for claim in self._running)

    def join(
        self, pull_class: PullClass, namespace: bytes, blocks: int = 1, expects: int | None = None
    ) -> Claim | None:
        """One more pull that waits for its turn; None if there is no room for it.

        Args:
            expects: bytes that its answer will have; None if nobody knows.
        """
        if len(self) >= self._most[pull_class]:
            return None
        claim = Claim(pull_class, namespace, blocks, expects)
        self._queue.add(claim, pull_class, namespace, blocks)
        return claim

    def next(self) -> Claim | None:
        """Whose turn it is to begin; None if nobody waits, or there is no room."""
        return self._queue.peek(self._has_room)

    def begin(self, claim: Claim, now: float) -> None:
        """It has its stream, and asks for what it may be sent from the beginning."""
        self._queue.take(claim)
        claim.began = True
        self._running[claim] = None
        self._classes[claim.pull_class] += 1
        if claim.pull_class is PullClass.FIRST_TOKEN:
            claim.free = True
        else:
            piece = self.flight.piece(urgent=self.urgent)
            claim.initial = min(piece, claim.expects or piece)
            self._give(claim, claim.initial, now)

    def came(self, claim: Claim, size: int, now: float) -> None:
        """Bytes of its answer."""
        if claim.free or claim not in self._running:
            return
        self.flight.came(size)
        for piece, at in claim.take(size):
            self.flight.sample(piece, now - at, now, urgent=self.urgent)

    def reclass(self, claim: Claim, pull_class: PullClass) -> None:
        """Somebody waits for it who is more urgent, or waits no longer. What was let be sent is on its way: a
        first token's pull under way stays free, and is in nobody's way as one any more."""
        if claim in self._running:
            self._classes[claim.pull_class] -= 1
            self._classes[pull_class] += 1
            claim.free = claim.free or pull_class is PullClass.FIRST_TOKEN
        elif claim in self._queue:
            self._queue.move(claim, pull_class)
        claim.pull_class = pull_class

    def leave(self, claim: Claim) -> None:
        """It has ended, or is given up; what it had is free. Twice is as good as once."""
        if not self._queue.drop(claim) and claim in self._running:
            del self._running[claim]
            self._classes[claim.pull_class] -= 1

    def credits(self, now: float) -> list[tuple[Claim, int]]:
        """Bytes that pulls under way may be sent from now on, beside what they may already."""
        urgent = self.urgent
        piece = self.flight.piece(urgent=urgent)
        window = self.flight.window(urgent=urgent)
        lower = [claim for claim in self._running if not claim.free]
        given = [(claim, piece) for claim in lower if self._starved_at(claim) <= now]
        for claim, _ in given:
            self._give(claim, piece, now)
        # One that is not sent what it may be leaves something for the others.
        most = window if len(lower) < 2 else max(piece, window - piece)
        while self.outstanding < window:
            wanting = [claim for claim in lower if claim.outstanding < most and claim.wants]
            if not wanting:
                break
            claim = self._next_of(wanting)
            self._give(claim, piece, now)
            given.append((claim, piece))
        else:
            if lower and not urgent:
                self.flight.filled()
        return given

    def wake_at(self) -> float | None:
        """When `credits` is to be asked at the latest."""
        waits = [self._starved_at(claim) for claim in self._running if not claim.free]
        return min(waits, default=None)

    def _starved_at(self, claim: Claim) -> float:
        return claim.credited_at + STARVED_SECONDS if not claim.outstanding else float("inf")

    def _give(self, claim: Claim, size: int, now: float) -> None:
        self._credit.charge(claim.pull_class, claim.namespace, size)
        claim.give(size, now)

    def _next_of(self, wanting: Sequence[Claim]) -> Claim:
        lanes: dict[PullClass, dict[bytes, list[Claim]]] = {}
        for claim in wanting:
            lanes.setdefault(claim.pull_class, {}).setdefault(claim.namespace, []).append(claim)
        pull_class, namespace = self._credit.next(lanes)
        # The first in the chain, of those that have been given as little.
        return min(lanes[pull_class][namespace], key=lambda claim: claim.outstanding)

    def _has_room(self, pull_class: PullClass) -> bool:
        # What one class may have open, those below it have of the same.
        for each, most in self._open.items():
            running = sum(n for other, n in self._classes.items() if other >= each)
            if each <= pull_class and running >= most:
                return False
        first = pull_class is PullClass.FIRST_TOKEN
        return first or self.outstanding < self.flight.window(urgent=self.urgent)


def _rest(count: int) -> int:
    """What is left for lower classes: one, if there is but one."""
    return max(1, count - max(1, count * KEPT_PERCENT // 100))
