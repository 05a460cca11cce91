"""All serving processes of a gateway: as many as the group's file says, all fed the same, at one port."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import time
from collections.abc import Callable, Collection
from typing import Any

from federation.config import GroupFile
from federation.errors import MoonmeshError
from federation.limits.orders import Orders
from federation.peers.child import ServingProcess
from federation.peers.details import together
from federation.peers.feed import Feed
from federation.peers.hearing import Gossip
from federation.peers.setup import Setup
from federation.peers.spawn import Spawner
from federation.trust.handshakes import RefusalLog
from local_group.holdings import Change, Holdings

PORT_WAIT_SECONDS = 5.0
"""For which a port that is taken is looked at again: the processes of a gateway that was killed end with
it, and not in the same moment."""
PORT_LOOK_SECONDS = 0.1


class ServingProcesses:
    """Keeps them running between `start` and `close`. Each fails, and is started again, by itself.

    The kernel spreads connections over those that listen. So a peer may meet any of them, and another one
    with its next connection: each answers all that may be asked, with a log of its own.

    Args:
        setup: what each is told first, but for its number.
        spawner: where they come from; closed with this.
        holdings, exported: what is offered; nothing of it is sent before `begin`.
        gone, lost, refusals, on_problem: see `ServingProcess`.
    """

    def __init__(
        self,
        setup: Setup,
        spawner: Spawner,
        gossip: Gossip,
        *,
        holdings: Holdings,
        exported: Collection[bytes],
        gone: Callable[[bytes, int, float, bool], None],
        lost: Callable[[], None],
        refusals: RefusalLog,
        on_problem: Callable[[str], None],
    ) -> None:
        self._group = setup.group
        workers = range(setup.group.serving.workers)
        self._feeds = [Feed(holdings, exported) for _ in workers]
        self._all = [
            ServingProcess(
                dataclasses.replace(setup, worker=worker),
                spawner,
                self._feeds[worker],
                gossip,
                gone=gone,
                lost=lost,
                refusals=refusals,
                on_problem=on_problem,
            )
            for worker in workers
        ]

    async def start(self) -> None:
        """Starts them, for as long as `close` is not called.

        Raises:
            MoonmeshError: the port for peers is somebody else's.
        """
        if len(self._all) > 1:  # a single one finds out itself: it does not share the port
            await nobody_listens(self._group)
        for each in self._all:
            each.start()

    def begin(self) -> None:
        """The holdings are what they were before the gateway's start: tell them."""
        for each in self._all:
            each.begin()

    def take(self, change: Change) -> None:
        """A block came or went, or is another than it was."""
        for feed in self._feeds:
            feed.take(change)
        self.nudge()

    def nudge(self) -> None:
        """There is something new to tell: blocks, or a greeting."""
        for each in self._all:
            each.nudge()

    def order(self, orders: Orders) -> None:
        """An operator has switched something off, or on."""
        for each in self._all:
            each.order(orders)

    def obeys(self, orders: Orders) -> bool:
        """Whether each has told that it goes by them, or serves nobody."""
        return all(each.obeys(orders) for each in self._all)

    async def listening(self) -> None:
        """Returns once all of them serve peers.

        Raises:
            MoonmeshError: one says that this cannot be, before it ever was.
        """
        await asyncio.gather(*(each.listening() for each in self._all))

    async def failed(self) -> None:
        """Never returns; raises what ended the keeping of one, which is a defect."""
        await asyncio.gather(*(each.failed() for each in self._all))

    @property
    def serves(self) -> bool:
        """Whether peers are served now, by one of them at least, as far as is known."""
        return any(each.serves for each in self._all)

    @property
    def well(self) -> bool:
        """Whether one serves whose Mooncake client works."""
        return any(each.well for each in self._all)

    @property
    def pulls(self) -> int:
        """Open now, as they last told."""
        return sum(each.pulls for each in self._all)

    @property
    def waiting(self) -> int:
        """Changed blocks that wait to be told, of the one with most."""
        return max(feed.waiting for feed in self._feeds)

    async def refresh(self, seconds: float) -> None:
        """Their newest counters and refusals, or those they told last if they do not answer in time."""
        await asyncio.gather(*(each.refresh(seconds) for each in self._all))

    def status(self) -> list[dict[str, Any]]:
        """Of each, for `moonmesh status`."""
        return [each.status() for each in self._all]

    def guards(self, peer: str) -> dict[str, Any] | None:
        """How they guard against a peer, together; None where none has told so far."""
        told = [guards for each in self._all if (guards := each.guards(peer)) is not None]
        return together(told) if told else None

    async def close(self) -> None:
        """Ends them. Nothing of them runs when this returns."""
        await asyncio.gather(*(each.close() for each in self._all))


async def nobody_listens(group: GroupFile) -> None:
    """Whoever shares a port is not told who else does: so it is looked at before.

    Raises:
        MoonmeshError: somebody listens there already, or it cannot be had.
    """
    until = time.monotonic() + PORT_WAIT_SECONDS
    while True:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((group.gateway.listen, group.ports.peers))
                return
            except OSError as error:
                if time.monotonic() >= until:
                    raise MoonmeshError(
                        f"cannot listen there: {error.strerror}",
                        where=f"{group.gateway.listen}:{group.ports.peers}",
                        hint="is the port in use, the address ours?",
                    ) from error
        await asyncio.sleep(PORT_LOOK_SECONDS)
