"""Asking a gateway over its unix socket: does it serve, and how is it?"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from moonmesh.v1 import engine_pb2

ASK_TIMEOUT_S = 2.0
STATUS_BYTES_MAX = 16 << 20


async def serving(socket: Path, timeout: float = ASK_TIMEOUT_S) -> bool:
    """Does the gateway answer SERVING (grpc.health.v1)?"""
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            reply = await stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout)
        except grpc.aio.AioRpcError:  # also while there is no socket yet
            return False
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


def ask_status(socket: Path, timeout: float = ASK_TIMEOUT_S) -> dict[str, Any] | str:
    """The gateway's own status; or, as text, why there is none."""
    if not socket.exists():
        return "the gateway has no socket: it is not running"
    options = [("grpc.max_receive_message_length", STATUS_BYTES_MAX)]
    with grpc.insecure_channel(f"unix:{socket}", options=options) as channel:
        call = channel.unary_unary(
            "/moonmesh.v1.Admin/Status",
            request_serializer=engine_pb2.StatusRequest.SerializeToString,
            response_deserializer=engine_pb2.StatusReply.FromString,
        )
        try:
            reply = call(engine_pb2.StatusRequest(), timeout=timeout)
        except grpc.RpcError as error:
            code = error.code().name if isinstance(error, grpc.Call) else type(error).__name__
            return f"the gateway does not answer: {code}"
    with contextlib.suppress(ValueError):
        status = json.loads(reply.status_json)
        if isinstance(status, dict):
            return status
    return "the gateway's status is not JSON"
