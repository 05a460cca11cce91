"""Asking a gateway over its unix socket: does it serve, and how is it?"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from moonmesh.v1 import engine_pb2

Reply = TypeVar("Reply", bound=Message)

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
    reply = _ask(socket, "Status", engine_pb2.StatusRequest(), engine_pb2.StatusReply, timeout)
    return reply if isinstance(reply, str) else _object(reply.status_json, "status")


def ask_namespaces(socket: Path, timeout: float) -> dict[str, Any] | str:
    """This group's namespaces beside those of its peers; or, as text, why they are not known."""
    asked, answer = engine_pb2.NamespacesQuestion(), engine_pb2.NamespacesAnswer
    reply = _ask(socket, "Namespaces", asked, answer, timeout)
    return reply if isinstance(reply, str) else _object(reply.namespaces_json, "answer")


def ask_purge(
    socket: Path, origin: str, epoch: int | None, force: bool, seconds: int, timeout: float
) -> engine_pb2.PurgeReply | str:
    """What became of a purge; or, as text, why it was not done."""
    asked = engine_pb2.PurgeRequest(origin=origin, epoch=epoch, force=force, seconds=seconds)
    return _ask(socket, "Purge", asked, engine_pb2.PurgeReply, timeout)


def ask_release(
    socket: Path, peer: str, timeout: float = ASK_TIMEOUT_S
) -> engine_pb2.ReleasePeerReply | str:
    """What became of taking a peer out of quarantine; or, as text, why it was not done."""
    asked = engine_pb2.ReleasePeerRequest(peer=peer)
    return _ask(socket, "ReleasePeer", asked, engine_pb2.ReleasePeerReply, timeout)


def ask_orders(socket: Path, timeout: float = ASK_TIMEOUT_S) -> str:
    """Why what an operator has switched off is not in force; "" once it is."""
    reply = _ask(socket, "TakeOrders", engine_pb2.OrdersRequest(), engine_pb2.OrdersReply, timeout)
    return reply if isinstance(reply, str) else reply.problem


def ask_new_pool(socket: Path, timeout: float) -> str:
    """Why the pool of this place is not made that of its group; "" once it is."""
    reply = _ask(socket, "NewPool", engine_pb2.NewPoolRequest(), engine_pb2.NewPoolReply, timeout)
    return reply if isinstance(reply, str) else reply.refused


def _object(text: str, what: str) -> dict[str, Any] | str:
    with contextlib.suppress(ValueError):
        found = json.loads(text)
        if isinstance(found, dict):
            return found
    return f"the gateway's {what} is not JSON"


def _ask(
    socket: Path, method: str, request: Message, reply: type[Reply], timeout: float
) -> Reply | str:
    if not socket.exists():
        return "the gateway has no socket: it is not running"
    options = [("grpc.max_receive_message_length", STATUS_BYTES_MAX)]
    with grpc.insecure_channel(f"unix:{socket}", options=options) as channel:
        call = channel.unary_unary(
            f"/moonmesh.v1.Admin/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=reply.FromString,
        )
        try:
            answer: Reply = call(request, timeout=timeout)
        except grpc.RpcError as error:
            code = error.code().name if isinstance(error, grpc.Call) else type(error).__name__
            return f"the gateway does not answer: {code}"
    return answer
