"""Where a chain is, as far as this gateway knows: for routers, and `moonmesh locate`.

All of it is answered from memory. Views are hints: a router that goes by them may find a block gone.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from federation.catalog.coverage import locate
from federation.catalog.view import CatalogView
from federation.config import Limits
from federation.counters import counters
from federation.identity import key_hash
from federation.telemetry import SPAN_GATEWAY_LOCATE, SpanKind, extract, span
from federation.transfer.checks import RequestError, check_keys
from local_group.holdings import Held
from moonmesh.v1 import engine_pb2

LOCATE_METHOD = "/moonmesh.v1.Router/Locate"
NO_VIEW = "its catalog has not come yet: it is asked for now"
NOT_TRACKED = "what this group holds is tracked only in namespaces that a peer may import"


class Peer(Protocol):
    """A peer as far as this module asks. See `federation.peers.link.PeerLink`."""

    name: str

    @property
    def reason(self) -> str:
        """Why it cannot be reached, or why its last pull failed; empty if all is well."""

    def usable(self, now: float) -> bool:
        """Whether it can be pulled from now."""


Followed = tuple[Peer, CatalogView | None]
"""A peer that the namespace is imported from, with its view if there is one."""


class Run(NamedTuple):
    """The leading run of a chain in the own group."""

    blocks: int
    size: int
    """Bytes of those blocks whose size is known."""
    sized: int
    """How many those are."""


class Locator:
    """Answers where chains are; sans-IO.

    Args:
        group: the own one.
        tracked: fingerprints of the namespaces in which the holdings have what its engines write.
        held: what the own group has of a block.
        followed: the peers of a namespace.
        seconds: what pulling so many bytes from a peer would take, if that is known.
        block_seconds: what computing a block of a namespace takes an engine, if that is known.
    """

    def __init__(
        self,
        *,
        group: str,
        tracked: frozenset[bytes],
        held: Callable[[bytes, str], Held | None],
        followed: Callable[[bytes], Sequence[Followed]],
        seconds: Callable[[str, int, float], float | None],
        block_seconds: Callable[[bytes], float | None] = lambda _: None,
    ) -> None:
        self._group = group
        self._tracked = tracked
        self._held = held
        self._followed = followed
        self._seconds = seconds
        self._block_seconds = block_seconds

    def locate(
        self, fingerprint: bytes, keys: Sequence[str], now: float
    ) -> list[engine_pb2.Located]:
        """One answer a group that may have blocks of the namespace, the own one first."""
        own = self._run(fingerprint, keys)
        followed = self._followed(fingerprint)
        known = [view for _, view in followed if view is not None and view.position is not None]
        hashes = [key_hash(fingerprint, key) for key in keys] if known else []
        runs = dict(zip(map(id, known), locate(hashes, known, now), strict=True))
        mean = own.size / own.sized if own.sized else None
        answers = [
            self._own(fingerprint, own),
            *(
                self._of(peer, view, None if view is None else runs.get(id(view)), mean, now)
                for peer, view in followed
            ),
        ]
        each = self._block_seconds(fingerprint)
        if each is not None:
            for answer in answers:
                if answer.HasField("blocks"):
                    answer.compute_ms = 1000 * each * answer.blocks
        return answers

    def _run(self, fingerprint: bytes, keys: Sequence[str]) -> Run:
        blocks = size = sized = 0
        for key in keys:
            held = self._held(fingerprint, key)
            if held is None:
                break
            blocks += 1
            size += held.size
            sized += held.size > 0
        return Run(blocks, size, sized)

    def _own(self, fingerprint: bytes, run: Run) -> engine_pb2.Located:
        found = engine_pb2.Located(group=self._group, own=True, usable=True)
        if fingerprint not in self._tracked:
            found.reason = NOT_TRACKED
            return found
        found.blocks, found.pull_ms = run.blocks, 0.0
        if run.sized or not run.blocks:
            # A block that was only listed has no size yet: the others tell, in one namespace they are alike.
            found.bytes = round(run.size / run.sized * run.blocks) if run.sized else 0
            found.bytes_estimated = run.sized < run.blocks
        return found

    def _of(
        self,
        peer: Peer,
        view: CatalogView | None,
        blocks: int | None,
        mean: float | None,
        now: float,
    ) -> engine_pb2.Located:
        usable = peer.usable(now)
        found = engine_pb2.Located(group=peer.name, usable=usable)
        if not usable:
            found.reason = peer.reason or "not heard, or left alone for now"
        trouble = "" if view is None else view.trouble
        found.reason = found.reason or trouble
        if view is None or blocks is None:
            found.reason = found.reason or NO_VIEW
            return found
        found.blocks = blocks
        if (age := view.age(now)) is not None:
            found.age_ms = 1000 * age
        if view.mean_size is not None:
            mean = view.mean_size
        if mean is None and blocks:
            return found
        # Only its owner knows how large a block is. In one namespace they are alike: those that came from
        # this peer tell, or else our own of this chain.
        size = round(blocks * mean) if mean is not None else 0
        found.bytes, found.bytes_estimated = size, blocks > 0
        seconds = self._seconds(peer.name, size, now) if blocks else 0.0
        if seconds is not None:
            found.pull_ms = 1000 * seconds
        return found


class RouterService:
    """The service `moonmesh.v1.Router`.

    Args:
        namespaces: fingerprints in group.toml that some peer may export to us or import from us.
        touch: told which namespace is asked for: what a router asks for, engines are about to use.
    """

    def __init__(
        self,
        *,
        locator: Locator,
        namespaces: frozenset[bytes],
        touch: Callable[[bytes], None],
        limits: Limits,
    ) -> None:
        self._locator = locator
        self._namespaces = namespaces
        self._touch = touch
        self._limits = limits
        self._admitted: Callable[[grpc.aio.ServicerContext], bool] = lambda context: True

    def only_for(self, admitted: Callable[[grpc.aio.ServicerContext], bool]) -> RouterService:
        """The same service for an endpoint where `admitted` says who belongs to this group."""
        guarded = copy.copy(self)
        guarded._admitted = admitted
        return guarded

    def handlers(self) -> grpc.GenericRpcHandler:
        """For `server.add_generic_rpc_handlers`."""
        return grpc.method_handlers_generic_handler(
            "moonmesh.v1.Router",
            {"Locate": grpc.unary_unary_rpc_method_handler(self.locate)},
        )

    async def locate(self, raw: bytes, context: grpc.aio.ServicerContext) -> bytes:
        """Where a chain is."""
        if not self._admitted(context):
            await self._refuse(
                context,
                "this endpoint is for engines of this group",
                grpc.StatusCode.PERMISSION_DENIED,
            )
        try:
            request = engine_pb2.LocateRequest.FromString(raw)
            fingerprint, keys, _ = check_keys(
                request.fingerprint,
                request.keys,
                (),
                self._limits.engine_request_keys_max,
                self._limits,
            )
        except DecodeError:
            await self._refuse(context, "bytes that are no message")
        except RequestError as error:
            await self._refuse(context, error.what)
        if fingerprint not in self._namespaces:
            await self._refuse(
                context,
                "no peer imports or exports this namespace",
                grpc.StatusCode.FAILED_PRECONDITION,
            )
        with span(
            SPAN_GATEWAY_LOCATE,
            {"moonmesh.keys": len(keys)},
            parent=extract(context.invocation_metadata()),
            kind=SpanKind.SERVER,
        ):
            self._touch(fingerprint)
            counters.add("moonmesh_located_chains_total")
            groups = self._locator.locate(fingerprint, keys, time.monotonic())
        return bytes(engine_pb2.LocateReply(groups=groups).SerializeToString())

    async def _refuse(
        self,
        context: grpc.aio.ServicerContext,
        why: str,
        code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT,
    ) -> None:
        counters.add("moonmesh_refused_engine_requests_total")
        await context.abort(code, why)
        raise AssertionError("abort raises")
