"""Does this place work with the Mooncake pool of the gateway that leads its group? `PoolCheck` decides,
without IO; `PoolWatch` looks.

A place whose `[master] address` is wrong would follow all the same, and if it led, its key listing, of
another pool, would withdraw everything. Addresses do not tell: places may name one master in several ways.
Stores do: each gives its memory to one master, under an id that is drawn for it. So the leader publishes the
ids that its master lists, and a place that sees none of them is elsewhere; while nobody leads, one that sees
none of the last ones, unless its master is where the last one was, or an operator says that it may.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from federation.config import GroupFile
from local_group.admin import AdminClient
from local_group.coordination.base import Leader
from local_group.process_errors import AdminError, CoordinationError

log = logging.getLogger("moonmesh.gateway")

POOL_KEY = "pool"
"""In coordination's small configuration."""
LOOK_S = 2.0
"""Seconds between two looks at the pool."""
COMMAND = "moonmesh new-pool"
"""By which an operator says that a place has the pool of its group."""
SEGMENTS_MAX = 256
"""Ids that are published, of stores that a master may have more of: 11 kB of the 16 that fit a value."""


@dataclass(frozen=True)
class Told:
    """What a leader has published of its pool.

    Attributes:
        member: its name among the group's gateways.
        epoch: of its term.
        master: `host:port`, as that place names it.
        segments: ids of the memory that stores gave to the pool.
    """

    member: str
    epoch: int
    master: str
    segments: frozenset[str]

    def to_bytes(self) -> bytes:
        """For coordination."""
        content = {"member": self.member, "epoch": self.epoch, "master": self.master}
        return json.dumps({**content, "segments": sorted(self.segments)}).encode()

    @classmethod
    def read(cls, raw: bytes | None) -> Told | None:
        """What is in coordination; None where there is nothing, or nothing that this version knows."""
        try:
            content = json.loads(raw or b"")
            segments = frozenset(map(str, content["segments"]))
            return cls(
                str(content["member"]), int(content["epoch"]), str(content["master"]), segments
            )
        except (ValueError, KeyError, TypeError):
            return None


class PoolCheck:
    """Whether a place may follow the leader, and lead itself; sans-IO.

    Args:
        member: this gateway's name among those of its group.
        master: `host:port` of its master, as it is written here.
        here: the master is started by this place.
    """

    def __init__(self, member: str, master: str, *, here: bool) -> None:
        self._member = member
        self._master = master
        self._here = here
        self._why = ""
        self._differed = False
        """Its pool was not that of a leader, which said so itself."""
        self._past: Told | None = None
        """What an operator has called the past."""

    def judge(
        self, told: Told | None, segments: Collection[str] | None, leader: Leader | None
    ) -> str:
        """Why this place may neither follow nor lead; "" if it may.

        Where nothing can be compared, what was found last stands: no store is in the pool, or its master
        does not answer, or a new leader has published nothing yet.

        Args:
            told: the newest that was published.
            segments: ids that the own master lists; None if it did not answer.
            leader: another gateway of the group that leads; None if nobody does.
        """
        if told is None or not told.segments or not segments:
            return self._why
        if not told.segments.isdisjoint(segments) or told.member == self._member:
            self._why, self._differed = "", False
        elif leader is None:
            self._why = "" if self._is_new(told) else self._unrecognised(told)
        elif leader.epoch == told.epoch:
            self._why, self._differed = self._differs(told), True
        return self._why

    def adopt(self, told: Told | None) -> None:
        """An operator says that the pool of this place is its group's, whatever was published before."""
        self._past, self._why, self._differed = told, "", False

    def _is_new(self, told: Told) -> bool:
        """Whether all stores were started anew, as far as can be told while nobody leads."""
        if told == self._past:
            return True
        return not self._differed and _same_place(told, self._member, self._master)

    def _unrecognised(self, told: Told) -> str:
        return (
            f"nobody leads, and the master of this place, {self._master}, has another pool than the one "
            f"that this group had last, with the master {told.master}, where {told.member} led: no store is "
            f"in both. Start {told.member}, or correct [master] address here; if the pool is a new one of "
            f"this group, say so: {COMMAND}"
        )

    def _differs(self, told: Told) -> str:
        advice = (
            "it starts a master of its own: set [master] address to that of the group, or give this group "
            "a name and a [coordination] of its own"
            if self._here
            else "correct [master] address"
        )
        return (
            f"the master of this place, {self._master}, has another pool than the one of "
            f"{told.member}, which leads with the master {told.master}: no store is in both. In the "
            f"group.toml of one of the two: {advice}"
        )


