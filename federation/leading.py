"""The gateway's term: it leads before it speaks, and when its term is over it says nothing more.

What a gateway without a term may do it goes on with: it serves engines, pulls from peers, and answers them
what it has said already. Peers hear nothing new of this group, so after some seconds they pull nothing from
it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from federation.config import GroupFile
from local_group.coordination.base import Coordination, Term
from local_group.coordination.connect import connect_coordination

log = logging.getLogger("moonmesh.gateway")

SAY_AFTER_S = 1.0
"""Seconds after which a gateway says that it waits for its term; it takes some ms otherwise."""


class Leading:
    """The term of one gateway process: the first one that it gets, and no other."""

    def __init__(self, config: GroupFile) -> None:
        name = f"{config.host}:{config.ports.peers}"
        self._coordination: Coordination = connect_coordination(
            config, name, f"unix:{config.gateway_socket}"
        )
        self._term: Term | None = None

    @property
    def epoch(self) -> int:
        """Of the term."""
        assert self._term is not None
        return self._term.epoch

    def valid(self) -> bool:
        """May this gateway speak, at this moment?"""
        return self._term is not None and self._term.valid()

    async def begin(self) -> None:
        """Waits until this gateway leads.

        Raises:
            CoordinationError: it never can.
        """
        await self._coordination.start()
        campaign = asyncio.create_task(self._coordination.campaign())
        try:
            await asyncio.wait({campaign}, timeout=SAY_AFTER_S)
            if not campaign.done():
                log.info("waiting for the term: another gateway leads, or coordination is gone")
            self._term = await campaign
        finally:
            campaign.cancel()
            await asyncio.gather(campaign, return_exceptions=True)

    async def over(self, fallen_silent: Callable[[], object]) -> None:
        """Returns once the term is over AND another can begin: this process is to be started again, for
        a process speaks in one epoch only.

        Args:
            fallen_silent: called in between, as soon as the term is over: nothing may be said any more.
        """
        assert self._term is not None
        await self._term.lost.wait()
        fallen_silent()
        self._term = await self._coordination.campaign()

    async def end(self) -> None:
        """Gives up the term, if there is one."""
        if self._term is not None:
            await self._coordination.resign(self._term)
        await self._coordination.close()
