"""Where pulled blocks land before anybody is told that they exist; sans-IO.

A block is kept for at least `hold` seconds from its landing, and from each time at which an engine is
told that it exists: so that is true for as long as a Mooncake lease would make it. What does not fit is not
pulled.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

from federation.limits.bulkhead import Shares


@dataclass(frozen=True, slots=True)
class StagedBlock:
    """A block whose digest has been checked."""

    fingerprint: bytes
    key: str
    data: memoryview
    digest: bytes
    origin: str
    """The peer it was pulled from."""
    epoch: int
    """Epoch of that peer when it came."""
    asked_at: float
    """When the peer was asked for it (monotonic seconds)."""
    landed_at: float
    """Since when it is held for its time (monotonic seconds): its landing, or a promise after it."""
    hops: int = 1
    """Borders of groups that lie behind it; `HOPS_MAX` of one that nobody attested."""


class Staging:
    """Bounded memory of pulled blocks, oldest out first.

    Args:
        bytes_max: payload kept at most, reservations included.
        hold: seconds for which a block stays, whatever else wants in.
        shares: what each peer may have of it; None: whoever comes first.
        memory: gives the bytes for a block; None where there are none now.
    """

    def __init__(
        self,
        *,
        bytes_max: int,
        hold: float,
        shares: Shares | None = None,
        memory: Callable[[int], memoryview | None] = lambda size: memoryview(bytearray(size)),
    ) -> None:
        self._bytes_max = bytes_max
        self._memory = memory
        self._shares = shares
        self.hold = hold
        self._blocks: OrderedDict[tuple[bytes, str], StagedBlock] = OrderedDict()
        self.bytes = 0
        """Payload held now."""
        self.reserved = 0
        """Payload of pulls under way, in bytes."""
        self.refused = 0
        """Reservations that did not fit."""

    def __len__(self) -> int:
        return len(self._blocks)

    def get(self, fingerprint: bytes, key: str) -> StagedBlock | None:
        """The block, if it is here."""
        return self._blocks.get((fingerprint, key))

    def promise(self, fingerprint: bytes, key: str, now: float) -> bool:
        """Whether a block is here, to tell an engine: then it stays for `hold` seconds from now on."""
        name = (fingerprint, key)
        block = self._blocks.get(name)
        if block is None:
            return False
        self._blocks[name] = replace(block, landed_at=now)
        self._blocks.move_to_end(name)
        return True

    def reserve(self, size: int, now: float, origin: str = "") -> memoryview | None:
        """Memory for `size` bytes that are about to be pulled from `origin`; None if there is none, or
        none for this peer."""
        room = self._room(size, origin)
        while room is None and self._blocks:
            oldest = next(iter(self._blocks.values()))
            if now - oldest.landed_at < self.hold:
                break
            self.drop(oldest.fingerprint, oldest.key)
            del oldest  # it would keep the memory that is asked for
            room = self._room(size, origin)
        if room is None:
            self.refused += 1
            return None
        self.reserved += size
        if self._shares is not None:
            self._shares.take(origin, size)
        return room

    def release(self, size: int, origin: str = "") -> None:
        """Gives back a reservation for `origin`, or what is left of it."""
        assert 0 <= size <= self.reserved, f"release {size} of {self.reserved} reserved bytes"
        self.reserved -= size
        if self._shares is not None and size:
            self._shares.give(origin, size)

    def land(self, block: StagedBlock, reserved: int) -> None:
        """Keeps a block whose room was reserved: `reserved` bytes, of which it may need fewer."""
        size = len(block.data)
        assert size <= reserved <= self.reserved, "a block is larger than its reservation"
        name = (block.fingerprint, block.key)
        self.drop(*name)
        # The block's own bytes go from reserved to held: its peer has them all the while.
        self.release(reserved - size, block.origin)
        self.reserved -= size
        self._blocks[name] = block
        self.bytes += size

    def drop(self, fingerprint: bytes, key: str) -> None:
        """Forgets a block."""
        block = self._blocks.pop((fingerprint, key), None)
        if block is not None:
            self.bytes -= len(block.data)
            if self._shares is not None:
                self._shares.give(block.origin, len(block.data))

    def drop_of(self, origin: str, epoch: int | None = None) -> int:
        """Forgets what came from a peer (in one of its epochs), however short it has been here; how many."""
        found = [
            name
            for name, block in self._blocks.items()
            if block.origin == origin and epoch in (None, block.epoch)
        ]
        for name in found:
            self.drop(*name)
        return len(found)

    def _room(self, size: int, origin: str) -> memoryview | None:
        return self._memory(size) if self._fits(size, origin) else None

    def _fits(self, size: int, origin: str) -> bool:
        if self.bytes + self.reserved + size > self._bytes_max:
            return False
        return self._shares is None or self._shares.fits(origin, size)

    def expire(self, now: float) -> int:
        """Drops every block whose time is over; returns how many."""
        dropped = 0
        while self._blocks:
            oldest = next(iter(self._blocks.values()))
            if now - oldest.landed_at < self.hold:
                break
            self.drop(oldest.fingerprint, oldest.key)
            dropped += 1
        return dropped
