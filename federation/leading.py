"""The gateway's terms: it speaks for its group only while it leads, and leads again when it can.

What a gateway without a term may do it does as before: it serves engines, pulls from peers, and answers
their pulls. Of its group they hear from the gateway that leads; where none does, nothing new, so after some
seconds they pull nothing from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

from federation.config import GroupFile
from federation.counters import counters
from federation.timeouts import timeout
from local_group.coordination.base import Coordination, Leader, Term
from local_group.coordination.connect import connect_coordination
from local_group.process_errors import CoordinationError, Fenced

log = logging.getLogger("moonmesh.gateway")

FIRST_TERM_S = 1.0
"""Seconds for which a start waits for the first term: it takes some ms where no other gateway leads. After
that the gateway is ready all the same, as a follower."""
FIRST_LOOK_S = 2.0
"""Seconds for what is looked at before the first campaign; it takes some ms, or coordination is gone."""
LAST_LOOK_S = 0.5
"""The same for a look at the moment of a takeover, which must not wait for a master that does not answer."""
LEADERLESS_S = 10.0
"""Seconds without a leader, after which that is a problem: a takeover is none."""
AGAIN_S = 5.0
"""Seconds after which a gateway that cannot lead, as it found out while it ran, tries again."""


class Leading:
    """The terms of one gateway process, one after the other.

    Args:
        on_problem: told what an operator has to know.
    """

    def __init__(self, config: GroupFile, on_problem: Callable[[str], None]) -> None:
        self.member = f"{config.host}:{config.ports.peers}"
        """What this gateway is called among those of its group."""
        self._on_problem = on_problem
        self._coordination: Coordination = connect_coordination(
            config, self.member, address_for_followers(config)
        )
        self._term: Term | None = None
        self._campaign: asyncio.Task[Term] | None = None
        self._winning: Term | None = None
        """Won, and not begun yet."""
        self._raising = asyncio.Lock()
        self._look: Callable[[], Awaitable[None]] | None = None
        self._barred = ""
        self._may_stand = asyncio.Event()
        self._may_stand.set()
        self._known: Leader | None = None
        self._newest = 0
        self._leaderless_since: float | None = None
        self._told: set[str] = set()

    @property
    def epoch(self) -> int:
        """Of the term, or of the last one that this process had; 0 before the first."""
        return self._term.epoch if self._term is not None else 0

    def valid(self) -> bool:
        """May this gateway speak, at this moment?"""
        return self._term is not None and self._term.valid()

    @property
    def role(self) -> str:
        """For people."""
        if self.valid():
            return f"leads in epoch {self.epoch}"
        if self._barred:
            return "neither leads nor follows"
        return "follows" if self._known else "waits for a leader"

    async def start(self, look: Callable[[], Awaitable[None]] | None = None) -> None:
        """Begins to campaign; returns once it leads, or after `FIRST_TERM_S`, or at once where it must not.

        Args:
            look: done before, and each time that a term is won; it may `bar` this gateway.

        Raises:
            CoordinationError: it can never lead.
        """
        await self._coordination.start()
        self._look = look
        await self._look_within(FIRST_LOOK_S)
        if self._barred:
            return
        campaign = self._stand()
        await asyncio.wait({campaign}, timeout=FIRST_TERM_S)
        if not campaign.done():
            log.info("waiting for the term: another gateway leads, or coordination is gone")
            return
        self._campaign = None
        await self._take(campaign.result())

    async def run(self, lead: Callable[[int], None], follow: Callable[[int], None]) -> None:
        """Goes on campaigning and leading, until it is cancelled; after `start`.

        Args:
            lead: called when a term begins, but for one that was there after `start`; gets its epoch.
            follow: called when a term is over; gets its epoch.
        """
        if self._term is None:
            await self._win()
            lead(self.epoch)
        while True:
            await self.lost()
            follow(self.epoch)
            await self._win()
            lead(self.epoch)

    async def _win(self) -> None:
        """Returns once this gateway leads, which it does not while it is barred."""
        while True:
            await self._may_stand.wait()
            campaign = self._campaign or self._stand()
            await asyncio.wait({campaign})
            self._campaign = None
            if campaign.cancelled():  # it was barred
                continue
            try:
                term = campaign.result()
            except CoordinationError as error:
                # What it serves does not need a term, so it goes on.
                self._on_problem(f"this gateway cannot lead: {error}")
                await asyncio.sleep(AGAIN_S)
                continue
            if await self._take(term):
                return

    async def _take(self, term: Term) -> bool:
        """Begins a term that was won, or gives it up: what there is against it may be known only now."""
        self._winning = term
        await self._look_within(LAST_LOOK_S)
        self._winning = None
        if self._may_stand.is_set():
            self._won(term)
            return True
        await self._coordination.resign(term)
        return False

    async def _look_within(self, seconds: float) -> None:
        if self._look is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                async with timeout(seconds):
                    await self._look()

    async def stand_down(self) -> None:
        """Gives up the term, if there is one; after `bar`, or it is won again."""
        async with self._raising:
            if self._term is not None:
                await self._coordination.resign(self._term)

    def bar(self, why: str) -> None:
        """This gateway must not lead, and why; "" when it may again. A term that it has goes on."""
        if why and not self._barred:
            log.warning("this gateway does not stand for its group: %s", why)
        self._barred = why
        if not why:
            self._may_stand.set()
            return
        self._may_stand.clear()
        if self._campaign is not None:
            self._campaign.cancel()

    @property
    def barred(self) -> str:
        """Why this gateway must not lead; "" if it may."""
        return "" if self.valid() else self._barred

    async def lost(self) -> None:
        """Returns once the term is over, and no other one of this gateway has followed it."""
        while True:
            term = self._term
            assert term is not None
            await term.lost.wait()
            async with self._raising:  # `above` ends a term in order to begin another
                if self._term is term:
                    return

    async def above(self, floor: int) -> int:
        """Goes on in a new epoch, above `floor`: what peers remember of this group.

        Raises:
            CoordinationError: it does not lead, or the epoch cannot be stored.
        """
        async with self._raising:
            if self._term is None or not self._term.valid():
                raise Fenced("this gateway does not lead its group")
            self._term = await self._coordination.above(self._term, floor)
            return self._term.epoch

    async def leader(self) -> Leader | None:
        """Who else leads, as far as is known. Not one whose term is older than another that is known, nor
        this gateway itself."""
        try:
            found = await self._coordination.leader()
        except CoordinationError:
            found = None
        if found is not None:
            older, self._newest = found.epoch < self.newest, max(self._newest, found.epoch)
            if older or found.member == self.member:  # itself, in a term that is over
                found = None
        self._known = found
        if found is not None:
            self._leaderless_since = None
        elif self._leaderless_since is None:
            self._leaderless_since = time.monotonic()
        return found

    @property
    def newest(self) -> int:
        """The newest epoch of this group that this gateway knows of; 0 before the first."""
        return max(self.epoch, self._newest)

    @property
    def known(self) -> Leader | None:
        """Who led when `leader` was last asked; None if nobody was known to."""
        return self._known

    def problem(self, now: float) -> str:
        """That nobody has led for a while, for `status`; "" if somebody does, as `leader` has found."""
        since = self._leaderless_since
        if self.valid() or since is None or now - since < LEADERLESS_S:
            return ""
        return (
            "nobody is known to lead this group: peers hear nothing new of it, and pull nothing from it "
            "after some seconds; see docs/operations.md, who leads"
        )

    async def publish(self, key: str, value: bytes) -> None:
        """Writes a value of the group's small configuration, which all its gateways see.

        Raises:
            CoordinationError: it does not lead, or the value cannot be stored.
        """
        term = self._term
        if term is None:
            raise Fenced("this gateway does not lead its group")
        await self._coordination.put(key, value, term)
        if term is self._term:
            self._told.add(key)

    @property
    def told(self) -> list[str]:
        """What it has published in this term."""
        return sorted(self._told)

    async def published(self, key: str) -> bytes | None:
        """What a leader has published.

        Raises:
            CoordinationError: it cannot be read now.
        """
        return await self._coordination.get(key)

    async def end(self) -> None:
        """Gives up the term, if there is one."""
        if self._campaign is not None:
            self._campaign.cancel()
            await asyncio.gather(self._campaign, return_exceptions=True)
            if not self._campaign.cancelled() and self._campaign.exception() is None:
                self._term = self._campaign.result()  # won in the very moment
        for term in (self._winning, self._term):
            if term is not None:
                await self._coordination.resign(term)
        await self._coordination.close()

    def _stand(self) -> asyncio.Task[Term]:
        self._campaign = asyncio.create_task(self._coordination.campaign(self.epoch))
        return self._campaign

    def _won(self, term: Term) -> None:
        self._term = term
        self._told.clear()
        self._known = self._leaderless_since = None
        counters.add("moonmesh_terms_total")


def address_for_followers(config: GroupFile) -> str:
    """Where other gateways of the group reach this one while it leads."""
    if config.gateway.engines_tcp:
        return f"{config.host}:{config.ports.engines_tcp}"
    return f"unix:{config.gateway_socket}"
