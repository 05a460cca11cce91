"""What operators ask a gateway for, on the unix socket alone: how it is, to purge, to trust again."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from federation.peers.side import PeerSide
from federation.purge import Purge
from moonmesh.v1 import engine_pb2

PURGE_SECONDS_MAX = 3600


class AdminService:
    """The service `moonmesh.v1.Admin`.

    Args:
        status: makes the gateway's document.
        peers: None for a group that runs alone.
        namespaces: makes the document of `moonmesh namespaces`.
        take_orders: puts in force what an operator has switched off; returns why it is not, "" if it is.
        new_pool: makes the pool of this place that of its group; returns why that is refused, "" if it is
            so. None for a group of one place, whose pool nobody doubts.
    """

    def __init__(
        self,
        status: Callable[[], Awaitable[dict[str, Any]]],
        purge: Purge,
        peers: PeerSide | None,
        namespaces: Callable[[], Awaitable[dict[str, Any]]],
        take_orders: Callable[[], Awaitable[str]],
        new_pool: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        self._status = status
        self._namespaces = namespaces
        self._purge = purge
        self._peers = peers
        self._take_orders = take_orders
        self._new_pool = new_pool

    def handlers(self) -> grpc.GenericRpcHandler:
        """For a server that no other user can reach."""
        methods = {
            "Status": self.status,
            "Purge": self.purge,
            "ReleasePeer": self.release_peer,
            "Namespaces": self.namespaces,
            "NewPool": self.new_pool,
            "TakeOrders": self.take_orders,
        }
        return grpc.method_handlers_generic_handler(
            "moonmesh.v1.Admin",
            {name: grpc.unary_unary_rpc_method_handler(work) for name, work in methods.items()},
        )

    async def status(self, raw: bytes, context: grpc.aio.ServicerContext) -> bytes:
        """All that the gateway says of itself, as JSON."""
        reply = engine_pb2.StatusReply(status_json=json.dumps(await self._status()))
        return bytes(reply.SerializeToString())

    async def purge(self, raw: bytes, context: grpc.aio.ServicerContext) -> bytes:
        """Takes out what came from one group; ends with its caller at the latest."""
        asked = engine_pb2.PurgeRequest.FromString(raw)
        done = await self._purge.run(
            asked.origin,
            epoch=asked.epoch if asked.HasField("epoch") else None,
            force=asked.force,
            seconds=min(asked.seconds, PURGE_SECONDS_MAX),
        )
        reply = engine_pb2.PurgeReply(removed=done.removed, left=done.left, origins=done.origins)
        return bytes(reply.SerializeToString())

    async def release_peer(self, raw: bytes, context: grpc.aio.ServicerContext) -> bytes:
        """Takes a peer out of gossip's quarantine."""
        peer = engine_pb2.ReleasePeerRequest.FromString(raw).peer
        reply = engine_pb2.ReleasePeerReply()
        names = list(self._peers.sessions.links) if self._peers else []
        if self._peers is None or peer not in names:
            reply.peers.extend(names)
        else:
            reply.known = True
            reply.reason = self._peers.release(peer)
        return bytes(reply.SerializeToString())

    async def namespaces(self, raw: bytes, context: grpc.aio.ServicerContext) -> bytes:
        """This group's namespaces beside those of its peers, as JSON."""
        told = json.dumps(await self._namespaces())
        return bytes(engine_pb2.NamespacesAnswer(namespaces_json=told).SerializeToString())

    async def take_orders(self, raw: bytes, context: grpc.aio.ServicerContext) -> bytes:
        """Puts in force what an operator has switched off."""
        problem = await self._take_orders()
        return bytes(engine_pb2.OrdersReply(problem=problem).SerializeToString())

    async def new_pool(self, raw: bytes, context: grpc.aio.ServicerContext) -> bytes:
        """Makes the pool of this place that of its group."""
        refused = "" if self._new_pool is None else await self._new_pool()
        return bytes(engine_pb2.NewPoolReply(refused=refused).SerializeToString())
