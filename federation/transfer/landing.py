"""Where an answer lands, and how it is told, whichever process reads it from its connection."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from federation.transfer.allowance import Allowance
from federation.transfer.frames import Block, Missing


class Room(Protocol):
    """Memory for the blocks of one answer."""

    def take(self, index: int, size: int) -> memoryview | None:
        """For `size` bytes of the block at `index` of the request; None where there is none now."""

    def give(self, size: int) -> None:
        """So much of it is not used: nobody writes there any more."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A message that another process has taken apart: its payload is in memory from `Room.take`."""

    size: int
    """Bytes of the message."""
    events: Sequence[Block | Missing]
    ended: bool = False
    """The answer is complete with it."""


Answer: TypeAlias = AsyncGenerator[bytes | Taken, None]
"""The messages of one answer: as they came (see `federation.transfer.frames`), or taken apart."""


class Way(Protocol):
    """How blocks come from one gateway of a peer: over connections of this process, or of another."""

    def pull(
        self,
        raw: bytes,
        timeout: float,
        stall: float,
        allowance: Allowance | None = None,
        room: Room | None = None,
    ) -> Answer:
        """One answer.

        Args:
            raw: the request.
            timeout: seconds for all of it.
            stall: seconds for which nothing may come.
            allowance: what may be sent beyond the credit of the request, where it has one.
            room: where blocks may be put; None: their bytes are wanted.

        Raises:
            PeerError: the peer did not answer, or not properly, or not in time.
            NoRoomError: there is no memory for a block.
        """

    async def ready(self, seconds: float) -> bool:
        """Waits for a connection, for at most `seconds`; whether one stands."""

    async def close(self) -> None:
        """Closes the connections."""
