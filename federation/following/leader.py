"""The leader's side: it tells each follower what it holds. A slow one costs it no more than a fast one."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import Callable, Collection
from typing import NoReturn, Protocol, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from federation.config import GATEWAYS_MAX
from federation.peers.feed import Feed
from federation.timeouts import timeout
from local_group.holdings import Change, Holdings
from moonmesh.v1 import group_pb2, serving_pb2

FOLLOW_METHOD = "/moonmesh.v1.Group/Follow"
REQUEST_BYTES_MAX = 1024
BEAT_S = 1.0
"""Seconds after which a follower is told that nothing is new."""
UNREAD_S = 10.0
"""Seconds for which a page is not read, after which the stream ends: the follower is frozen, or cut off.
Until then it costs its set of changed blocks, which is bounded (`federation.peers.feed`)."""

Context: TypeAlias = grpc.aio.ServicerContext


class Term(Protocol):
    """This gateway's term."""

    @property
    def epoch(self) -> int:
        """Its epoch."""

    def valid(self) -> bool:
        """Does it lead, at this moment?"""


class _Stream:
    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.wake = asyncio.Event()
        self.replaced = False


class GroupService:
    """The method that a gateway serves to others of its group.

    Args:
        namespaces: fingerprints whose blocks are told.
        term: whether, and in which epoch, this gateway leads.
    """

    def __init__(self, holdings: Holdings, namespaces: Collection[bytes], term: Term) -> None:
        self._holdings = holdings
        self._namespaces = frozenset(namespaces)
        self._term = term
        self._streams: dict[str, _Stream] = {}
        self._closed = asyncio.Event()
        self._admitted: Callable[[Context], bool] = lambda context: True

    def only_for(self, admitted: Callable[[Context], bool]) -> GroupService:
        """The same service for an endpoint where `admitted` says who is a gateway of this group."""
        guarded = copy.copy(self)
        guarded._admitted = admitted
        return guarded

    def handlers(self) -> grpc.GenericRpcHandler:
        """For `server.add_generic_rpc_handlers`."""
        return grpc.method_handlers_generic_handler(
            "moonmesh.v1.Group", {"Follow": grpc.unary_stream_rpc_method_handler(self.follow)}
        )

    @property
    def followers(self) -> list[str]:
        """Who follows now."""
        return sorted(self._streams)

    @property
    def waiting(self) -> int:
        """Changed blocks that wait to be told, over all followers."""
        return sum(stream.feed.waiting for stream in self._streams.values())

    def take(self, change: Change) -> None:
        """A block came or went, or is another than it was."""
        for stream in self._streams.values():
            stream.feed.take(change)
            stream.wake.set()

    def rest(self) -> None:
        """The term is over: streams end now, not at their next beat."""
        for stream in self._streams.values():
            stream.wake.set()

    def close(self) -> None:
        """Ends all streams, and begins none: to be called before the server is stopped, whose grace is for
        calls that end by themselves."""
        self._closed.set()
        self.rest()

    async def follow(self, raw: bytes, context: Context) -> None:
        """All that is held here, then what changes, for as long as this gateway leads."""
        if not self._admitted(context):
            why = "only a gateway of the group may follow: its certificate is engine-server.pem"
            await _refuse(context, why, "PERMISSION_DENIED")
        request = group_pb2.FollowRequest()
        try:
            if len(raw) > REQUEST_BYTES_MAX:
                raise DecodeError
            request.ParseFromString(raw)
        except DecodeError:
            await _refuse(context, "bytes that are no message", "INVALID_ARGUMENT")
        if not request.member or not request.member.isprintable():
            await _refuse(context, "a follower without a name", "INVALID_ARGUMENT")
        if not self._leads(request.epoch):
            await _refuse(context, "this gateway does not lead its group", "FAILED_PRECONDITION")
        before = self._streams.get(request.member)
        if before is not None:
            before.replaced = True
            before.wake.set()
        elif len(self._streams) >= GATEWAYS_MAX:
            await _refuse(context, f"{GATEWAYS_MAX} follow already", "RESOURCE_EXHAUSTED")
        stream = _Stream(Feed(self._holdings, self._namespaces, everything=True))
        self._streams[request.member] = stream
        try:
            await self._tell(stream, request.epoch, context)
        finally:
            if self._streams.get(request.member) is stream:
                del self._streams[request.member]

    async def _tell(self, stream: _Stream, epoch: int, context: Context) -> None:
        while self._leads(epoch) and not stream.replaced:
            stream.wake.clear()
            message = stream.feed.next()
            if message is None:
                with contextlib.suppress(asyncio.TimeoutError):
                    async with timeout(BEAT_S):
                        await stream.wake.wait()
                        continue
            try:
                async with timeout(UNREAD_S):
                    await context.write(page(self._term.epoch, message).SerializeToString())
            except asyncio.TimeoutError:
                return

    def _leads(self, epoch: int) -> bool:
        return not self._closed.is_set() and self._term.valid() and self._term.epoch >= epoch


def page(epoch: int, message: serving_pb2.ToServing | None) -> group_pb2.FollowPage:
    """A message of a feed, or that there is none, for a follower."""
    made = group_pb2.FollowPage(epoch=epoch)
    if message is not None:
        which = message.WhichOneof("what")
        assert which is not None
        getattr(made, which).CopyFrom(getattr(message, which))
        getattr(made, which).SetInParent()
    return made


async def _refuse(context: Context, why: str, code: str) -> NoReturn:
    await context.abort(grpc.StatusCode[code], why)
    raise AssertionError("abort raises")
