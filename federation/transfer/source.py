"""Where the puller gets blocks from: peers, as it sees them."""

from __future__ import annotations

from typing import Protocol

from federation.catalog.view import CatalogView
from federation.errors import PeerError
from federation.limits.guard import Guard
from federation.transfer.allowance import Allowance
from federation.transfer.landing import Answer, Room
from moonmesh.v1 import peer_pb2


class Source(Protocol):
    """A peer to pull from, as the puller sees it. See `federation.peers.PeerLink`."""

    name: str
    guard: Guard
    """What may be asked of it now."""

    @property
    def epoch(self) -> int:
        """Epoch of the peer's newest statement."""

    def pull(
        self,
        request: peer_pb2.PullRequest,
        timeout: float,
        allowance: Allowance | None = None,
        room: Room | None = None,
    ) -> Answer:
        """One answer: see `federation.transfer.landing.Way`. Raises PeerError (or a subclass) for every
        failure but that there is no room.

        Args:
            allowance: what may be sent beyond the credit of the request, where it has one.
            room: where blocks may be put, if another process reads them.
        """

    def blame(self, error: PeerError) -> None:
        """A pull failed, and it was the peer's doing: `status` says why."""

    def absolve(self) -> None:
        """A pull ended well: `status` has nothing to say any more."""


Holder = tuple[Source, CatalogView]
