"""What a gateway holds, told to its serving process or to another gateway of its group; sans-IO.

Not a queue of changes but the set of blocks that have changed: what is sent of a block is how it is
at that moment, so a block that came and went costs nothing, and the last word is always right.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from itertools import islice

from federation.counters import counters
from federation.limits_config import SERVING_BYTES_PER_BLOCK, SERVING_KEY_BYTES
from local_group.holdings import Change, Held, Holdings
from moonmesh.v1 import serving_pb2

BLOCKS_PER_MESSAGE = 256
"""Blocks in one message: a few ms of work at either end, between which other things get their turn."""
CHANGED_MAX = 262_144
"""Changed blocks that wait to be sent (20 MB); with more, everything is sent anew instead."""
WITHDRAWN_AT_ONCE = 1024
"""Blocks that a replica withdraws in one go: 10 ms, between which pings are answered."""


class Feed:
    """Blocks on their way into a replica.

    Args:
        holdings: where the truth is.
        namespaces: fingerprints; of others nothing is sent.
        changed_max: changed blocks that may wait.
        everything: also what peers may not have: for another gateway of the group.
    """

    def __init__(
        self,
        holdings: Holdings,
        namespaces: Collection[bytes],
        changed_max: int = CHANGED_MAX,
        *,
        everything: bool = False,
    ) -> None:
        self._holdings = holdings
        self._look = holdings.get if everything else holdings.exportable
        self._namespaces = frozenset(namespaces)
        self._changed_max = changed_max
        # A dict a namespace, none of them empty: a message is about one namespace.
        self._changed: dict[bytes, dict[str, None]] = {}
        self._changed_count = 0
        self._snapshot: deque[tuple[bytes, list[str]]] | None = None
        self._begin = True
        self.snapshots = 0
        """Times that everything was sent."""

    @property
    def pending(self) -> bool:
        """Whether `next` has something."""
        return self._begin or self._snapshot is not None or bool(self._changed)

    @property
    def waiting(self) -> int:
        """Changed blocks that wait, besides those of a snapshot."""
        return self._changed_count

    def restart(self) -> None:
        """There is a new replica, and it knows nothing."""
        self._begin = True
        self._snapshot = None
        self._changed.clear()
        self._changed_count = 0

    def take(self, change: Change) -> None:
        """A block came or went, or is another than it was."""
        if self._begin or change.fingerprint not in self._namespaces:
            return
        if self._changed_count >= self._changed_max:
            self.restart()
            return
        keys = self._changed.setdefault(change.fingerprint, {})
        self._changed_count += change.key not in keys
        keys[change.key] = None

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
        fingerprint = next(iter(self._changed))
        changed = self._changed.pop(fingerprint)
        part = list(islice(changed, BLOCKS_PER_MESSAGE))
        for key in part:
            del changed[key]
        self._changed_count -= len(part)
        if changed:
            self._changed[fingerprint] = changed  # behind the others: each gets its turn
        return self._message(fingerprint, part)

    def _message(self, fingerprint: bytes, keys: Iterable[str]) -> serving_pb2.ToServing:
        message = serving_pb2.ToServing()
        blocks = message.blocks
        blocks.fingerprint = fingerprint
        for key in keys:
            held = self._look(fingerprint, key)
            if held is None:
                blocks.withdrawn.append(key)
            else:
                _write(blocks.offered.add(), key, held)
        return message


class Replica:
    """The other end of a feed.

    It has room for as much memory as the configuration reckons for `blocks_max` blocks. Keys may be ten
    times as long as was reckoned; what does not fit then is left out, for the process must not be killed
    for what engines write.

    Args:
        blocks_max: `holdings_blocks`.
        hop_limit: `hop_limit`.
        on_change: told of each block that is offered, when it comes and when it goes.
        unattested_ok: as in `Holdings`.
    """

    def __init__(
        self,
        *,
        blocks_max: int,
        hop_limit: int,
        on_change: Callable[[Change], None],
        unattested_ok: Callable[[bytes], bool] = lambda _: False,
    ) -> None:
        self._on_change = on_change
        self._bytes_max = blocks_max * SERVING_BYTES_PER_BLOCK
        self._unconfirmed: dict[bytes, set[str]] = {}
        self._ended = False  # the snapshot is here, but not all that it lacks is withdrawn
        self.holdings = Holdings(
            blocks_max=blocks_max,
            hop_limit=hop_limit,
            on_change=self._changed,
            unattested_ok=unattested_ok,
        )
        """What is offered; others only take away from it."""
        self.bytes = 0
        """Memory that the blocks take up."""
        self.complete = False
        """A whole snapshot has been applied."""

    def apply(self, message: serving_pb2.ToServing) -> None:
        """Takes a message of the feed; ignores others. What is left to do then is for `withdraw_some`."""
        which = message.WhichOneof("what")
        if which == "snapshot_begin":
            held = [fingerprint for fingerprint, _ in self.holdings.namespaces()]
            self._unconfirmed = {fp: set(self.holdings.keys(fp)) for fp in held}
            self._ended = False
        elif which == "snapshot_end":
            self._ended = True
        elif which == "blocks":
            self._take(message.blocks)

    def withdraw_some(self) -> bool:
        """Withdraws a few of the blocks that an ended snapshot has not named; whether more are left.

        Between two calls messages may be applied: what is offered then is confirmed by that.
        """
        if not self._ended:
            return False
        for _ in range(WITHDRAWN_AT_ONCE):
            if not self._withdraw_unconfirmed():
                self._ended = False
                self.complete = True
                return False
        return True

    def _take(self, blocks: serving_pb2.OfferedBlocks) -> None:
        fingerprint = blocks.fingerprint
        for key in blocks.withdrawn:
            self.holdings.withdraw(fingerprint, key)
        for block in blocks.offered:
            held = read_held(block)
            self._unconfirmed.get(fingerprint, set()).discard(block.key)
            if self.holdings.get(fingerprint, block.key) == held:
                continue
            self.holdings.withdraw(fingerprint, block.key)
            size = _weight(block.key)
            while self.bytes + size > self._bytes_max and self._withdraw_unconfirmed():
                pass  # one that is confirmed later comes again then
            if self.bytes + size <= self._bytes_max:
                self.holdings.restore(fingerprint, block.key, held)
            else:
                counters.add("moonmesh_serving_left_out_total")

    def _withdraw_unconfirmed(self) -> bool:
        """Withdraws one block of before the snapshot that it has not named; False if there is none."""
        for fingerprint, keys in self._unconfirmed.items():
            if keys:
                self.holdings.withdraw(fingerprint, keys.pop())
                return True
        self._unconfirmed = {}
        return False

    def _changed(self, change: Change) -> None:
        self.bytes += _weight(change.key) if change.added else -_weight(change.key)
        self._on_change(change)


def _weight(key: str) -> int:
    """Bytes that a block with this key takes up: Python has four for each character if one needs them."""
    size = len(key) if key.isascii() else 4 * len(key) + len(key.encode())
    return SERVING_BYTES_PER_BLOCK + max(0, size - SERVING_KEY_BYTES)


def _write(message: serving_pb2.OfferedBlock, key: str, held: Held) -> None:
    message.key = key
    message.size = held.size
    message.digest = held.digest
    message.rival = held.rival or b""
    message.origin = held.origin
    message.epoch = held.epoch
    message.hops = held.hops
    message.since = held.since


def read_held(message: serving_pb2.OfferedBlock) -> Held:
    """What a message says of a block."""
    return Held(
        message.size,
        message.digest,
        message.origin,
        message.epoch,
        message.hops,
        message.since,
        message.rival or None,
    )
