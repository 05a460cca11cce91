"""Coordination by Raft among the group's gateways, each of which is a member: nothing else to run.

Whoever leads the group need not be Raft's own leader: a lease that follows Raft's leadership would not be
safe with pysyncobj, whose followers vote against a leader that they have just heard. The lease is a command
like any other instead (`machine`), and its arithmetic is ours (`lease`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from local_group.coordination.base import (
    ASK_SECONDS,
    CALL_SECONDS,
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
from local_group.coordination.lease import Lease, Patience, clock
from local_group.coordination.machine import FULL, REFUSED, USED_UP, Machine
from local_group.coordination.raft_replica import SUCCESS, Replica
from local_group.coordination.raft_transport import Disk
from local_group.coordination.watchers import Watchers
from local_group.ports import PortUse, check_free
from local_group.process_errors import CoordinationError, CoordinationGone, Fenced

TRY_SECONDS = 1.0
"""For one try of a command: the member that it was passed on to may be gone."""
RESIGN_SECONDS = 1.0
"""To resign; the lease ends by itself as well, and who ends need not wait for that."""
SECRET_CHARS_MIN = 16
SECRET_CHARS_MAX = 4096


class RaftBackend(Coordination):
    """See `Coordination`.

    Args:
        own: this member's address for the others, one of `members`.
        members: `host:port` of all, the same everywhere.
        folder: of this member alone, on a local disk.
        secret: file with the group's secret; the same everywhere.
        lease: seconds of the leader's lease.
    """

    def __init__(
        self,
        member: str,
        address: str,
        own: str,
        members: tuple[str, ...],
        folder: Path,
        secret: Path,
        lease: float,
    ) -> None:
        super().__init__(member, address)
        self._own = own
        self._others = [each for each in members if each != own]
        self._folder = folder
        self._secret = secret
        self._seconds = lease
        self._replica: Replica | None = None
        self._watchers = Watchers(lambda: dict(self._machine.values))
        self._term: Term | None = None
        self._holder = ""
        self._lease: Lease | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._number = 0
        self._seen = Patience()

    async def start(self) -> None:
        host, _, port = self._own.rpartition(":")
        check_free([PortUse(host, int(port), "the group's Raft")])
        loop = asyncio.get_running_loop()

        def changed(key: str, value: bytes) -> None:
            _tell(loop, self._watchers.changed, key, value)

        try:
            disk = Disk(self._folder)
            secret = read_secret(self._secret)
        except OSError as error:
            raise CoordinationError(
                f"cannot be used: {error.strerror}", where=str(error.filename or self._folder)
            ) from error
        self._replica = Replica(
            self._own,
            self._others,
            disk,
            secret,
            changed,
            lambda: _tell(loop, self._watchers.replaced),
        )

    async def close(self) -> None:
        await self._stop_keeping()
        if self._replica is not None:
            replica, self._replica = self._replica, None
            await asyncio.to_thread(replica.destroy_synchronous)

    # Leading

    async def campaign(self, floor: int = 0) -> Term:
        if self._term is not None and self._term.valid():
            raise CoordinationError(f"{self.member} leads already")
        await self._stop_keeping()
        self._holder = f"{self.member}/{os.urandom(8).hex()}"
        patience = Patience()
        try:
            while True:
                stamp, tenure = self._machine.standing
                seconds = tenure.seconds if tenure else 0.0
                if clock() >= patience.until(stamp, seconds, clock()):
                    with contextlib.suppress(CoordinationGone):
                        term = await self._claim(stamp, floor)
                        if term is not None:
                            return term
                await asyncio.sleep(ASK_SECONDS)
        except BaseException:
            self._forget_claim()
            raise

    async def _claim(self, stamp: int, floor: int) -> Term | None:
        sent = clock()
        epoch = await self._propose(
            "claim", self._holder, self.member, self.address, self._seconds, stamp, floor
        )
        if epoch == REFUSED:
            return None
        self._lease = Lease(self._seconds, sent)
        return self._keep_up(epoch)

    def _forget_claim(self) -> None:
        """A claim that was given up may still be granted: give it back, if anybody hears that."""
        if self._replica is not None:
            self._replica.command("resign", self._holder)

    def _keep_up(self, epoch: int) -> Term:
        assert self._lease is not None
        if epoch == USED_UP:
            raise CoordinationError("the epochs are used up")
        self._number = 0
        self._term = Term(epoch, epoch, self._lease)
        self._keeper = asyncio.create_task(keep(self._term, self._lease, self._renew))
        return self._term

    async def _renew(self) -> bool:
        return await self._propose("renew", self._holder) != REFUSED

    async def above(self, term: Term, floor: int) -> Term:
        check_valid(term)
        await self._stop_keeping()
        term.end()
        epoch = await self._propose("above", self._holder, term.epoch, floor)
        if epoch == REFUSED:
            raise Fenced(f"another leads: epoch {term.epoch} is over")
        return self._keep_up(epoch)

    async def resign(self, term: Term) -> None:
        if term is not self._term:
            return
        await self._stop_keeping()
        term.end()
        with contextlib.suppress(CoordinationGone):
            await self._propose("resign", self._holder, seconds=RESIGN_SECONDS)

    async def _stop_keeping(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None

    # What is written and read

    async def leader(self) -> Leader | None:
        stamp, tenure = self._machine.standing
        if tenure is None or clock() >= self._seen.until(stamp, tenure.seconds, clock()):
            return None  # it has not renewed its lease: it is gone, or this member hears nothing
        return Leader(tenure.member, tenure.address, tenure.epoch)

    async def get(self, key: str) -> bytes | None:
        check_entry(key)
        return self._machine.values.get(key)

    async def put(self, key: str, value: bytes, term: Term) -> None:
        check_entry(key, value)
        async with self._writing:
            check_valid(term)
            self._number += 1
            answer = await self._propose("put", term.epoch, self._number, key, value)
        if answer == REFUSED:
            raise Fenced(f"another leads: epoch {term.epoch} is over")
        if answer == FULL:
            raise CoordinationError(f"{KEYS_MAX} keys are all there can be", where=key)

    def watch(self, prefix: str) -> AsyncIterator[Listed | Changed]:
        return self._watchers.watch(prefix)

    @property
    def _machine(self) -> Machine:
        if self._replica is None:
            raise CoordinationGone("this member of the Raft group is closed")
        machine: Machine = self._replica.machine
        return machine

    async def _propose(self, *command: Any, seconds: float = CALL_SECONDS) -> int:
        """The answer to a command, once this member has applied it. Tried again until then: a command
        that is applied twice does nothing the second time."""
        try:
            async with timeout(seconds):
                while True:
                    answer = await self._try(*command)
                    if answer is not None:
                        return answer
                    await asyncio.sleep(RETRY_SECONDS)
        except asyncio.TimeoutError as error:
            raise CoordinationGone(
                f"the Raft group has not answered for {seconds:g} s",
                where=self._own,
                hint="do most of its members run, and reach each other? For the first start all must",
            ) from error

    async def _try(self, *command: Any) -> int | None:
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[int | None] = loop.create_future()

        def settle(answer: int | None) -> None:
            if not answered.done():
                answered.set_result(answer)

        def done(answer: int, why: int) -> None:
            _tell(loop, settle, answer if why == SUCCESS else None)

        if self._replica is None:
            raise CoordinationGone("this member of the Raft group is closed")
        self._replica.command(*command, callback=done)
        await asyncio.wait({answered}, timeout=TRY_SECONDS)
        return answered.result() if answered.done() else None


def read_secret(path: Path) -> str:
    """The secret of a file, without the line's end.

    Raises:
        CoordinationError: it is too short, or no text.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        data = file.read(SECRET_CHARS_MAX + 1)
    text = data.decode("ascii", "replace").strip()
    if not SECRET_CHARS_MIN <= len(text) <= SECRET_CHARS_MAX or not text.isprintable():
        raise CoordinationError(
            f"a secret of the Raft group has {SECRET_CHARS_MIN} to {SECRET_CHARS_MAX} characters",
            where=str(path),
            hint="make one, the same for all members:  openssl rand -hex 32",
        )
    return text


def _tell(loop: asyncio.AbstractEventLoop, call: Any, *arguments: Any) -> None:
    """Call in the loop's thread, unless that has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *arguments)
