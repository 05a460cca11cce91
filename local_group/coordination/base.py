"""The interface of coordination: one leader a group, its epochs, and a small configuration."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass

from local_group.coordination.lease import Lease, clock
from local_group.process_errors import CoordinationError, CoordinationGone, Fenced

if sys.version_info >= (3, 11):
    from asyncio import timeout
else:
    from async_timeout import timeout

EPOCH_MAX = 1 << 32
"""The highest that peers believe: a term in a later one could not be spoken in."""
KEY_BYTES_MAX = 128
VALUE_BYTES_MAX = 16 << 10
KEYS_MAX = 1024
"""Keys of the configuration: it is small, and every member may hold all of it."""
CALL_SECONDS = 5.0
"""For one call, however often it is tried within."""
RETRY_SECONDS = 0.05
"""Between two tries of a call."""
ASK_SECONDS = 0.1
"""Between two looks of who waits to lead."""

__all__ = [
    "ASK_SECONDS",
    "CALL_SECONDS",
    "EPOCH_MAX",
    "KEYS_MAX",
    "KEY_BYTES_MAX",
    "RETRY_SECONDS",
    "VALUE_BYTES_MAX",
    "Changed",
    "Coordination",
    "Leader",
    "Listed",
    "Term",
    "check_entry",
    "check_valid",
    "keep",
    "timeout",
]

_KEY = re.compile(r"[a-z0-9][a-z0-9._/-]*")


@dataclass(frozen=True)
class Leader:
    """Who leads.

    Attributes:
        member: its name among the group's gateways.
        address: where followers reach it, `host:port` or `unix:path`.
        epoch: of its term.
    """

    member: str
    address: str
    epoch: int


@dataclass(frozen=True)
class Listed:
    """All keys that are watched, as they are now: what was known before is replaced by it."""

    values: Mapping[str, bytes]


@dataclass(frozen=True)
class Changed:
    """One key has a new value; None if it is gone."""

    key: str
    value: bytes | None


class Term:
    """The time of one leader. Made by a backend.

    Attributes:
        epoch: above every earlier one of this group; durable.
        token: what a write of this term is fenced with.
        lost: set once the term is over, for those who wait. Who is about to speak asks `valid`:
            a process that was frozen is thawed before its loop can set anything.
    """

    def __init__(self, epoch: int, token: int, lease: Lease) -> None:
        self.epoch = epoch
        self.token = token
        self.lost = asyncio.Event()
        self._lease = lease
        self._ended = False

    def valid(self, now: float | None = None) -> bool:
        """May this term still speak and write? Once False, always False.

        Args:
            now: of `lease.clock`; the present by default.
        """
        held = self._lease.holds(clock() if now is None else now)
        return held and not self._ended

    def end(self) -> None:
        """It is over, for this process; nothing is released."""
        self._ended = True
        self.lost.set()


class Coordination(ABC):
    """One member's connection to the group's coordination.

    Calls end within `CALL_SECONDS` and raise `CoordinationGone` where nobody answers; `campaign` and
    `watch` go on for ever. Usable from one event loop.

    Args:
        member: this gateway's name.
        address: where followers reach it while it leads.
    """

    def __init__(self, member: str, address: str) -> None:
        self.member = member
        self.address = address

    @abstractmethod
    async def start(self) -> None:
        """Connect. Raises CoordinationError if it can never work as configured."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect; a term that was not resigned is over, and ends for others with its lease."""

    @abstractmethod
    async def campaign(self, floor: int = 0) -> Term:
        """Wait until this member leads. Cancelling it leaves no claim behind for longer than a lease.

        Args:
            floor: the epoch will be above it: the highest that peers remember of this group.

        Raises:
            CoordinationError: it can never lead: damage, a full disk, the end of the epochs.
        """

    @abstractmethod
    async def above(self, term: Term, floor: int) -> Term:
        """Go on leading in a new epoch, above `floor`; `term` is over.

        Raises:
            Fenced: another leads by now.
            CoordinationGone: nobody answered; `term` is over too.
        """

    @abstractmethod
    async def resign(self, term: Term) -> None:
        """End a term, so that another need not wait for the lease. Raises nothing."""

    @abstractmethod
    async def leader(self) -> Leader | None:
        """Who leads, as far as is known; None if nobody does."""

    @abstractmethod
    async def get(self, key: str) -> bytes | None:
        """A value of the configuration. A leader sees every acknowledged write; a follower may be a
        moment behind."""

    @abstractmethod
    async def put(self, key: str, value: bytes, term: Term) -> None:
        """Write a value; every member sees it once this has returned, and it is never lost.

        Raises:
            Fenced: the term is over; nothing was written.
            CoordinationGone: nobody answered: it may have been written, or may be yet, unless it is
                written again.
            CoordinationError: the key or the value is not allowed, or there are too many.
        """

    @abstractmethod
    def watch(self, prefix: str) -> AsyncIterator[Listed | Changed]:
        """What is under `prefix`: first all of it, then every change in its order, for ever.

        No change is lost. Where the changes since the last one are not known any more, all of it is
        listed again. One watcher that does not read costs a bounded amount of memory.
        """


def check_entry(key: str, value: bytes = b"") -> None:
    """Raises CoordinationError if such an entry is not allowed."""
    if len(key) > KEY_BYTES_MAX or not _KEY.fullmatch(key):
        raise CoordinationError(
            f"{key[:200]!r} is not a key: at most {KEY_BYTES_MAX} of a-z, 0-9 and . _ / -",
        )
    if len(value) > VALUE_BYTES_MAX:
        raise CoordinationError(
            f"a value of {len(value)} bytes is above {VALUE_BYTES_MAX}", where=key
        )


def check_valid(term: Term) -> None:
    """Raises Fenced if the term is over by this member's own clock."""
    if not term.valid():
        raise Fenced(f"the term of epoch {term.epoch} is over")


async def keep(term: Term, lease: Lease, renew: Callable[[], Awaitable[bool]]) -> None:
    """Renew a lease until its term is over; then ends it. The shell around `Lease`.

    Args:
        renew: one renewal; False if the term is not ours any more. It may raise CoordinationGone.
    """
    try:
        while term.valid():
            await asyncio.sleep(max(0.0, min(lease.renew_at, lease.deadline) - clock()))
            sent = clock()
            with contextlib.suppress(CoordinationGone, asyncio.TimeoutError):
                async with timeout(max(0.0, lease.deadline - sent)):
                    ours = await renew()
                if not ours:
                    return
                lease.renewed(sent, clock())
                continue
            await asyncio.sleep(RETRY_SECONDS)
    finally:
        term.end()
