"""What goes between a gateway and those of its peers: the methods, messages from bytes, and what fails."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from federation.counters import counters
from federation.errors import PeerError
from federation.limits.errors import LateError, ShedError

HELLO_METHOD = "/moonmesh.v1.Peer/Hello"
CATALOG_METHOD = "/moonmesh.v1.Peer/Catalog"
PULL_METHOD = "/moonmesh.v1.Peer/Pull"
NAMESPACES_METHOD = "/moonmesh.v1.Peer/Namespaces"

RETRY_AFTER = "retry-after-ms"
"""In the trailer of a refusal for want of room: ms after which there may be some."""

WORKER = "moonmesh-worker"
"""In the head of an answer: which of several serving processes it is of, as `worker_metadata` says it."""

M = TypeVar("M", bound=Message)


class UnreachableError(PeerError):
    """No connection to the peer could be made or kept."""

    code = "MM306"
    failure = "unreachable"


class LostError(UnreachableError):
    """A connection ended under a call, and another to the same gateway stands: one of the processes behind
    its address has ended, or the connection had its time. The peer is well."""

    code = "MM324"
    failure = "lost"


class RefusedError(PeerError):
    """The peer answered, and will not do what it was asked."""

    code = "MM307"


class DeniedError(RefusedError):
    """The peer will not do it for this group, as it is configured: asking again soon is of no use."""

    code = "MM322"


class OversizeError(PeerError):
    """The peer sent a message above the limit; it was not read."""

    code = "MM308"
    failure = "protocol"


class UnaskedError(PeerError):
    """The peer answered what it was not asked."""

    code = "MM317"
    failure = "protocol"


class SilentError(PeerError):
    """A gateway that does not speak for its group was asked what only one that does can answer.

    It is well, and says nothing against the peer: another gateway of it may answer.
    """

    code = "MM316"
    failure = "ours"


def worker_metadata(worker: int, workers: int) -> tuple[tuple[str, str], ...]:
    """That an answer is of the second of four, say (`1/4`); nothing for one that is alone."""
    return ((WORKER, f"{worker}/{workers}"),) if workers > 1 else ()


def which_worker(metadata: Iterable[tuple[str, str | bytes]] | None) -> tuple[int, int]:
    """Of which process an answer is, and how many there are; (0, 1) where it does not say."""
    for name, value in metadata or ():
        if name == WORKER and isinstance(value, str) and len(value) <= 5:
            worker, _, workers = value.partition("/")
            if worker.isdecimal() and workers.isdecimal() and int(worker) < int(workers):
                return int(worker), int(workers)
    return 0, 1


def retry_after(error: grpc.aio.AioRpcError, ms_max: int) -> float | None:
    """Seconds that a refusal asks us to wait, `ms_max` ms at most; None if it does not."""
    for name, value in error.trailing_metadata() or ():
        if name == RETRY_AFTER:
            text = value.decode("ascii", "replace") if isinstance(value, bytes) else value
            if text.isascii() and text.isdigit() and len(text) <= 9:
                return min(ms_max, int(text)) / 1000
    return None


def explain(error: grpc.aio.AioRpcError, peer: str, retry_after_max_ms: int) -> PeerError:
    """What a call to a peer ended with."""
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNAVAILABLE:
        return UnreachableError(details, where=peer)
    wait = retry_after(error, retry_after_max_ms)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and wait is not None:
        return ShedError(f"it refuses for now: {details}", retry_after=wait, where=peer)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
        return OversizeError("it sent a message above the limit", where=peer)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return LateError("no answer within the deadline", where=peer)
    what = f"it refused: {details}" if details else f"it answered {code.name}"
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return DeniedError(what, where=peer)
    return RefusedError(what, where=peer)


def parse(kind: type[M], raw: bytes, where: str) -> M:
    """A message from a peer.

    Raises:
        PeerError: if the bytes are no such message.
    """
    message = kind()
    try:
        message.ParseFromString(raw)
    except DecodeError as error:
        raise PeerError(f"bytes that are no {kind.__name__}", where=where) from error
    return message


def sent(message: Message) -> bytes:
    """The bytes of a message that is about to be sent, counted."""
    raw = message.SerializeToString()
    counters.add("moonmesh_metadata_sent_bytes_total", len(raw))
    return raw


def received(raw: bytes) -> bytes:
    """The bytes of a message that came, counted."""
    counters.add("moonmesh_metadata_received_bytes_total", len(raw))
    return raw
