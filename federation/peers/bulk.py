"""Connections for blocks to one gateway of a peer: several, since one is worth no more than one core.

A connection is one at both ends: its TLS is one thread's work here, and at a peer with several serving
processes it leads to one of them. Pulls go over whichever has fewest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
import grpc.aio

from federation.timeouts import timeout as timeout_of

_READY = grpc.ChannelConnectivity.READY
_BROKEN = grpc.ChannelConnectivity.TRANSIENT_FAILURE


class Bulk:
    """See the module. No connection is made before the first pull; then all of them are.

    Args:
        make: makes a channel, with connections of its own.
        count: how many.
    """

    def __init__(self, make: Callable[[], grpc.aio.Channel], count: int) -> None:
        self.channels = [make() for _ in range(count)]
        self._open = [0] * count

    @contextmanager
    def one(self) -> Iterator[grpc.aio.Channel]:
        """The channel for one more pull, which is counted on it until the end of the block.

        One that stands; as long as none does, one that is not known to be broken. Of those the one with
        fewest pulls: who stood still would have none, and be chosen for it, were it not for the states.
        """
        place = self._choose()
        self._open[place] += 1
        try:
            yield self.channels[place]
        finally:
            self._open[place] -= 1

    @property
    def stands(self) -> bool:
        """Whether a connection stands now."""
        return any(channel.get_state() is _READY for channel in self.channels)

    async def ready(self, seconds: float) -> bool:
        """Waits for a connection, for at most `seconds`; whether one stands."""
        waiting = [asyncio.create_task(_stands(channel)) for channel in self.channels]
        try:
            async with timeout_of(seconds):
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.TimeoutError:
            return False
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        return True

    async def close(self) -> None:
        """Closes the connections; calls on them end with an error."""
        await asyncio.gather(*(channel.close(None) for channel in self.channels))

    def _choose(self) -> int:
        states = [channel.get_state(try_to_connect=True) for channel in self.channels]
        places = range(len(states))
        usable = [place for place in places if states[place] is _READY]
        usable = usable or [place for place in places if states[place] is not _BROKEN]
        return min(usable or places, key=self._open.__getitem__)


async def _stands(channel: grpc.aio.Channel) -> None:
    while (state := channel.get_state(try_to_connect=True)) is not _READY:
        await channel.wait_for_state_change(state)
