"""Serves this group's engines: what they wrote is noted, what peers have is pulled and handed over.

Engines read local blocks from Mooncake themselves; only what they miss is asked for here.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn, TypeAlias, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from pydantic import ValidationError

from federation.config import Limits
from federation.counters import counters
from federation.identity import DIGEST_BYTES, Envelope, Fingerprint
from federation.keys.namespace import Namespace
from federation.limits.attached import AttachedEngines, NoPlaceError
from federation.telemetry import SPAN_GATEWAY_PULL, SpanKind, extract, span
from federation.transfer.checks import RequestError, check_keys
from federation.transfer.fair import PullClass
from federation.transfer.frames import Encoder
from federation.transfer.places import Place, PlaceWriter
from federation.transfer.puller import Puller
from federation.transfer.slots import Slots
from federation.transfer.staging import StagedBlock
from local_group.journal import Entry, JournalError
from local_group.ledger import Ledger, own
from moonmesh.v1 import engine_pb2

ATTACH_METHOD = "/moonmesh.v1.Engine/Attach"
REPORT_METHOD = "/moonmesh.v1.Engine/Report"
EXISTS_METHOD = "/moonmesh.v1.Engine/Exists"
PULL_METHOD = "/moonmesh.v1.Engine/Pull"
LEND_METHOD = "/moonmesh.v1.Engine/Lend"

ANSWER_MARGIN_SECONDS = 0.01
"""How long before the caller's deadline an answer ends."""
GATHER_SECONDS = 0.004
"""How long a block waits for company after the last message: a message costs what a block of 100 KiB does."""

Context: TypeAlias = grpc.aio.ServicerContext
M = TypeVar("M", bound=Message)


