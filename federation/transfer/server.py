"""Serves blocks of this group to peers: checked here, copied out of Mooncake, sent in chain order.

A lease covers the copy into our buffer and never the network: a slow peer cannot pin the pool. What the
holdings do not attribute to this group, or attribute with other bytes than Mooncake has, is not sent.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Protocol

from federation.config import Limits
from federation.counters import counters
from federation.errors import PeerError
from federation.identity import Fingerprint, block_digest
from federation.keys.naming import Naming
from federation.limits.errors import ShedError
from federation.limits.guard import BUSY_SECONDS, Guard
from federation.limits.guards import Guards
from federation.limits.names import GuardName
from federation.limits.shedding import Shedding
from federation.limits.ticket import Ticket
from federation.telemetry import SPAN_SERVE_CHECK, SPAN_SERVE_READ, span
from federation.transfer.fair import PullClass
from federation.transfer.frames import Encoder
from federation.transfer.losses import Losses
from federation.transfer.pool import PoolSize, Sized
from federation.transfer.read_ahead import ReadAhead, Wanted, Window
from federation.transfer.turns import Turns
from federation.transfer.window import WindowRoom
from local_group.holdings import Held, Holdings
from local_group.outcome import BOUNCE_EXCEEDED, QUEUE_FULL, Outcome
from local_group.process_errors import AdminError
from local_group.store import ReadBatch, Status

READ_SECONDS = 2.0
"""How long a window may take to be copied out of Mooncake before its blocks count as missing."""
UNWELL = "its Mooncake does not answer"
"""Said to the peer that asks."""
MESSAGE_BYTES_MIN = 64 * 1024
"""Of a message, however little a peer wants at a time: each has a cost."""
WINDOW_BLOCKS = 256
"""Blocks copied in one call at most: what a check of the master costs, and one batch of a read."""


class UnwellError(PeerError):
    """Our own Mooncake does not answer: whether the blocks are there is not known."""

    code = "MM315"


class Reader(Protocol):
    """The part of the store client that serving uses."""

    async def read(self, keys: Sequence[str], sizes: Sequence[int], timeout: float) -> ReadBatch:
        """Copies blocks into bounce memory, which `release` of the batch gives back."""


class Checker(Sized, Protocol):
    """The lease-free question to the master."""

    async def query(self, keys: Sequence[str]) -> Mapping[str, int | None]:
        """Sizes of the keys that exist; 0 on SSD, None where the master cannot be asked without a lease."""


def _failure(outcome: Outcome) -> PeerError | None:
    """Why it is not known whether a block is there; None where it is known."""
    if outcome.status in (Status.HIT, Status.MISS):
        return None
    counters.add("moonmesh_serve_read_errors_total")
    if outcome.code in (QUEUE_FULL, BOUNCE_EXCEEDED):
        return ShedError("no room for you now (store)", retry_after=BUSY_SECONDS)
    return UnwellError(UNWELL)


def _may_be(held: Held, size: int | None) -> bool:
    """Whether a block that Mooncake has with this size (0 or None: unknown) can be what was written."""
    return not size or size == held.size or held.rival is not None


class BlockServer:
    """Answers pulls of peers.

    Args:
        store: reads with a deadline, into its own memory.
        master: the lease-free check, and how large the pool is.
        holdings: what this group may offer.
        naming: under which keys Mooncake has it.
        gone: told of each block that Mooncake turned out not to have, or to have with other bytes (True).
        lost: called when those are most of what was looked for: a listing is due.
        shedding: how much may be read for peers at once, by how long Mooncake takes; None: without bound.
    """

    def __init__(
        self,
        *,
        store: Reader,
        master: Checker,
        holdings: Holdings,
        naming: Naming,
        limits: Limits,
        gone: Callable[[Fingerprint, str, Held, bool], None] = lambda *_: None,
        lost: Callable[[], None] = lambda: None,
        shedding: Shedding | None = None,
    ) -> None:
        self._store = store
        self._master = master
        self._holdings = holdings
        self._naming = naming
        self._limits = limits
        self._told_gone = gone
        self._pool = PoolSize(master)
        self._turns = Turns()
        self._lost = lost
        self._losses = Losses()
        self._shedding = shedding

    def use(self, guards: Guards) -> None:
        """Serves under these guards, and tells them how large the pool is."""
        self._pool.tell = guards.resize_pool
        self._pool.look()  # so that it is known before the first pull
        for peer in guards.values():
            self._turns.watch(peer.incoming)

    async def serve(
        self,
        fingerprint: Fingerprint,
        keys: Sequence[str],
        max_sizes: Sequence[int],
        guard: Guard,
        ticket: Ticket,
        until: float,
        *,
        unattested: bool = False,
        pull_class: PullClass = PullClass.BATCH,
        message_bytes: int = 0,
        credit: Callable[[], float] = lambda: float("inf"),
    ) -> AsyncGenerator[bytes, None]:
        """The messages of one answer, in the order of `keys`.

        While one window is sent the next is read, where there is room for both at once.

        Args:
            pull_class: how urgent it is to the peer: who waits for memory waits in that order.
            message_bytes: of one message, where they are to be smaller than this group's; 0: they are not.
            unattested: the peer takes blocks whose writer's digest nobody knows.
            guard: of the peer that asks; with the `ticket` that it gave.
            until: when it is over, in loop time.
            credit: bytes that may be sent now; what may not be sent yet is not read ahead of its time.

        Raises:
            ShedError: no room for a window, now. What was sent so far stands.
            UnwellError: Mooncake does not answer. What was sent so far stands.
        """
        self._pool.look()
        self._shed_if(guard, self._shedding.refuses if self._shedding else None)
        fill = self._limits.message_bytes
        if message_bytes:
            fill = min(fill, max(MESSAGE_BYTES_MIN, message_bytes))
        encoder = Encoder(fill)
        patience = self._limits.peer_window_wait_ms / 1000

        def room() -> WindowRoom:
            flow = (pull_class, fingerprint)
            return WindowRoom(self._turns, guard, ticket, until, patience, flow)

        cut = self._windows(fingerprint, keys, max_sizes, unattested)
        read = partial(self._read, fingerprint, guard)
        async with aclosing(cut), ReadAhead(cut, read, room) as windows:
            async for window in windows:
                windows.sent(0, credit())
                for message in self._messages(encoder, fingerprint, window):
                    yield message
                    windows.sent(len(message), credit())
                if not windows.ready:
                    for message in encoder.flush():
                        yield message
        yield encoder.end()

    async def _windows(
        self,
        fingerprint: Fingerprint,
        keys: Sequence[str],
        max_sizes: Sequence[int],
        unattested: bool,
    ) -> AsyncGenerator[list[Wanted], None]:
        """The request in slices that are copied out of Mooncake in one go."""
        for start in range(0, len(keys), WINDOW_BLOCKS):
            part = slice(start, start + WINDOW_BLOCKS)
            window: list[Wanted] = []
            room = self._limits.serve_window_bytes
            for wanted in await self._look(
                fingerprint, start, keys[part], max_sizes[part], unattested
            ):
                if window and wanted.size > room:
                    yield window
                    window, room = [], self._limits.serve_window_bytes
                window.append(wanted)
                room -= wanted.size
            if window:
                yield window

    async def _look(
        self,
        fingerprint: Fingerprint,
        start: int,
        keys: Sequence[str],
        max_sizes: Sequence[int],
        unattested: bool,
    ) -> list[Wanted]:
        """What there is of some keys, the first of which is at `start`. One question to the master for all:
        what is evicted between it and the read is missed by the read."""
        sizes = await self._sizes(fingerprint, keys)
        wanted = []
        for place, (key, max_size) in enumerate(zip(keys, max_sizes, strict=True), start):
            held = self._holdings.exportable(fingerprint, key)
            size = 0 if held is None else held.size or sizes.get(key, 0)
            if held is not None and not (0 < size <= max_size and (unattested or held.attested)):
                held, size = None, 0
            wanted.append(Wanted(place, key, held, size))
        offered = [(each, each.held) for each in wanted if each.held is not None]
        present = {each.place for each, _ in await self._check(fingerprint, offered)}
        return [
            each if each.place in present else Wanted(each.place, each.key, None) for each in wanted
        ]

    async def _sizes(self, fingerprint: Fingerprint, keys: Sequence[str]) -> dict[str, int]:
        """Sizes of those that are offered and of which only Mooncake knows it."""
        unknown = {
            self._naming.stored(fingerprint, key): (key, held)
            for key in keys
            if (held := self._holdings.exportable(fingerprint, key)) is not None and not held.size
        }
        found = await self._ask(list(unknown)) if unknown else {}
        sizes: dict[str, int] = {}
        for name, (key, held) in unknown.items():
            size = found.get(name) or 0
            if 0 < size <= self._limits.block_bytes_max:
                sizes[key] = size
                continue
            # Gone; or on disk alone, where the master does not tell; or larger than any block may be.
            counters.add("moonmesh_serve_size_unknown_total", name in found)
            self._gone(fingerprint, key, held)
        self._note_losses(len(sizes), len(unknown) - len(sizes))
        return sizes

    def _messages(
        self, encoder: Encoder, fingerprint: Fingerprint, window: Window
    ) -> Iterator[bytes]:
        read_as = {wanted.place: n for n, (wanted, _) in enumerate(window.here)}
        for wanted in window.wanted:
            good = None
            if window.blocks is not None and wanted.held is not None:
                place = read_as[wanted.place]
                failure = _failure(window.blocks.outcomes[place])
                if failure is not None:  # not known to be missing, so it is not said to be
                    yield from encoder.flush()
                    raise failure
                good = self._good(fingerprint, wanted.key, wanted.held, window.blocks, place)
            if good is None or wanted.held is None:
                yield from encoder.missing(wanted.place)
                continue
            digest, data = good
            counters.add("moonmesh_served_blocks_total")
            counters.add("moonmesh_served_bytes_total", len(data))
            held = wanted.held
            counters.add("moonmesh_served_unattested_total", not held.attested)
            yield from encoder.block(wanted.place, digest, data, held.hops, attested=held.attested)

    async def _check(
        self, fingerprint: Fingerprint, offered: Sequence[tuple[Wanted, Held]]
    ) -> list[tuple[Wanted, Held]]:
        """What Mooncake has of them, asked without taking a lease."""
        # What the master has just told the size of need not be asked for again.
        asked = [
            self._naming.stored(fingerprint, wanted.key) for wanted, held in offered if held.size
        ]
        sizes = await self._ask(asked) if asked else {}
        present: list[tuple[Wanted, Held]] = []
        changed = 0
        for wanted, held in offered:
            name = self._naming.stored(fingerprint, wanted.key)
            if not held.size or (name in sizes and _may_be(held, sizes[name])):
                present.append((wanted, held))
            else:
                counters.add("moonmesh_serve_size_mismatch_total", name in sizes)
                changed += name in sizes
                self._gone(fingerprint, wanted.key, held, changed=name in sizes)
        gone = len(offered) - len(present) - changed
        self._note_losses(len(asked) - gone - changed, gone)
        return present

    async def _ask(self, names: Sequence[str]) -> Mapping[str, int | None]:
        """Which of these Mooncake has, and of which size.

        Raises:
            UnwellError: the master does not answer: neither would a read. The peer looks elsewhere.
        """
        with span(SPAN_SERVE_CHECK, {"moonmesh.keys": len(names)}) as here:
            began = time.monotonic()
            try:
                sizes = await self._master.query(names)
            except AdminError as error:
                counters.add("moonmesh_serve_check_errors_total")
                raise UnwellError(UNWELL) from error
            finally:
                self._took("master", len(names), began)
            here.set_attribute("moonmesh.present", sum(name in sizes for name in names))
        return sizes

    def _note_losses(self, present: int, gone: int) -> None:
        if present + gone and self._losses.note(present, gone):
            self._lost()

    async def _read(self, fingerprint: Fingerprint, guard: Guard, window: Window) -> ReadBatch:
        names = [self._naming.stored(fingerprint, wanted.key) for wanted, _ in window.here]
        sizes = [wanted.size for wanted, _ in window.here]
        began = time.monotonic()
        self._shed_if(guard, self._shedding.enter if self._shedding else None)
        try:
            with span(SPAN_SERVE_READ, {"moonmesh.blocks": len(names)}):
                return await self._store.read(names, sizes, READ_SECONDS)
        finally:
            self._took("store", sum(sizes), began)
            if self._shedding is not None:
                self._shedding.leave(guard.name, began, time.monotonic())

    def _shed_if(self, guard: Guard, refuses: Callable[[str, float], float] | None) -> None:
        now = time.monotonic()
        if refuses is not None and (wait := refuses(guard.name, now)) > 0:
            guard.refuse(GuardName.GIVING_WAY, now)
            raise ShedError(f"no room for you now ({GuardName.GIVING_WAY.value})", retry_after=wait)

    def _took(self, kind: str, size: int, began: float) -> None:
        if self._shedding is not None:
            self._shedding.took(kind, size, time.monotonic() - began)

    def _good(
        self, fingerprint: Fingerprint, key: str, held: Held, blocks: ReadBatch, place: int
    ) -> tuple[bytes, memoryview] | None:
        """Digest and bytes of a block, if they are what a writer said that it wrote, or nobody said."""
        outcome = blocks.outcomes[place]
        if outcome.status is Status.MISS:
            self._gone(fingerprint, key, held)
            return None
        data = blocks.view(place)
        digest = block_digest(fingerprint, key, data)
        if held.attested and digest not in (held.digest, held.rival):
            counters.add("moonmesh_serve_digest_mismatch_total")
            self._gone(fingerprint, key, held, changed=True)
            return None
        return digest, data

    def _gone(
        self, fingerprint: Fingerprint, key: str, held: Held, *, changed: bool = False
    ) -> None:
        """Withdraws a block that was evicted or replaced, unless it was written anew in the meantime."""
        if self._holdings.get(fingerprint, key) == held:
            self._holdings.withdraw(fingerprint, key)
            self._told_gone(fingerprint, key, held, changed)
