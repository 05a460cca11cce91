"""What a gateway offers, told to its serving process; sans-IO.

Not a queue of changes but the set of blocks that have changed: what is sent of a block is how it is
at that moment, so a block that came and went costs nothing, and the last word is always right.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from local_group.holdings import Change, Held, Holdings
from moonmesh.v1 import serving_pb2

BLOCKS_PER_MESSAGE = 256
"""Blocks in one message: a few ms of work at either end, between which other things get their turn."""
CHANGED_MAX = 262_144
"""Changed blocks that wait to be sent (20 MB); with more, everything is sent anew instead."""

_Name = tuple[bytes, str]


class Feed:
    """Blocks on their way into a replica.

    Args:
        holdings: where the truth is.
        namespaces: fingerprints that some peer may import; of others nothing is sent.
        changed_max: changed blocks that may wait.
    """

    def __init__(
        self, holdings: Holdings, namespaces: Collection[bytes], changed_max: int = CHANGED_MAX
    ) -> None:
        self._holdings = holdings
        self._namespaces = frozenset(namespaces)
        self._changed_max = changed_max
        self._changed: dict[_Name, None] = {}
        self._snapshot: deque[tuple[bytes, list[str]]] | None = None
        self._begin = True
        self.snapshots = 0
        """Times that everything was sent."""

    @property
    def pending(self) -> bool:
        """Whether `next` has something."""
        return self._begin or self._snapshot is not None or bool(self._changed)

    def restart(self) -> None:
        """There is a new replica, and it knows nothing."""
        self._begin = True
        self._snapshot = None
        self._changed.clear()

    def take(self, change: Change) -> None:
        """A block came or went, or is another than it was."""
        if self._begin or change.fingerprint not in self._namespaces:
            return
        if len(self._changed) >= self._changed_max:
            self.restart()
            return
        self._changed[(change.fingerprint, change.key)] = None

    def next(self) -> serving_pb2.ToServing | None:
        """The next message; None where the replica has everything."""
        if self._begin:
            self._begin = False
            self.snapshots += 1
            # The keys as they are now; what changes from here on is in `_changed` as well.
            self._snapshot = deque((fp, self._holdings.keys(fp)) for fp in self._namespaces)
            return serving_pb2.ToServing(snapshot_begin=serving_pb2.SnapshotBegin())
        if self._snapshot is not None:
            if not self._snapshot:
                self._snapshot = None
                return serving_pb2.ToServing(snapshot_end=serving_pb2.SnapshotEnd())
            fingerprint, keys = self._snapshot[0]
            part = keys[-BLOCKS_PER_MESSAGE:]
            del keys[-BLOCKS_PER_MESSAGE:]
            if not keys:
                self._snapshot.popleft()
            return self._message(fingerprint, part)
        if not self._changed:
            return None
        fingerprint = next(iter(self._changed))[0]
        names: list[_Name] = []
        for name in self._changed:
            if name[0] != fingerprint or len(names) == BLOCKS_PER_MESSAGE:
                break
            names.append(name)
        for name in names:
            del self._changed[name]
        return self._message(fingerprint, [key for _, key in names])

    def _message(self, fingerprint: bytes, keys: Iterable[str]) -> serving_pb2.ToServing:
        message = serving_pb2.ToServing()
        blocks = message.blocks
        blocks.fingerprint = fingerprint
        for key in keys:
            held = self._holdings.exportable(fingerprint, key)
            if held is None:
                blocks.withdrawn.append(key)
            else:
                _write(blocks.offered.add(), key, held)
        return message


class Replica:
    """The other end of a feed.

    Args:
        holdings: what the serving process offers; nobody else adds to it.
    """

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._unconfirmed: dict[bytes, set[str]] = {}
        self.complete = False
        """A whole snapshot has been applied."""

    def apply(self, message: serving_pb2.ToServing) -> None:
        """Takes a message of the feed; ignores others."""
        which = message.WhichOneof("what")
        if which == "snapshot_begin":
            held = [fingerprint for fingerprint, _ in self._holdings.namespaces()]
            self._unconfirmed = {fp: set(self._holdings.keys(fp)) for fp in held}
        elif which == "snapshot_end":
            for fingerprint, keys in self._unconfirmed.items():
                for key in keys:
                    self._holdings.withdraw(fingerprint, key)
            self._unconfirmed = {}
            self.complete = True
        elif which == "blocks":
            self._take(message.blocks)

    def _take(self, blocks: serving_pb2.OfferedBlocks) -> None:
        fingerprint = blocks.fingerprint
        unconfirmed = self._unconfirmed.get(fingerprint, set())
        for key in blocks.withdrawn:
            self._holdings.withdraw(fingerprint, key)
        for block in blocks.offered:
            held = _read(block)
            unconfirmed.discard(block.key)
            if self._holdings.get(fingerprint, block.key) != held:
                self._holdings.restore(fingerprint, block.key, held)


def _write(message: serving_pb2.OfferedBlock, key: str, held: Held) -> None:
    message.key = key
    message.size = held.size
    message.digest = held.digest
    message.rival = held.rival or b""
    message.origin = held.origin
    message.epoch = held.epoch
    message.hops = held.hops
    message.since = held.since


def _read(message: serving_pb2.OfferedBlock) -> Held:
    return Held(
        message.size,
        message.digest,
        message.origin,
        message.epoch,
        message.hops,
        message.since,
        message.rival or None,
    )
