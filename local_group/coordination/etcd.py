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
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
from etcd3aio.kv import KVService, prefix_range_end

from local_group.coordination.base import (
    ASK_SECONDS,
    EPOCH_MAX,
    KEYS_MAX,
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
from local_group.coordination.etcd_client import TRY_SECONDS, EtcdClient, ask, deadline, unchanged
from local_group.coordination.etcd_watch import Position
from local_group.coordination.lease import Lease, clock
from local_group.process_errors import CoordinationError, CoordinationGone, Fenced

PAGE_KEYS = 64
"""Keys in one answer of a listing: 1 MiB of values."""


class EtcdBackend(Coordination):
    """See `Coordination`.

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
        self._client = EtcdClient(endpoints, ca, certificate, key, server_name)
        self._leader_key = f"{prefix}leader"
        self._epoch_key = f"{prefix}epoch"
        self._config = f"{prefix}config/"
        self._lease_seconds = lease
        self._lease_id = 0
        self._lease: Lease | None = None
        self._term: Term | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._known: dict[str, int] = {}
        """The revision of each key that this term has written or read."""
        self._count: int | None = None
        """Keys of the configuration. Nobody but this term writes any, so it is asked for once; None where
        that is to be done (again)."""

    async def start(self) -> None:
        await self._client.start()

    async def close(self) -> None:
        await self._stop_keeping()
        await self._client.close()

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
        found = await self._client.call(
            self._client.kv.txn(
                [], [KVService.txn_op_get(k) for k in (self._leader_key, self._epoch_key)]
            )
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
        granted = await self._client.call(
            self._client.leases.grant(self._lease_seconds, timeout=TRY_SECONDS)
        )
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
        self._count = None
        return self._keep_up(epoch, token)

    async def _write_claim(self, lease: int, epoch: int, revision: int) -> tuple[bool, int]:
        compare = [
            KVService.txn_compare_create_revision(self._leader_key, 0),
            unchanged(self._epoch_key, revision),
        ]
        success = self._term_writes(lease, epoch)
        look = [KVService.txn_op_get(self._leader_key)]
        async with deadline():
            while True:
                try:
                    answer = await self._client.call(self._client.kv.txn(compare, success, look))
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
        stream = self._client.leases.keep_alive(self._lease_id)
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
        async with deadline():
            while True:
                try:
                    answer = await self._client.call(
                        self._client.kv.txn(self._fence(term), writes, look)
                    )
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
            await self._client.call(self._client.leases.revoke(lease, timeout=TRY_SECONDS))

    # What is written and read

    async def leader(self) -> Leader | None:
        answer = await self._client.patiently(
            lambda: self._client.kv.get(self._leader_key, timeout=TRY_SECONDS)
        )
        for entry in answer.kvs:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                content = json.loads(entry.value)
                return Leader(content["member"], content["address"], content["epoch"])
        return None

    async def get(self, key: str) -> bytes | None:
        check_entry(key)
        full = self._config + key
        answer = await self._client.patiently(
            lambda: self._client.kv.get(full, timeout=TRY_SECONDS)
        )
        return bytes(answer.kvs[0].value) if answer.kvs else None

    async def put(self, key: str, value: bytes, term: Term) -> None:
        """Each put compares the revision of its key too: one whose answer was lost, and that etcd does
        only later, cannot undo one that was made after it."""
        check_entry(key, value)
        full = self._config + key
        async with self._writing, deadline():
            while True:
                check_valid(term)
                known = self._known.get(full, 0)
                compare = unchanged(full, known)
                write = [KVService.txn_op_put(full, value)]
                look = [KVService.txn_op_get(k) for k in (self._leader_key, self._epoch_key, full)]
                try:
                    if not known and await self._is_one_too_many(full):
                        raise CoordinationError(f"{KEYS_MAX} keys are all there can be", where=key)
                    count, self._count = self._count, None  # until it is known whether it was done
                    answer = await self._client.call(
                        self._client.kv.txn([*self._fence(term), compare], write, look)
                    )
                except CoordinationGone:
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                new = answer.succeeded and not known
                self._count = count + 1 if new and count is not None else count
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

    async def _is_one_too_many(self, full: str) -> bool:
        """Would a key that this term has not written or read be more than there may be?"""
        if self._count is None or self._count >= KEYS_MAX:
            first = self._config.encode()
            found = await self._client.call(
                self._client.kv.get(
                    first, prefix_range_end(first), count_only=True, timeout=TRY_SECONDS
                )
            )
            self._count = int(found.count)
        if self._count < KEYS_MAX:
            return False
        there = await self._client.call(self._client.kv.get(full, timeout=TRY_SECONDS))
        return not there.kvs

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
                page = await self._client.call(
                    self._client.kv.get(
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
            stream = self._client.watches.Watch(ask(first, position.next))
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
