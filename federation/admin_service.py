"""What operators ask a gateway for, on the unix socket alone: how it is, and to purge."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from federation.purge import Purge
from moonmesh.v1 import engine_pb2

PURGE_SECONDS_MAX = 3600


class AdminService:
    """The service `moonmesh.v1.Admin`.

    Args:
        status: makes the gateway's document.
    """

    def __init__(self, status: Callable[[], Awaitable[dict[str, Any]]], purge: Purge) -> None:
        self._status = status
        self._purge = purge

    def handlers(self) -> grpc.GenericRpcHandler:
        """For a server that no other user can reach."""
        methods = {"Status": self.status, "Purge": self.purge}
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
