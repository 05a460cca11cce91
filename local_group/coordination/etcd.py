"""Coordination by etcd, through etcd3aio's kv, txn and lease; election and watch are our own.

Under one prefix: `leader` (of whoever leads, bound to its lease, so etcd deletes it when that ends), `epoch`
(the last that was given), `config/...`. A term begins by one transaction that writes `leader` and `epoch`
together, if there is no leader and the epoch is still the one that was read. Its token is the revision at
which `leader` was made; each write of the term is a transaction that compares it, and the epoch.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from pathlib import Path
from typing import Any, TypeVar

import grpc.aio
from etcd3aio._protobuf import Compare, WatchCreateRequest, WatchRequest, WatchStub
from etcd3aio.connections import ConnectionManager
from etcd3aio.errors import EtcdError
from etcd3aio.kv import KVService, prefix_range_end
from etcd3aio.lease import LeaseService

from local_group.coordination.base import (
    ASK_SECONDS,
    CALL_SECONDS,
    EPOCH_MAX,
    RETRY_SECONDS,
    Changed,
    Coordination,
    Leader,
    Listed,
    Term,
    check_entry,
    check_valid,
    keep,
    timeout,
)
from local_group.coordination.etcd_watch import Position
from local_group.coordination.lease import Lease, clock
from local_group.process_errors import CoordinationError, CoordinationGone, Fenced

TRY_SECONDS = 1.0
"""For one request: etcd answers in some ms, or it is being elected anew."""
PAGE_KEYS = 64
"""Keys in one answer of a listing: 1 MiB of values."""
RECEIVE_BYTES_MAX = 16 << 20
"""Of one answer; etcd's own limit of a request is 1.5 MiB."""

T = TypeVar("T")


