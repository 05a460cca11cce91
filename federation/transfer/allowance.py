"""What a peer may send of an answer, told it as it grows: the messages that follow a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from moonmesh.v1 import peer_pb2


class Allowance:
    """Of one pull, at the side that asks, beyond the credit of its request. What was allowed and not yet told
    is told in one message."""

    def __init__(self) -> None:
        self._given = 0
        self._all = False
        self._changed = asyncio.Event()

    def give(self, size: int) -> None:
        """So many bytes more."""
        self._given += size
        self._changed.set()

    def give_all(self) -> None:
        """The rest, whatever it is."""
        self._all = True
        self._changed.set()

    async def messages(self) -> AsyncGenerator[peer_pb2.PullMore, None]:
        """Each as soon as there is something to tell; ends after the last.

        To each who asks, from the beginning on: what one gateway of a peer did not take is asked of the next.
        """
        told, told_all = 0, False
        while not told_all:
            while (told, told_all) == (self._given, self._all):
                self._changed.clear()
                await self._changed.wait()
            more, told, told_all = self._given - told, self._given, self._all
            yield peer_pb2.PullMore(credit=more, all=told_all)


class Credit:
    """Of one answer, at the side that sends.

    Args:
        size: bytes that may be sent at once; 0: all.
    """

    def __init__(self, size: int) -> None:
        self._left = size
        self._all = size == 0

    @property
    def spent(self) -> bool:
        """Whether more has to be allowed before anything is sent. The last message may overdraw it."""
        return not self._all and self._left <= 0

    def left(self) -> float:
        """Bytes that may be sent now."""
        return float("inf") if self._all else self._left

    def send(self, size: int) -> None:
        """A message of so many bytes."""
        self._left -= size

    def add(self, more: peer_pb2.PullMore) -> None:
        """What was said."""
        self._left += more.credit
        self._all = self._all or more.all
