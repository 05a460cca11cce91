"""What this group holds, per namespace: fed by writers' reports, corrected by listings; sans-IO.

A listing is the master's list of keys; it says that a block is here, not what it should contain. So a
block is held here only once somebody attributed it: the engine that wrote it (with its digest), or the
gateway that pulled it (with its origin). What listings alone know is never offered to a peer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

OWN = ""
"""Origin of a block that an engine of this group computed."""


class Held(NamedTuple):
    """One attributed block."""

    size: int
    """Bytes."""
    digest: bytes
    """xxh3-128 made by its writer."""
    origin: str
    """The group it came from; `OWN` if an engine here wrote it."""
    epoch: int
    """Epoch of that group when it came; 0 for our own."""
    hops: int
    """Group borders it has crossed; 0 for our own."""
    since: float
    """When it was attributed (monotonic seconds): a listing that began earlier says nothing of it."""
    rival: bytes | None = None
    """Another digest that was reported for it; reading the block tells which of the two it is."""


class Change(NamedTuple):
    """A block came or went."""

    fingerprint: bytes
    key: str
    added: bool


class Holdings:
    """Attributed blocks of one group.

    Args:
        blocks_max: entries kept over all namespaces; further reports are counted and dropped.
        hop_limit: a block that crossed this many borders is not offered onward.
        on_change: told of each block that peers may have, when it comes and when it goes.
        on_amended: told of one whose size or digest has been put in doubt since it came.
        on_hidden: told of each block that peers may not have, when it comes and when it goes.
    """

    def __init__(
        self,
        *,
        blocks_max: int,
        hop_limit: int,
        on_change: Callable[[Change], None],
        on_amended: Callable[[Change], None] = lambda _: None,
        on_hidden: Callable[[Change], None] = lambda _: None,
    ) -> None:
        self._blocks_max = blocks_max
        self._hop_limit = hop_limit
        self._on_change = on_change
        self._on_amended = on_amended
        self._on_hidden = on_hidden
        self._namespaces: dict[bytes, dict[str, Held]] = {}
        self._count = 0
        self.refused = 0
        """Attributions dropped because `blocks_max` was reached."""
        self.conflicts = 0
        """Reports whose digest was not the one known."""

    def __len__(self) -> int:
        return self._count

    def get(self, fingerprint: bytes, key: str) -> Held | None:
        """What is known of a block, if it is attributed."""
        return self._namespaces.get(fingerprint, {}).get(key)

    def exportable(self, fingerprint: bytes, key: str) -> Held | None:
        """The block, if peers may have it from us."""
        held = self.get(fingerprint, key)
        return held if held is not None and held.hops < self._hop_limit else None

    def namespaces(self) -> Iterator[tuple[bytes, int]]:
        """Each namespace with the number of blocks held in it."""
        for fingerprint, blocks in self._namespaces.items():
            yield fingerprint, len(blocks)

    def keys(self, fingerprint: bytes) -> list[str]:
        """The keys of a namespace as they are now."""
        return list(self._namespaces.get(fingerprint, ()))

    def items(self) -> Iterator[tuple[bytes, str, Held]]:
        """Every attributed block."""
        for fingerprint, blocks in self._namespaces.items():
            for key, held in blocks.items():
                yield fingerprint, key, held

    def report(self, fingerprint: bytes, key: str, size: int, digest: bytes, now: float) -> bool:
        """An engine of this group says that it has put a block. True if that is news.

        Mooncake keeps the FIRST value of a key, and puts a block anew once it was evicted. So a second
        report with another digest leaves open which of the two is stored: both are kept, and whoever
        reads the block to send it finds out. A report of a block that came from a peer is an engine
        writing back what it was given: its origin stands.
        """
        known = self.get(fingerprint, key)
        if known is not None:
            if known.digest != digest:
                self.conflicts += 1
                self._namespaces[fingerprint][key] = known._replace(
                    rival=digest, size=max(size, known.size)
                )
                if known.hops < self._hop_limit:
                    self._on_amended(Change(fingerprint, key, added=True))
            return False
        return self._add(fingerprint, key, Held(size, digest, OWN, 0, 0, now))

    def admit(
        self,
        fingerprint: bytes,
        key: str,
        size: int,
        digest: bytes,
        origin: str,
        epoch: int,
        hops: int,
        now: float,
    ) -> bool:
        """A block pulled from `origin` is now in the local Mooncake. True if that is news."""
        if self.get(fingerprint, key) is not None:
            return False
        return self._add(fingerprint, key, Held(size, digest, origin, epoch, hops, now))

    def restore(self, fingerprint: bytes, key: str, held: Held) -> None:
        """Takes an entry from the journal; the last one for a key stands."""
        self.withdraw(fingerprint, key)
        self._add(fingerprint, key, held)

    def withdraw(self, fingerprint: bytes, key: str) -> bool:
        """Forgets a block that is gone, or of which it is no longer known what it holds."""
        blocks = self._namespaces.get(fingerprint)
        held = blocks.pop(key, None) if blocks is not None else None
        if held is None:
            return False
        self._count -= 1
        self._tell(held, Change(fingerprint, key, added=False))
        return True

    def reconcile(
        self,
        listed: Callable[[bytes, str], bool],
        began_at: float,
        within: Iterable[bytes] | None = None,
    ) -> int:
        """Withdraws what a complete listing no longer has; returns how many blocks that were.

        Args:
            listed: whether the listing has this block.
            began_at: when the listing began; what was attributed after it survives.
            within: namespaces the listing covers; all, if None.
        """
        fingerprints = list(self._namespaces if within is None else within)
        gone = [
            (fingerprint, key)
            for fingerprint in fingerprints
            for key, held in self._namespaces.get(fingerprint, {}).items()
            if held.since < began_at and not listed(fingerprint, key)
        ]
        for fingerprint, key in gone:
            self.withdraw(fingerprint, key)
        return len(gone)

    def _add(self, fingerprint: bytes, key: str, held: Held) -> bool:
        if self._count >= self._blocks_max:
            self.refused += 1
            return False
        self._namespaces.setdefault(fingerprint, {})[key] = held
        self._count += 1
        self._tell(held, Change(fingerprint, key, added=True))
        return True

    def _tell(self, held: Held, change: Change) -> None:
        (self._on_change if held.hops < self._hop_limit else self._on_hidden)(change)
