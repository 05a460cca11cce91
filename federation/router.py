"""Asks a gateway where prefix chains are, for whoever decides which group a request goes to.

Answers come from the gateway's memory, in milliseconds, and are hints: what was there may be gone by now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, TypeVar

import grpc

from federation.errors import MoonmeshError
from federation.identity import Envelope
from federation.request_limits import RequestLimits
from federation.telemetry import inject
from federation.timeouts import Deadline
from federation.transfer.locating import LOCATE_METHOD
from federation.trust.credentials import EngineCredentials
from moonmesh.v1 import engine_pb2

LOCATE_SECONDS: Final = 1.0
"""Deadline of a question, unless the caller says otherwise."""
KEYS_MAX: Final = 65_536
"""Keys of one chain."""
REPLY_BYTES_MAX: Final = 1 << 20
"""Bytes of an answer: 64 groups with a name and a reason each."""


class RouterError(MoonmeshError):
    """The gateway does not say where a chain is."""

    code = "MM320"


@dataclass(frozen=True)
class Located:
    """What one group has of a chain, as far as the gateway knows."""

    group: str
    own: bool
    """It is the group of the gateway that was asked."""
    blocks: int | None
    """Leading run; None where that is not known: `reason` says why."""
    bytes: int | None
    """Of that run; None where it is not known."""
    bytes_estimated: bool
    """`bytes` goes by the sizes of other blocks: only their owner knows those of these."""
    age_ms: float | None
    """Since that was known to be so; None where it is not known, and for the own group, which is told of each
    block that is written, and of those that are gone by a listing now and then."""
    pull_ms: float | None
    """What it would take to pull the run, by how the latest pulls went; None if there were none. 0 for the
    own group."""
    compute_ms: float | None
    """What it would take an engine of the group that was asked to compute the run; None where its namespace
    does not say how fast they are."""
    usable: bool
    """Its blocks can be had now."""
    reason: str
    """Why not, or why `blocks` is not known."""

    @classmethod
    def told(cls, message: engine_pb2.Located) -> Located:
        """From the gateway."""

        def given(name: str) -> bool:
            return bool(message.HasField(name))

        return cls(
            message.group,
            message.own,
            message.blocks if given("blocks") else None,
            message.bytes if given("bytes") else None,
            message.bytes_estimated,
            message.age_ms if given("age_ms") else None,
            message.pull_ms if given("pull_ms") else None,
            message.compute_ms if given("compute_ms") else None,
            message.usable,
            message.reason,
        )

    def then(self, more: Located) -> Located:
        """With what it has of the keys that follow; only where it has all of those before."""
        if self.blocks is None or more.blocks is None:
            return self
        ages = [age for age in (self.age_ms, more.age_ms) if age is not None]
        blocks = self.blocks + more.blocks
        size = _sum(self.bytes, more.bytes)
        guessed = size is None and self.bytes is not None
        if size is None and self.bytes is not None:
            size = (
                self.bytes * blocks // max(1, self.blocks)
            )  # those that follow are like those before
        return replace(
            more,
            blocks=blocks,
            bytes=size,
            bytes_estimated=self.bytes_estimated or more.bytes_estimated or guessed,
            age_ms=max(ages, default=None),
            pull_ms=_sum(self.pull_ms, more.pull_ms),
            compute_ms=_sum(self.compute_ms, more.compute_ms),
        )


class Router:
    """A connection to one gateway. Thread-safe.

    Args:
        target: `unix:/path/to/gateway.sock` or `host:port`.
        envelope: the namespace that the chains are of.
        credentials: for `host:port`, the engine's half of the group's mTLS.
        limits: what fits one request to this gateway, where its operator has changed that.
    """

    def __init__(
        self,
        target: str,
        envelope: Envelope,
        credentials: EngineCredentials | None = None,
        limits: RequestLimits | None = None,
    ) -> None:
        self._target = target
        self._fingerprint = envelope.fingerprint()
        self._limits = limits or RequestLimits()
        options = [
            ("grpc.max_receive_message_length", REPLY_BYTES_MAX),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        if credentials is None:
            self._channel = grpc.insecure_channel(target, options)
        else:
            self._channel = grpc.secure_channel(
                target,
                credentials.channel_credentials(),
                [*options, *credentials.channel_options()],
            )
        self._locate = self._channel.unary_unary(LOCATE_METHOD)

    def __enter__(self) -> Router:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()

    def locate(self, keys: Sequence[str], timeout: float = LOCATE_SECONDS) -> list[Located]:
        """Where a chain is: one answer a group, that of the gateway first.

        A chain that is too long for one request is asked for piece by piece, until nobody has all of one.

        Args:
            keys: in chain order, at most `KEYS_MAX`.
            timeout: seconds for all of it.

        Raises:
            RouterError: the gateway does not answer, or refuses.
        """
        if not 0 < len(keys) <= KEYS_MAX:
            raise RouterError(f"{len(keys)} keys; a chain has 1 to {KEYS_MAX}")
        until = Deadline(timeout)
        found: dict[str, Located] = {}
        whole: set[str] = set()
        asked = 0
        for piece in self._limits.pieces(keys):
            answer = self._ask(keys[piece], until)
            if not asked:
                found = {each.group: each for each in answer}
            else:
                for each in answer:
                    if each.group in whole:
                        found[each.group] = found[each.group].then(each)
            asked = piece.stop
            whole = {name for name, each in found.items() if each.blocks == asked}
            if not whole:
                break
        if not asked:
            raise RouterError(f"a key over {self._limits.message_bytes} bytes")
        return list(found.values())

    def _ask(self, keys: Sequence[str], until: Deadline) -> list[Located]:
        request = engine_pb2.LocateRequest(fingerprint=self._fingerprint, keys=keys)
        try:
            raw = self._locate(request.SerializeToString(), timeout=until.left(), metadata=inject())
        except grpc.RpcError as error:
            code = error.code()
            if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION):
                raise RouterError(f"the gateway refuses: {error.details()}") from error
            raise RouterError(
                f"the gateway does not answer: {code.name.lower()}: {error.details()}",
                where=self._target,
                hint="is the group up?",
            ) from error
        return [Located.told(each) for each in engine_pb2.LocateReply.FromString(raw).groups]


_Number = TypeVar("_Number", int, float)


def _sum(one: _Number | None, other: _Number | None) -> _Number | None:
    return None if one is None or other is None else one + other