def _same_place(told: Told, member: str, master: str) -> bool:
    """Whether the address of the last leader's master is that of ours. Of two hosts each has a loopback."""
    if told.master != master:
        return False
    host = master.rpartition(":")[0].strip("[]")
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    return not loopback or told.member.rpartition(":")[0] == member.rpartition(":")[0]


class Terms(Protocol):
    """The group's terms, as this gateway has them: see `federation.leading.Leading`."""

    member: str

    @property
    def epoch(self) -> int: ...
    def valid(self) -> bool: ...
    async def leader(self) -> Leader | None: ...
    async def stand_down(self) -> None: ...
    async def publish(self, key: str, value: bytes) -> None: ...
    async def published(self, key: str) -> bytes | None: ...


class PoolWatch:
    """Looks at the pool now and then: publishes it while this gateway leads, compares it while not.

    Args:
        on_verdict: told at each look why this place may neither follow nor lead; "" if it may.
    """

    def __init__(
        self,
        config: GroupFile,
        terms: Terms,
        admin: AdminClient,
        on_verdict: Callable[[str], None],
    ) -> None:
        self._master = config.master_address
        self._terms = terms
        self._admin = admin
        self._on_verdict = on_verdict
        self._check = PoolCheck(terms.member, self._master, here=config.master.address is None)
        self._published: Told | None = None

    async def run(self) -> None:
        """Looks every `LOOK_S`, until it is cancelled: at first at once, so that a leader is not gone before
        others know its pool."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Once."""
        try:
            segments = await self._segments()
            if self._terms.valid():
                why = await self._publish(segments)
            else:
                told = Told.read(await self._terms.published(POOL_KEY))
                why = self._check.judge(told, segments, await self._terms.leader())
        except CoordinationError as error:  # told of by whoever needs it more
            log.info("the group's pool could not be compared: %s", error)
            return
        self._on_verdict(why)
        if why and self._terms.valid():  # its master has answered too late, or coordination
            await self._terms.stand_down()

    async def adopt(self) -> str:
        """An operator says that this place has its group's pool; why that is refused, "" if it is so."""
        try:
            if self._terms.valid():
                return ""
            if (leader := await self._terms.leader()) is not None:
                return (
                    f"{leader.member} leads this group, so its pool is the group's: stop it first, or "
                    "correct [master] address here"
                )
            if not await self._segments():
                return f"the master {self._master} does not answer, or has no store"
            self._check.adopt(Told.read(await self._terms.published(POOL_KEY)))
        except CoordinationError as error:
            return f"who leads cannot be found out: {error}"
        log.warning("an operator says that the master %s has the pool of this group", self._master)
        await self.look()
        return ""

    async def _segments(self) -> Collection[str] | None:
        try:
            return {each.id for each in await self._admin.segments()}
        except AdminError:
            return None

    async def _publish(self, segments: Collection[str] | None) -> str:
        """Says which pool this group has; why this gateway must not, "" where it may."""
        if not segments:
            return ""
        epoch = self._terms.epoch
        if self._published is None or self._published.epoch != epoch:
            last = Told.read(await self._terms.published(POOL_KEY))
            if why := self._check.judge(last, segments, None):
                return why
        chosen = frozenset(sorted(segments)[:SEGMENTS_MAX])
        told = Told(self._terms.member, epoch, self._master, chosen)
        if told != self._published:
            await self._terms.publish(POOL_KEY, told.to_bytes())
            self._published = told
        return ""


def has_places(config: GroupFile) -> bool:
    """Whether other places of the group can have a say in who leads."""
    settings = config.coordination
    return settings.backend != "file" or settings.file_folder is not None
