"""The gateway's term: it leads before it speaks, and when its term is over it says nothing more.

What a gateway without a term may do it goes on with: it serves engines, pulls from peers, and answers them
what it has said already. Peers hear nothing new of this group, so after some seconds they pull nothing from
it.
"""

from __future__ import annotations

import asyncio
import logging

from federation.config import GroupFile
from local_group.coordination.base import Coordination, Term
from local_group.coordination.connect import connect_coordination

log = logging.getLogger("moonmesh.gateway")

SAY_AFTER_S = 1.0
"""Seconds after which a gateway says that it waits for its term; it takes some ms otherwise."""


class Leading:
    """The terms of one gateway process, one after the other."""

    def __init__(self, config: GroupFile) -> None:
        name = f"{config.host}:{config.ports.peers}"
        self._coordination: Coordination = connect_coordination(
            config, name, f"unix:{config.gateway_socket}"
        )
        self._term: Term | None = None
        self._raising = asyncio.Lock()

    @property
    def epoch(self) -> int:
        """Of the term."""
        assert self._term is not None
        return self._term.epoch

    def valid(self) -> bool:
        """May this gateway speak, at this moment?"""
        return self._term is not None and self._term.valid()

    async def begin(self) -> None:
        """Waits until this gateway leads, for the first time or again.

        Raises:
            CoordinationError: it never can.
        """
        if self._term is None:
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
        assert self._term is not None
        async with self._raising:
            self._term = await self._coordination.above(self._term, floor)
            return self._term.epoch

    async def end(self) -> None:
        """Gives up the term, if there is one."""
        if self._term is not None:
            await self._coordination.resign(self._term)
        await self._coordination.close()
