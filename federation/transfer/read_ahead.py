"""The windows of one answer, each read out of Mooncake while the one before it is sent.

Reading and sending use different things: without this, each stands still while the other goes on. One window
is read ahead and no more, where there is memory for it at once: who holds a window and waits for another
would wait for somebody who does the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import NamedTuple

from federation.counters import counters
from federation.transfer.window import WindowRoom
from local_group.holdings import Held
from local_group.store import ReadBatch


class Wanted(NamedTuple):
    """A block of a request."""

    place: int
    """The key's index in the request."""
    key: str
    held: Held | None
    """None where the block is not offered, or is larger than the peer has room for."""
    size: int = 0
    """Bytes, as reported or, of a block that nobody attested, as the master says."""


class Window:
    """What is copied out of Mooncake in one go."""

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self.wanted = wanted
        self.here = [(each, each.held) for each in wanted if each.held is not None]
        self.size = sum(each.size for each, _ in self.here)
        """Bytes."""
        self.blocks: ReadBatch | None = None
        """Those of `here`, once they are read."""
        self._room: WindowRoom | None = None

    def came(self, blocks: ReadBatch, room: WindowRoom) -> None:
        """It is read, into memory for which this room was taken."""
        self.blocks, self._room = blocks, room

    def give_back(self) -> None:
        """It has been sent, or will not be."""
        blocks, self.blocks = self.blocks, None
        room, self._room = self._room, None
        if blocks is not None:
            blocks.release()
        if room is not None:
            room.give()


class ReadAhead:
    """Iterates over windows that are read; each is given back when the next one is asked for. Use it in an
    `async with`: at its end, however it comes, nothing is held any more.

    Args:
        cut: the request, window by window.
        read: copies one out of Mooncake.
        room: for one window.
    """

    def __init__(
        self,
        cut: AsyncGenerator[list[Wanted], None],
        read: Callable[[Window], Awaitable[ReadBatch]],
        room: Callable[[], WindowRoom],
    ) -> None:
        self._cut = cut
        self._read = read
        self._room = room
        self._now: Window | None = None
        self._left = 0
        self._coming: asyncio.Task[Window | None] | None = None

    async def __aenter__(self) -> ReadAhead:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._give_back()
        coming, self._coming = self._coming, None
        if coming is None:
            return
        coming.cancel()
        await asyncio.wait({coming})
        if not coming.cancelled() and coming.exception() is None:
            window = coming.result()
            if window is not None:
                window.give_back()

    def __aiter__(self) -> ReadAhead:
        return self

    async def __anext__(self) -> Window:
        self._give_back()
        if self._coming is None:
            window = await self._next()
        else:
            window = await self._coming  # of which this one is cancelled, if we are
            self._coming = None
        if window is None:
            raise StopAsyncIteration
        self._now, self._left = window, window.size
        if window.blocks is None and window.here:
            room = self._room()
            await room.take(window.size)
            await self._fill(window, room)
        return window

    @property
    def ready(self) -> bool:
        """Whether the next window can be sent now, or nothing follows."""
        coming = self._coming
        if coming is None or not coming.done() or coming.cancelled() or coming.exception():
            return False
        window = coming.result()
        return window is None or window.blocks is not None or not window.here

    def sent(self, size: int, credit: float) -> None:
        """So many bytes of this window are sent; the next one is read, if it may be sent.

        Args:
            credit: bytes that may be sent now.
        """
        self._left -= size
        if self._coming is None and credit > self._left:
            self._coming = asyncio.create_task(self._ahead())

    async def _ahead(self) -> Window | None:
        window = await self._next()
        if window is not None and window.here:
            room = self._room()
            if room.take_now(window.size):
                counters.add("moonmesh_serve_windows_ahead_total")
                await self._fill(window, room)
        return window

    async def _next(self) -> Window | None:
        wanted = await anext(self._cut, None)
        return None if wanted is None else Window(wanted)

    async def _fill(self, window: Window, room: WindowRoom) -> None:
        try:
            blocks = await self._read(window)
        except BaseException:
            room.give()
            raise
        window.came(blocks, room)

    def _give_back(self) -> None:
        window, self._now = self._now, None
        if window is not None:
            window.give_back()
