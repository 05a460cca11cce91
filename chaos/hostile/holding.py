"""Calls that are begun and kept open: what they hold at the target is what is attacked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import grpc.aio

from chaos.hostile.books import Books
from federation.peers.wire import CATALOG_METHOD, PULL_METHOD
from moonmesh.v1 import peer_pb2

POLLS = 12
POLL_MS = 5000
CALL_S = 5.0
STREAMS_FIRST_S = 0.2
LOOK_S = 0.1
HELD_LOOKS = 10
"""A question that is open at so many looks in a row is held. Counted in looks, since on a busy machine a
refusal takes its time, and this process may sleep through it."""
AGAIN_S = 0.1
"""After a call that has ended: the next in its place."""


class Holder:
    """Begins calls and leaves them open; those that end are begun again.

    Args:
        channel: makes a connection to the target.
        books: where it is written down how many the target let wait.
        snapshot: a question for the whole catalog, encoded.
        pull: a question for blocks, encoded; its answer is not read.
    """

    def __init__(
        self,
        channel: Callable[[], grpc.aio.Channel],
        books: Books,
        snapshot: bytes,
        pull: bytes,
    ) -> None:
        self._channel = channel
        self._books = books
        self._snapshot = snapshot
        self._pull = pull
        self._polls: dict[int, int] = {}
        """Looks at each of the open questions."""

    async def run(self, streams: int) -> None:
        """Holds `streams` pulls, and then questions for what is new, until it is cancelled."""
        async with self._channel() as channel:
            poll = await self._poll(channel)
            places = [self._hold({}, i, channel, PULL_METHOD, self._pull)
                      for i in range(streams)]  # fmt: skip
            places += [
                self._hold(
                    self._polls, i, channel, CATALOG_METHOD, poll, STREAMS_FIRST_S if streams else 0
                )
                for i in range(POLLS)
            ]
            await asyncio.gather(self._look(), *places)

    async def _poll(self, channel: grpc.aio.Channel) -> bytes:
        """The question for what is newer than the catalog is now."""
        request = peer_pb2.CatalogRequest.FromString(self._snapshot)
        call = channel.unary_stream(CATALOG_METHOD)(self._snapshot, timeout=CALL_S)
        async for raw in call:
            request.after.CopyFrom(peer_pb2.CatalogPage.FromString(raw).position)
        request.wait_ms = POLL_MS
        return bytes(request.SerializeToString())

    async def _hold(
        self,
        places: dict[int, int],
        place: int,
        channel: grpc.aio.Channel,
        method: str,
        raw: bytes,
        wait: float = 0.0,
    ) -> None:
        await asyncio.sleep(wait)
        while True:
            self._books.calls += 1
            call = channel.unary_stream(method)(raw, timeout=CALL_S)
            places[place] = 0
            try:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    if await call.code() is not grpc.StatusCode.OK:
                        self._books.refused += 1
            finally:
                del places[place]
                call.cancel()
            await asyncio.sleep(AGAIN_S)

    async def _look(self) -> None:
        books = self._books
        while True:
            await asyncio.sleep(LOOK_S)
            for place in self._polls:
                self._polls[place] += 1
            held = sum(looks >= HELD_LOOKS for looks in self._polls.values())
            books.held_polls_max = max(books.held_polls_max, held)
