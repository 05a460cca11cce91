"""Takes blocks of peers over from the gateway, into the caller's memory; each is checked there.

On the gateway's host they are copied out of its staging memory, mapped here; else they come as bytes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import grpc

from federation.counters import counters
from federation.errors import PeerError
from federation.identity import block_digest
from federation.memory import bytes_at, copy_between
from federation.taken import Taken
from federation.telemetry import inject
from federation.timeouts import Deadline
from federation.transfer.fair import PullClass
from federation.transfer.frames import Block, Decoder
from federation.transfer.handover import LEND_METHOD, PULL_METHOD
from federation.transfer.passing import Mapping, PassingError
from federation.transfer.places import PlaceReader
from federation.watched import Watched
from moonmesh.v1 import engine_pb2

log = logging.getLogger(__name__)

MESSAGE_BYTES_MAX: Final = 5 * 1024 * 1024
"""The longest message of a pull: the largest `limits.message_bytes` a gateway may be given, and headers."""

Into: TypeAlias = Callable[[int, int], int]
"""The address that a block goes to, by its index and its size in bytes; there is room for it."""


class _Arrival(NamedTuple):
    block: int
    """Index of the key in the request."""
    address: int
    size: int
    digest: bytes


class Taking:
    """Calls of the engine's threads, each with its own memory. `renew` is for one other thread.

    Args:
        socket: the gateway's, where it is on this host.
        failed: told of calls that ended by an error.
        watched: told of each call, and ends those that the gateway leaves without a word.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        fingerprint: bytes,
        socket: Path | None,
        failed: Callable[[grpc.RpcError], object],
        watched: Watched,
    ) -> None:
        self._pull = channel.unary_stream(PULL_METHOD)
        self._lend = channel.unary_stream(LEND_METHOD)
        self._fingerprint = fingerprint
        self._socket = socket
        self._failed = failed
        self._watched = watched
        self._mapping: Mapping | None = None
        self._refused = 0
        """Name of a memory that could not be mapped."""
        self.taken = Taken()
        """What came from peers a short while ago."""

    @property
    def maps(self) -> bool:
        """Whether blocks are taken out of the gateway's memory."""
        return self._mapping is not None

    def renew(self, name: int) -> None:
        """The gateway lends memory of this name (0: none): maps it, if it is another one."""
        mapping = self._mapping
        if self._socket is None or name == (mapping.name if mapping else self._refused):
            return
        self._mapping = None
        if name:
            try:
                self._mapping = Mapping.fetch(self._socket)
            except PassingError as error:
                self._refused = name
                log.warning("blocks of peers are not taken out of the gateway's memory: %s", error)

    def take(
        self,
        keys: Sequence[str],
        max_sizes: Sequence[int],
        into: Into,
        timeout: float,
        before: str = "",
    ) -> Iterator[tuple[int, int]]:
        """Index and size of each block of the chain, once it is in the caller's memory and found to be what
        its writer wrote; ends at the deadline, or early. Where nothing is told of, memory may have been
        written to all the same."""
        request = engine_pb2.EnginePullRequest(
            fingerprint=self._fingerprint,
            keys=keys,
            max_sizes=max_sizes,
            pull_class=PullClass.FIRST_TOKEN.name,
            before=before,
        )
        until = Deadline(timeout)
        try:
            try:
                yield from self._checked(keys, self._lent(request, into, until))
            except _NotLent:
                yield from self._checked(keys, self._sent(request, into, until))
        except (PeerError, PassingError) as error:
            counters.add("moonmesh_handover_errors_total")
            log.warning("the gateway's answer is not understood: %s", error)

    def _checked(
        self, keys: Sequence[str], arrivals: Generator[_Arrival, None, None]
    ) -> Iterator[tuple[int, int]]:
        with contextlib.closing(arrivals):
            for index, address, size, digest in arrivals:
                if block_digest(self._fingerprint, keys[index], bytes_at(address, size)) != digest:
                    counters.add("moonmesh_handover_digest_mismatch_total")
                    return
                self.taken.note(keys[index], digest)
                yield index, size

    def _sent(
        self, request: engine_pb2.EnginePullRequest, into: Into, until: Deadline
    ) -> Generator[_Arrival, None, None]:
        addresses: dict[int, int] = {}

        def memory(index: int, size: int) -> memoryview:
            addresses[index] = into(index, size)
            return bytes_at(addresses[index], size)

        decoder = Decoder(request.max_sizes, MESSAGE_BYTES_MAX, memory)
        with contextlib.closing(self._answer(self._pull, request, until)) as messages:
            for message in messages:
                for event in decoder.feed(message):
                    if isinstance(event, Block):
                        address = addresses.pop(event.index)
                        yield _Arrival(event.index, address, len(event.data), event.digest)

    def _lent(
        self, request: engine_pb2.EnginePullRequest, into: Into, until: Deadline
    ) -> Generator[_Arrival, None, None]:
        mapping = self._mapping
        if mapping is None:
            raise _NotLent
        request.memory = mapping.name
        reader = PlaceReader(request.max_sizes)
        try:
            with contextlib.closing(self._answer(self._lend, request, until)) as messages:
                for message in messages:
                    for index, size, offset, digest in reader.feed(message):
                        address = into(index, size)
                        copy_between(mapping.address(offset, size), address, size)
                        yield _Arrival(index, address, size, digest)
                    if reader.ended:
                        return  # the gateway waits for it: the call's end gives the blocks back
        except _NotLent:
            self._mapping = None  # the gateway was started anew
            raise

    def _answer(
        self, method: Any, request: engine_pb2.EnginePullRequest, until: Deadline
    ) -> Generator[bytes, None, None]:
        call = method(request.SerializeToString(), timeout=until.left(), metadata=inject())
        try:
            with self._watched.call(call) as watched:
                for message in call:
                    watched.heard()
                    yield message
                watched.heard()
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                raise _NotLent from error
            self._failed(error)
        finally:
            call.cancel()


class _NotLent(Exception):  # noqa: N818 - blocks come as bytes then
    """The gateway lends no memory that is mapped here."""
