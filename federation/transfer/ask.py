"""What callers of the puller wait for: blocks under way, shared by all who ask for them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from federation.transfer.fair import PullClass
from federation.transfer.staging import StagedBlock

BACKGROUND: Final = PullClass.PREFETCH
"""The class of what nobody waits for."""


class Carrier(Protocol):
    """What brings a block: a request to one peer."""

    def left(self) -> None:
        """Somebody waits no longer."""

    def reclass(self) -> None:
        """Those who wait for one of its blocks are of another class now."""


@dataclass(slots=True)
class Wanted:
    """One block under way, shared by all who ask for it."""

    key: str
    key_hash: int
    max_size: int
    landed: asyncio.Future[StagedBlock | None]
    pull_class: PullClass = PullClass.BATCH
    """The highest of all who wait for it; that of what goes on in the background while nobody does."""
    until: float = 0.0
    """When the last of those who asked for it gives up (loop time)."""
    carrier: Carrier | None = None
    waiting: Counter[PullClass] = field(default_factory=Counter)
    """Who wait for it, by class."""
    background_until: float = 0.0
    """The pull goes on until then though nobody waits (loop time)."""
    tried: set[str] = field(default_factory=set)
    """Peers that need not be planned on again."""
    hedged: bool = False
    """Whether a second peer was asked because the first was late: once for each block."""
    resumed: bool = False
    """Whether the same peer was asked again after its stream broke: once for each block."""
    asked: bool = False
    """Whether some peer has been asked for it: the next one is a retry."""

    def ask(self, pull_class: PullClass, until: float, background_until: float) -> bool:
        """One more waits for it; whether that changes its class."""
        self.waiting[pull_class] += 1
        self.until = max(self.until, until)
        self.background_until = max(self.background_until, background_until)
        return self._reclass()

    def leave(self, pull_class: PullClass) -> None:
        """One of those of this class waits no longer."""
        self.waiting[pull_class] -= 1
        self._reclass()

    def _reclass(self) -> bool:
        before = self.pull_class
        self.pull_class = min((c for c, n in self.waiting.items() if n), default=BACKGROUND)
        return self.pull_class is not before

    def wanted(self, now: float) -> bool:
        """Whether anybody still waits for it, or it goes on in the background."""
        return self.waiting.total() > 0 or now < self.background_until


class Ask:
    """What one caller wants: per key the block, a future of it, or None where nobody has it."""

    def __init__(self, blocks: list[StagedBlock | Wanted | None], pull_class: PullClass) -> None:
        self._blocks = blocks
        self._class = pull_class

    def __len__(self) -> int:
        return len(self._blocks)

    async def block(self, index: int, give_up: float) -> StagedBlock | None:
        """The block at `index`, as soon as it is here; None if it will not come by `give_up`.

        `give_up` is in loop time.
        """
        slot = self._blocks[index]
        if not isinstance(slot, Wanted):
            return slot
        if not slot.landed.done():
            # `wait`, unlike `wait_for`, leaves the future alone: others wait for it too.
            await asyncio.wait({slot.landed}, timeout=give_up - asyncio.get_running_loop().time())
        return slot.landed.result() if slot.landed.done() else None

    def here(self) -> Iterator[StagedBlock]:
        """The blocks that are here now."""
        yield from (block for slot in self._blocks if (block := _here(slot)) is not None)

    def landed(self, index: int) -> bool:
        """Whether the block at `index` is here now."""
        return _here(self._blocks[index]) is not None

    async def settle(self, timeout: float) -> None:
        """Waits until nothing is under way any more, at most `timeout` seconds."""
        pending = {slot.landed for slot in self._blocks if isinstance(slot, Wanted)}
        if pending:
            await asyncio.wait(pending, timeout=timeout)

    def leave(self) -> None:
        """The caller waits no longer; what nobody waits for is cancelled, or goes on as less urgent."""
        carriers: dict[int, Carrier] = {}
        for slot in self._blocks:
            if isinstance(slot, Wanted):
                slot.leave(self._class)
                if slot.carrier is not None:
                    carriers[id(slot.carrier)] = slot.carrier
        self._blocks = []
        for carrier in carriers.values():
            carrier.left()


class NobodyWaits(Exception):  # noqa: N818 - it ends a pull, and is no error
    """All who asked have left before the end, by which so many blocks had come or were denied."""

    def __init__(self, arrived: int, missing: int) -> None:
        super().__init__()
        self.arrived = arrived
        self.missing = missing


def _here(slot: StagedBlock | Wanted | None) -> StagedBlock | None:
    """The block, if it has landed by now."""
    if isinstance(slot, Wanted):
        return slot.landed.result() if slot.landed.done() else None
    return slot
