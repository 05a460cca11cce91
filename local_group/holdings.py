"""What this group holds, per namespace: fed by writers' reports, corrected by listings; sans-IO.

A listing is the master's list of keys; it says that a block is here, not what it should contain. What it
should contain is known once somebody attests it: the engine that wrote it (with its digest), or the
gateway that pulled it (with its origin). A block that is known from listings alone is held here without a
digest, and offered to peers only in namespaces that allow such blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

OWN = ""
"""Origin of a block that an engine of this group computed."""
UNKNOWN = "?"
"""Origin of a block that was found here, and that may have come from a peer."""
CHANGED = "!"
"""Origin of a block whose bytes were replaced after they were written (an upsert)."""
HOPS_MAX = 0xFFFF
"""More than any hop limit: of blocks that are offered to nobody."""
GONE_MAX = 65_536
"""Blocks that may go while a listing is under way; if more do, it finds nothing new."""


class Held(NamedTuple):
    """One block."""

    size: int
    """Bytes; 0 where it is unattested: unknown."""
    digest: bytes
    """xxh3-128 made by its writer; empty where it is unattested."""
    origin: str
    """The group it came from; `OWN` if an engine here wrote it, `UNKNOWN`, `CHANGED`."""
    epoch: int
    """Epoch of that group when it came; 0 for our own."""
    hops: int
    """Group borders it has crossed; 0 for our own."""
    since: float
    """When it was attested, or found (monotonic seconds): a listing that began earlier says nothing
    of it."""
    rival: bytes | None = None
    """Another digest that was reported for it; reading the block tells which of the two it is."""

    @property
    def attested(self) -> bool:
        """Whether it is known what it should contain."""
        return bool(self.digest)


class Change(NamedTuple):
    """A block came or went."""

    fingerprint: bytes
    key: str
    added: bool
    attested: bool = True
    """Whether it is known what it should contain; of one that went, whether it was."""


class Holdings:
    """Blocks of one group.

    Args:
        blocks_max: entries kept over all namespaces; further reports are counted and dropped.
        hop_limit: a block that crossed this many borders is not offered onward.
        unattested_ok: whether unattested blocks of a namespace (by its fingerprint) are offered.
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
        unattested_ok: Callable[[bytes], bool] = lambda _: False,
    ) -> None:
        self._blocks_max = blocks_max
        self._unattested_ok = unattested_ok
        self._hop_limit = hop_limit
        self._on_change = on_change
        self._on_amended = on_amended
        self._on_hidden = on_hidden
        self._namespaces: dict[bytes, dict[str, Held]] = {}
        self._count = 0
        self._unattested = 0
        self._gone: set[tuple[bytes, str]] | None = None
        self.refused = 0
        """Blocks dropped because `blocks_max` was reached."""
        self.conflicts = 0
        """Reports whose digest was not the one known."""

    def __len__(self) -> int:
        return self._count

    @property
    def unattested(self) -> int:
        """Blocks that are known from listings alone."""
        return self._unattested

    def get(self, fingerprint: bytes, key: str) -> Held | None:
        """What is known of a block, if it is held."""
        return self._namespaces.get(fingerprint, {}).get(key)

    def exportable(self, fingerprint: bytes, key: str) -> Held | None:
        """The block, if peers may have it from us."""
        held = self.get(fingerprint, key)
        return held if held is not None and self._offered(fingerprint, held) else None

    def namespaces(self) -> Iterator[tuple[bytes, int]]:
        """Each namespace with the number of blocks held in it."""
        for fingerprint, blocks in self._namespaces.items():
            yield fingerprint, len(blocks)

    def keys(self, fingerprint: bytes) -> list[str]:
        """The keys of a namespace as they are now."""
        return list(self._namespaces.get(fingerprint, ()))

    def items(self) -> Iterator[tuple[bytes, str, Held]]:
        """Every block."""
        for fingerprint, blocks in self._namespaces.items():
            for key, held in blocks.items():
                yield fingerprint, key, held

    def report(self, fingerprint: bytes, key: str, size: int, digest: bytes, now: float) -> bool:
        """An engine of this group says that it has put a block. True if it attests one that was not.

        Mooncake keeps the FIRST value of a key, and puts a block anew once it was evicted. So a second
        report with another digest leaves open which of the two is stored: both are kept, and whoever
        reads the block to send it finds out. A report of a block that came from a peer is an engine
        writing back what it was given: its origin stands. A block whose bytes were replaced stays one.
        """
        known = self.get(fingerprint, key)
        if known is not None:
            if known.origin == CHANGED:
                return False
            if not known.attested:
                self._replace(fingerprint, key, known, Held(size, digest, OWN, 0, 0, now))
                return True
            if known.digest != digest:
                self.conflicts += 1
                self._namespaces[fingerprint][key] = known._replace(
                    rival=digest, size=max(size, known.size)
                )
                if self._offered(fingerprint, known):
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

    def find(self, fingerprint: bytes, key: str, origin: str, now: float) -> bool:
        """A listing has a block that nobody attested. True if that is news.

        Args:
            origin: `OWN`, or `UNKNOWN` where it may be a peer's: then it is offered to nobody.
            now: when the listing began.
        """
        if self.get(fingerprint, key) is not None:
            return False
        return self._add(fingerprint, key, _unattested(origin, now))

    def withhold(self, fingerprint: bytes, key: str, now: float) -> bool:
        """The bytes of a block were replaced: it is offered to nobody until a listing lacks it.

        False if that was known, or the block is not held.
        """
        known = self.get(fingerprint, key)
        if known is None or known.origin == CHANGED:
            return False
        self._replace(fingerprint, key, known, _unattested(CHANGED, now))
        return True

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
        self._unattested -= not held.attested
        if self._gone is not None and len(self._gone) <= GONE_MAX:
            self._gone.add((fingerprint, key))
        self._tell(held, Change(fingerprint, key, False, held.attested))
        return True

    def listing_begins(self) -> None:
        """From now on it is remembered which blocks go: a listing made meanwhile may still have them."""
        self._gone = set()

    def listing_ends(self) -> None:
        """What the listing has is known by now."""
        self._gone = None

    def findable(self, fingerprint: bytes, key: str) -> bool:
        """Whether a listing that has this block can be believed: it has not gone since that began."""
        gone = self._gone
        return gone is None or (len(gone) <= GONE_MAX and (fingerprint, key) not in gone)

    def reconcile(
        self,
        listed: Callable[[bytes, str], bool],
        began_at: float,
        within: Iterable[bytes] | None = None,
    ) -> int:
        """Withdraws what a complete listing no longer has; returns how many blocks that were.

        Args:
            listed: whether the listing has this block.
            began_at: when the listing began; what was attested or found after it survives.
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
        self._unattested += not held.attested
        self._tell(held, Change(fingerprint, key, True, held.attested))
        return True

    def _replace(self, fingerprint: bytes, key: str, known: Held, held: Held) -> None:
        """Something else is known of a block now."""
        self._namespaces[fingerprint][key] = held
        self._unattested += known.attested - held.attested
        before, after = self._offered(fingerprint, known), self._offered(fingerprint, held)
        change = Change(fingerprint, key, after, (held if after else known).attested)
        if before and after:
            self._on_amended(change)
        elif before or after:
            self._on_change(change)
        else:
            self._on_hidden(Change(fingerprint, key, added=True))

    def _offered(self, fingerprint: bytes, held: Held) -> bool:
        """Whether peers may have it from us."""
        return held.hops < self._hop_limit and (held.attested or self._unattested_ok(fingerprint))

    def _tell(self, held: Held, change: Change) -> None:
        offered = self._offered(change.fingerprint, held)
        (self._on_change if offered else self._on_hidden)(change)


def _unattested(origin: str, now: float) -> Held:
    return Held(0, b"", origin, 0, 0 if origin == OWN else HOPS_MAX, now)