class EngineService:
    """The methods that a gateway serves to the engines of its own group.

    Args:
        known: the namespaces of group.toml.
        namespaces: fingerprints of those that some peer may export to us or import from us.
        exported: those that some peer may import: only their blocks need to be attributed.
        promise: whether a block is in staging at this moment, where it then stays for a lease: what was there
            when it was asked for may be gone.
        given: told of each block of a peer that an engine was given, and of the key before it in its chain.
        read_on: told of a key that an engine has, and after which it reads on.
        prefetched: told the same of each that has landed for somebody who looks ahead.
        touch: told which namespace engines use.
        on_error: told what went wrong, for the log and `status`.
        slots: the memory that staging lies in.
    """

    def __init__(
        self,
        *,
        group: str,
        known: Iterable[Namespace],
        namespaces: Iterable[bytes],
        exported: Iterable[bytes],
        ledger: Ledger,
        puller: Puller,
        promise: Callable[[bytes, str], bool],
        given: Callable[[StagedBlock, str], None],
        read_on: Callable[[bytes, str], None],
        prefetched: Callable[[StagedBlock, str], None],
        touch: Callable[[bytes], None],
        limits: Limits,
        on_error: Callable[[str], None],
        slots: Slots,
    ) -> None:
        self._group = group
        self._known = {each.fingerprint(): each.patterns for each in known}
        self._namespaces = frozenset(namespaces)
        self._exported = frozenset(exported)
        self._ledger = ledger
        self._puller = puller
        self._promise = promise
        self._given = given
        self._read_on = read_on
        self._prefetched = prefetched
        self._touch = touch
        self._limits = limits
        self._on_error = on_error
        self._slots = slots
        self.attached = AttachedEngines(limits.engines_max)
        """Those that have a place."""
        self._admitted: Callable[[Context], bool] = lambda context: True

    def only_for(self, admitted: Callable[[Context], bool]) -> EngineService:
        """The same service for an endpoint where `admitted` says who is an engine of this group."""
        guarded = copy.copy(self)
        guarded._admitted = admitted
        return guarded

    def handlers(self) -> grpc.GenericRpcHandler:
        """For `server.add_generic_rpc_handlers`."""
        return grpc.method_handlers_generic_handler(
            "moonmesh.v1.Engine",
            {
                "Attach": grpc.unary_unary_rpc_method_handler(self.attach),
                "Report": grpc.unary_unary_rpc_method_handler(self.report),
                "Exists": grpc.unary_unary_rpc_method_handler(self.exists),
                "Pull": grpc.unary_stream_rpc_method_handler(self.pull),
                "Lend": grpc.unary_stream_rpc_method_handler(self.lend),
            },
        )

    async def attach(self, raw: bytes, context: Context) -> bytes:
        """An engine says which namespace it works in."""
        request = await self._parse(engine_pb2.AttachRequest, raw, context)
        try:
            fingerprint = Envelope.model_validate_json(request.envelope_json).fingerprint()
        except ValidationError as error:
            await self._refuse(context, f"not a namespace envelope: {error.errors()[0]['msg']}")
        limits = self._limits
        reply = engine_pb2.AttachReply(
            group=self._group,
            fingerprint=fingerprint,
            limits=engine_pb2.RequestLimits(
                keys=limits.engine_request_keys_max,
                reports=limits.report_batch_max,
                key_bytes=limits.key_bytes_max,
                block_bytes=limits.block_bytes_max,
                message_bytes=limits.control_message_bytes_max,
            ),
            memory=self._slots.name if self._slots.lends else 0,
        )
        patterns = [pattern.text for pattern in self._known.get(fingerprint, ())]
        if sorted(patterns) != sorted(request.patterns):
            # It would store blocks where the gateway does not look for them.
            reply.reason = (
                f"keys of this namespace are {_listed(patterns)} in group.toml, and "
                f"{_listed(request.patterns)} at the engine: give it the same `keys`"
            )
        elif fingerprint in self._namespaces:
            try:
                self.attached.attach(request.engine, asyncio.get_running_loop().time())
            except NoPlaceError as error:
                counters.add("moonmesh_refused_engines_total")
                reply.full, reply.reason = True, f"{error.code}: {error.what}; {error.hint}"
            else:
                reply.federated = True
                self._touch(fingerprint)
        elif fingerprint in self._known:
            reply.reason = "no peer imports or exports this namespace"
        else:
            reply.reason = "no namespace of group.toml has this envelope"
        return bytes(reply.SerializeToString())

    async def report(self, raw: bytes, context: Context) -> bytes:
        """An engine has put these blocks into the local Mooncake."""
        request = await self._parse(engine_pb2.ReportRequest, raw, context)
        if len(request.written) > self._limits.report_batch_max:
            await self._refuse(context, f"more than {self._limits.report_batch_max} blocks")
        entries: list[Entry] = []
        for item in request.written:
            if self._plausible(item):
                block = item.key or item.name
                entries.append(own(request.fingerprint, block, item.size, item.digest))
            else:  # it stays local; the others of the batch must not pay for it
                counters.add("moonmesh_reports_implausible_total")
        counters.add("moonmesh_reported_blocks_total", len(entries))
        if request.fingerprint in self._exported:
            try:
                await self._ledger.report(entries)
            except JournalError as error:
                counters.add("moonmesh_report_journal_errors_total")
                self._on_error(str(error))
        return bytes(engine_pb2.ReportReply().SerializeToString())

    async def exists(self, raw: bytes, context: Context) -> bytes:
        """Starts pulling what peers have of a chain, and says what has landed within the wait."""
        request = await self._parse(engine_pb2.ExistsRequest, raw, context)
        fingerprint, keys, sizes = await self._check(request.fingerprint, request.keys, (), context)
        pull_class = PullClass.told(request.pull_class)
        with span(
            SPAN_GATEWAY_PULL,
            {"moonmesh.keys": len(keys), "moonmesh.wait_ms": request.wait_ms},
            parent=extract(context.invocation_metadata()),
            kind=SpanKind.SERVER,
        ) as here:
            self._touch(fingerprint)
            background = self._limits.background_pull_ms / 1000
            wait = min(request.wait_ms, self._limits.pull_timeout_ms) / 1000
            ask = self._puller.ask(
                fingerprint,
                keys,
                sizes,
                timeout=wait + background,
                background=background,
                whatever_it_takes=pull_class is PullClass.PREFETCH,
                pull_class=pull_class,
            )
            try:
                await ask.settle(wait)
                landed = bytes(
                    ask.landed(index) and self._promise(fingerprint, key)
                    for index, key in enumerate(keys)
                )
                if pull_class is PullClass.PREFETCH:
                    before = ""
                    for block in ask.here():
                        self._prefetched(block, before)
                        before = block.key
            finally:
                ask.leave()
            here.set_attribute("moonmesh.blocks", sum(landed))
        return bytes(engine_pb2.ExistsReply(landed=landed).SerializeToString())

    async def pull(self, raw: bytes, context: Context) -> None:
        """Pulls a chain and hands it over as it grows, until the caller's deadline."""
        request = await self._parse(engine_pb2.EnginePullRequest, raw, context)
        await self._hand_over(request, context, _Sent(self._limits.message_bytes))

    async def lend(self, raw: bytes, context: Context) -> None:
        """As `pull`, with the blocks where they are: they stay there until the engine, which copies them,
        ends the call, or is gone, or its deadline has passed."""
        request = await self._parse(engine_pb2.EnginePullRequest, raw, context)
        if request.memory != self._slots.name:
            await self._refuse(context, "another memory", grpc.StatusCode.FAILED_PRECONDITION)
        lent = _Lent(self._slots, self._limits.message_bytes)
        give_up = await self._hand_over(request, context, lent)
        await asyncio.sleep(give_up - asyncio.get_running_loop().time())

    async def _hand_over(
        self, request: engine_pb2.EnginePullRequest, context: Context, out: _Sent | _Lent
    ) -> float:
        """Tells the engine of block after block; when the caller gives up, in loop time."""
        fingerprint, keys, sizes = await self._check(
            request.fingerprint, request.keys, request.max_sizes, context
        )
        loop = asyncio.get_running_loop()
        timeout = self._limits.pull_timeout_ms / 1000
        left = context.time_remaining()
        if left is not None:
            # Answer just before the caller gives up, so that it can tell a slow peer, where it gets
            # what arrived and a proper end, from a gateway that hangs.
            timeout = min(timeout, left - min(ANSWER_MARGIN_SECONDS, left / 5))
        give_up = loop.time() + timeout
        with span(
            SPAN_GATEWAY_PULL,
            {
                "moonmesh.keys": len(keys),
                "moonmesh.class": PullClass.told(request.pull_class).name,
            },
            parent=extract(context.invocation_metadata()),
            kind=SpanKind.SERVER,
        ) as here:
            self._touch(fingerprint)
            before = request.before if len(request.before) <= self._limits.key_bytes_max else ""
            if before:
                self._read_on(fingerprint, before)
            ask = self._puller.ask(
                fingerprint,
                keys,
                sizes,
                timeout=timeout,
                pull_class=PullClass.told(request.pull_class),
            )
            handed, flushed = 0, 0.0
            try:
                for index in range(len(keys)):
                    if not ask.landed(index):
                        # About to wait: what has arrived so far is of use already.
                        await ask.block(index, min(give_up, flushed + GATHER_SECONDS))
                        if not ask.landed(index):
                            for message in out.flush():
                                await context.write(message)
                                flushed = loop.time()
                    block = await ask.block(index, give_up)
                    if block is None or len(block.data) > sizes[index]:
                        break  # the chain ends here
                    handed += 1
                    self._given(block, keys[index - 1] if index else before)
                    for message in out.block(index, block):
                        await context.write(message)
            finally:
                ask.leave()
                here.set_attribute("moonmesh.blocks", handed)
            await context.write(out.end())
        return give_up

    def _plausible(self, item: engine_pb2.Written) -> bool:
        return (
            len(item.key.encode()) <= self._limits.key_bytes_max
            and bool(item.key or item.name)
            and 0 < item.size <= self._limits.block_bytes_max
            and len(item.digest) == DIGEST_BYTES
        )

    async def _check(
        self, fingerprint: bytes, keys: Iterable[str], sizes: Iterable[int], context: Context
    ) -> tuple[Fingerprint, list[str], list[int]]:
        try:
            return check_keys(
                fingerprint,
                list(keys),
                list(sizes),
                self._limits.engine_request_keys_max,
                self._limits,
            )
        except RequestError as error:
            await self._refuse(context, error.what)

    async def _parse(self, kind: Callable[[], M], raw: bytes, context: Context) -> M:
        if not self._admitted(context):
            await self._refuse(
                context,
                "this endpoint is for engines of this group",
                grpc.StatusCode.PERMISSION_DENIED,
            )
        message = kind()
        try:
            message.ParseFromString(raw)
        except DecodeError:
            await self._refuse(context, "bytes that are no message")
        return message

    async def _refuse(
        self,
        context: Context,
        why: str,
        code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT,
    ) -> NoReturn:
        counters.add("moonmesh_refused_engine_requests_total")
        await context.abort(code, why)
        raise AssertionError("abort raises")


class _Sent:
    """Blocks as bytes."""

    def __init__(self, message_bytes: int) -> None:
        self._encoder = Encoder(message_bytes)
        self.flush = self._encoder.flush
        self.end = self._encoder.end

    def block(self, index: int, block: StagedBlock) -> Iterator[bytes]:
        return self._encoder.block(index, block.digest, block.data)


class _Lent:
    """Blocks by their places, held for as long as this object lives."""

    def __init__(self, slots: Slots, message_bytes: int) -> None:
        self._slots = slots
        self._writer = PlaceWriter(message_bytes)
        self.flush = self._writer.flush
        self.end = self._writer.end
        self.blocks: list[StagedBlock] = []

    def block(self, index: int, block: StagedBlock) -> Iterator[bytes]:
        self.blocks.append(block)
        counters.add("moonmesh_lent_blocks_total")  # now: who has all of it ends the call at once
        offset = self._slots.offset(block.data)
        return self._writer.place(Place(index, len(block.data), offset, block.digest))


def _listed(patterns: Iterable[str]) -> str:
    return ", ".join(sorted(patterns)) or "none"