class EtcdBackend(Coordination):
    """See `Coordination`. How many keys there may be is left to etcd's own quota.

    Args:
        endpoints: `host:port` of one or more members of one etcd cluster.
        prefix: of all keys, with a slash at its end; one a group.
        lease: seconds of the leader's lease, a whole number. etcd gives at least 2 (its election time).
        ca, certificate, key: PEM files for TLS and for our side of it; none of them: plain text.
        server_name: in etcd's certificates, where it is not the host of the first endpoint.
    """

    def __init__(
        self,
        member: str,
        address: str,
        endpoints: tuple[str, ...],
        prefix: str,
        lease: int,
        *,
        ca: Path | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
        server_name: str = "",
    ) -> None:
        super().__init__(member, address)
        self._endpoints = endpoints
        self._leader_key = f"{prefix}leader"
        self._epoch_key = f"{prefix}epoch"
        self._config = f"{prefix}config/"
        self._lease_seconds = lease
        self._files = ca, certificate, key
        self._server_name = server_name or endpoints[0].rpartition(":")[0]
        self._channel: grpc.aio.Channel | None = None
        self._lease_id = 0
        self._lease: Lease | None = None
        self._term: Term | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._known: dict[str, int] = {}
        """The revision of each key that this term has written or read."""

    async def start(self) -> None:
        ca, certificate, key = (self._load(file) for file in self._files)
        manager = ConnectionManager(await self._addresses(), keepalive_timeout_ms=3000)
        manager.grpc_options += [
            ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
            # gRPC's own would have us wait for up to two minutes after a long outage.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 1000),
            ("grpc.max_reconnect_backoff_ms", 1000),
        ]
        channel = manager.get_channel(ca, key, certificate, self._server_name if ca else None)
        self._channel = channel
        self._kv = KVService(channel, max_attempts=1)
        self._leases = LeaseService(channel, max_attempts=1)
        self._watch = WatchStub(channel)

    async def close(self) -> None:
        await self._stop_keeping()
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    # Leading

    async def campaign(self, floor: int = 0) -> Term:
        if self._term is not None and self._term.valid():
            raise CoordinationError(f"{self.member} leads already")
        await self._stop_keeping()
        while True:
            with contextlib.suppress(CoordinationGone):
                present, epoch, revision = await self._look()
                if present is None:
                    term = await self._claim(max(epoch, floor) + 1, revision)
                    if term is not None:
                        return term
            await asyncio.sleep(ASK_SECONDS)

    async def _look(self) -> tuple[Any, int, int]:
        """The leader's entry or None; the last epoch, and the revision that it was written at."""
        found = await self._call(
            self._kv.txn([], [KVService.txn_op_get(k) for k in (self._leader_key, self._epoch_key)])
        )
        leader, epoch = (list(each.response_range.kvs) for each in found.responses)
        if not epoch:
            return (leader[0] if leader else None), 0, 0
        try:
            number = int(epoch[0].value)
        except ValueError:
            number = -1
        if not 0 <= number <= EPOCH_MAX:
            raise CoordinationError(
                f"the epoch in etcd is damaged: {epoch[0].value[:60]!r}", where=self._epoch_key
            )
        return (leader[0] if leader else None), number, epoch[0].mod_revision

    async def _claim(self, epoch: int, revision: int) -> Term | None:
        """Try to begin a term; None if another was faster."""
        self._check_epoch(epoch)
        sent = clock()
        granted = await self._call(self._leases.grant(self._lease_seconds, timeout=TRY_SECONDS))
        won = False
        try:
            won, token = await self._write_claim(granted.ID, epoch, revision)
        finally:
            if not won:
                await self._revoke(granted.ID)
        if not won:
            return None
        self._lease_id = granted.ID
        self._lease = Lease(granted.TTL, sent)
        self._known = {}
        return self._keep_up(epoch, token)

    async def _write_claim(self, lease: int, epoch: int, revision: int) -> tuple[bool, int]:
        compare = [
            KVService.txn_compare_create_revision(self._leader_key, 0),
            _unchanged(self._epoch_key, revision),
        ]
        success = self._term_writes(lease, epoch)
        look = [KVService.txn_op_get(self._leader_key)]
        async with _deadline():
            while True:
                try:
                    answer = await self._call(self._kv.txn(compare, success, look))
                except CoordinationGone:  # it may have been done: the next answer tells
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                if answer.succeeded:
                    return True, answer.header.revision
                present = list(answer.responses[0].response_range.kvs)
                if present and present[0].lease == lease:
                    return True, present[0].create_revision
                return False, 0

    def _term_writes(self, lease: int, epoch: int) -> list[Any]:
        content = {"member": self.member, "address": self.address, "epoch": epoch}
        return [
            KVService.txn_op_put(self._leader_key, json.dumps(content), lease=lease),
            KVService.txn_op_put(self._epoch_key, str(epoch)),
        ]

    def _check_epoch(self, epoch: int) -> None:
        if epoch > EPOCH_MAX:
            raise CoordinationError("the epochs are used up", where=self._epoch_key)

    def _keep_up(self, epoch: int, token: int) -> Term:
        assert self._lease is not None
        self._term = Term(epoch, token, self._lease)
        self._keeper = asyncio.create_task(keep(self._term, self._lease, self._renew))
        return self._term

    async def _renew(self) -> bool:
        stream = self._leases.keep_alive(self._lease_id)
        try:
            async with timeout(TRY_SECONDS):
                async for answer in stream:
                    return bool(answer.TTL > 0)
        except (grpc.aio.AioRpcError, asyncio.TimeoutError) as error:
            raise CoordinationGone("etcd does not renew the lease") from error
        finally:
            stream.cancel()
        raise CoordinationGone("etcd does not renew the lease")

    async def above(self, term: Term, floor: int) -> Term:
        check_valid(term)
        epoch = max(term.epoch, floor) + 1
        self._check_epoch(epoch)
        await self._stop_keeping()
        term.end()
        writes = self._term_writes(self._lease_id, epoch)
        look = [KVService.txn_op_get(self._leader_key)]
        async with _deadline():
            while True:
                try:
                    answer = await self._call(self._kv.txn(self._fence(term), writes, look))
                    break
                except CoordinationGone:
                    await asyncio.sleep(RETRY_SECONDS)
        if not answer.succeeded:
            present = list(answer.responses[0].response_range.kvs)
            done = present and present[0].create_revision == term.token
            if not done or json.loads(present[0].value)["epoch"] != epoch:
                raise Fenced(f"another leads: epoch {term.epoch} is over")
        return self._keep_up(epoch, term.token)

    async def resign(self, term: Term) -> None:
        if term is not self._term:
            return
        await self._stop_keeping()
        term.end()
        await self._revoke(self._lease_id)

    async def _stop_keeping(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None

    async def _revoke(self, lease: int) -> None:
        """Ends a lease, with what is bound to it; where it cannot, the lease ends by itself."""
        with contextlib.suppress(CoordinationGone):
            await self._call(self._leases.revoke(lease, timeout=TRY_SECONDS))

    # What is written and read

    async def leader(self) -> Leader | None:
        answer = await self._patiently(lambda: self._kv.get(self._leader_key, timeout=TRY_SECONDS))
        for entry in answer.kvs:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                content = json.loads(entry.value)
                return Leader(content["member"], content["address"], content["epoch"])
        return None

    async def get(self, key: str) -> bytes | None:
        check_entry(key)
        full = self._config + key
        answer = await self._patiently(lambda: self._kv.get(full, timeout=TRY_SECONDS))
        return bytes(answer.kvs[0].value) if answer.kvs else None

    async def put(self, key: str, value: bytes, term: Term) -> None:
        """Each put compares the revision of its key too: one whose answer was lost, and that etcd does
        only later, cannot undo one that was made after it."""
        check_entry(key, value)
        full = self._config + key
        async with self._writing, _deadline():
            while True:
                check_valid(term)
                known = self._known.get(full, 0)
                compare = _unchanged(full, known)
                write = [KVService.txn_op_put(full, value)]
                look = [KVService.txn_op_get(k) for k in (self._leader_key, self._epoch_key, full)]
                try:
                    answer = await self._call(
                        self._kv.txn([*self._fence(term), compare], write, look)
                    )
                except CoordinationGone:
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                if answer.succeeded:
                    self._known[full] = answer.header.revision
                    return
                leader, epoch, entry = (list(a.response_range.kvs) for a in answer.responses)
                led = leader and leader[0].create_revision == term.token
                if not led or epoch[0].value != str(term.epoch).encode():
                    raise Fenced(f"another leads: epoch {term.epoch} is over")
                revision = entry[0].mod_revision if entry else 0
                self._known[full] = revision
                if revision > max(known, term.token) and entry[0].value == value and known:
                    return  # an earlier try has done it

    def _fence(self, term: Term) -> list[Any]:
        return [
            KVService.txn_compare_create_revision(self._leader_key, term.token),
            KVService.txn_compare_value(self._epoch_key, str(term.epoch)),
        ]

    # Watching

    async def watch(self, prefix: str) -> AsyncIterator[Listed | Changed]:
        first = (self._config + prefix).encode()
        while True:
            listed, revision = await self._list(first)
            yield Listed(listed)
            async for change in self._follow(first, Position(revision + 1)):
                yield change

    async def _list(self, first: bytes) -> tuple[dict[str, bytes], int]:
        """All of it at one revision, in pages."""
        end, start, revision = prefix_range_end(first), first, 0
        values: dict[str, bytes] = {}
        while True:
            try:
                page = await self._call(
                    self._kv.get(
                        start, end, revision=revision, limit=PAGE_KEYS, timeout=TRY_SECONDS
                    )
                )
            except CoordinationGone:
                await asyncio.sleep(RETRY_SECONDS)
                revision, start, values = 0, first, {}  # it may have been compacted meanwhile
                continue
            revision = revision or page.header.revision
            values.update((self._name(kv.key), bytes(kv.value)) for kv in page.kvs)
            if not page.more:
                return values, revision
            start = page.kvs[-1].key + b"\0"

    async def _follow(self, first: bytes, position: Position) -> AsyncGenerator[Changed, None]:
        """Changes from a position on; ends where etcd does not have them any more."""
        while True:
            stream = self._watch.Watch(_ask(first, position.next))
            try:
                async for answer in stream:
                    behind = answer.created and answer.header.revision + 1 < position.next
                    if answer.compact_revision > 0 or behind:
                        return  # compacted, or an etcd that has lost what it had
                    if answer.canceled:
                        break
                    for event in position.take(answer.events, fragment=answer.fragment):
                        gone = event.type == event.DELETE
                        value = None if gone else bytes(event.kv.value)
                        yield Changed(self._name(event.kv.key), value)
            except grpc.aio.AioRpcError:
                pass
            finally:
                stream.cancel()
            position.broken()
            await asyncio.sleep(RETRY_SECONDS)

    def _name(self, key: bytes) -> str:
        return key.decode(errors="replace").removeprefix(self._config)

    # Calls

    async def _patiently(self, call: Any) -> Any:
        """A call that changes nothing, until it is answered or `CALL_SECONDS` have passed."""
        async with _deadline():
            while True:
                try:
                    return await self._call(call())
                except CoordinationGone:
                    await asyncio.sleep(RETRY_SECONDS)

    async def _call(self, call: Awaitable[T]) -> T:
        """One try. Raises CoordinationGone if it was not answered, CoordinationError if refused."""
        try:
            async with timeout(TRY_SECONDS):
                return await call
        except (EtcdError, asyncio.TimeoutError, grpc.aio.AioRpcError) as error:
            raise CoordinationGone(
                f"etcd does not answer: {str(error)[:200] or type(error).__name__}",
                where=", ".join(self._endpoints),
                hint="is it up, and may this gateway reach it?",
            ) from error

    async def _addresses(self) -> list[str]:
        """The endpoints with addresses for names: etcd3aio takes nothing else."""
        loop = asyncio.get_running_loop()
        found = []
        for endpoint in self._endpoints:
            host, _, port = endpoint.rpartition(":")
            try:
                infos = await loop.getaddrinfo(
                    host, int(port), family=socket.AF_INET, type=socket.SOCK_STREAM
                )
            except OSError as error:
                raise CoordinationGone(f"{host} has no address: {error}", where=endpoint) from error
            found.append(f"{infos[0][4][0]}:{port}")
        return found

    @staticmethod
    def _load(file: Path | None) -> bytes | None:
        try:
            return None if file is None else file.read_bytes()
        except OSError as error:
            raise CoordinationError(f"cannot be read: {error.strerror}", where=str(file)) from error


@contextlib.asynccontextmanager
async def _deadline() -> AsyncIterator[None]:
    try:
        async with timeout(CALL_SECONDS):
            yield
    except asyncio.TimeoutError as error:
        raise CoordinationGone(f"etcd did not answer for {CALL_SECONDS:g} s") from error


def _unchanged(key: str, revision: int) -> Any:
    """The key was last changed at this revision; 0: it is not there."""
    return Compare(
        result=Compare.EQUAL, target=Compare.MOD, key=key.encode(), mod_revision=revision
    )


async def _ask(first: bytes, revision: int) -> AsyncIterator[Any]:
    """What a watch is opened with; the stream lasts as long as this does."""
    create = WatchCreateRequest(
        key=first,
        range_end=prefix_range_end(first),
        start_revision=revision,
        fragment=True,
    )
    yield WatchRequest(create_request=create)
    await asyncio.Event().wait()
