"""What a gateway holds, told to its serving process or to another gateway of its group; sans-IO.

Not a queue of changes but the set of blocks that have changed: what is sent of a block is how it is
at that moment, so a block that came and went costs nothing, and the last word is always right.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable
from itertools import islice

from federation.counters import counters
from local_group.holdings import OWN, Change, Held, Holdings
from local_group.names import NAME_MAX
from moonmesh.v1 import serving_pb2

BLOCKS_PER_MESSAGE = 256
"""Blocks in one message: a few ms of work at either end, between which other things get their turn."""
CHANGED_MAX = 262_144
"""Changed blocks that wait to be sent (30 MB); with more, everything is sent anew instead."""
SKIPPED_MAX = 65_536
"""Blocks that came while a snapshot did, and that are known as such."""
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
        self._changed: dict[bytes, dict[int, None]] = {}
        self._changed_count = 0
        # Namespaces, with the last name of each that was sent: what changes below it is in `_changed`.
        self._snapshot: deque[tuple[bytes, int]] | None = None
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
        names = self._changed.setdefault(change.fingerprint, {})
        self._changed_count += change.name not in names
        names[change.name] = None

    def next(self) -> serving_pb2.ToServing | None:
        """The next message; None where the replica has everything."""
        if self._begin:
            self._begin = False
            self.snapshots += 1
            self._snapshot = deque((fp, -1) for fp in sorted(self._namespaces))
            return serving_pb2.ToServing(snapshot_begin=serving_pb2.SnapshotBegin())
        if self._snapshot is not None:
            if not self._snapshot:
                self._snapshot = None
                return serving_pb2.ToServing(snapshot_end=serving_pb2.SnapshotEnd())
            fingerprint, sent = self._snapshot.popleft()
            names = self._holdings.after(fingerprint, sent, BLOCKS_PER_MESSAGE)
            through = names[-1] if len(names) == BLOCKS_PER_MESSAGE else NAME_MAX
            if through < NAME_MAX:
                self._snapshot.appendleft((fingerprint, through))
            message = self._message(fingerprint, names)
            message.blocks.through = through
            return message
        if not self._changed:
            return None
        fingerprint = next(iter(self._changed))
        changed = self._changed.pop(fingerprint)
        part = list(islice(changed, BLOCKS_PER_MESSAGE))
        for name in part:
            del changed[name]
        self._changed_count -= len(part)
        if changed:
            self._changed[fingerprint] = changed  # behind the others: each gets its turn
        return self._message(fingerprint, part)

    def _message(self, fingerprint: bytes, names: Iterable[int]) -> serving_pb2.ToServing:
        message = serving_pb2.ToServing()
        blocks = message.blocks
        blocks.fingerprint = fingerprint
        for name in names:
            held = self._look(fingerprint, name)
            if held is None:
                blocks.withdrawn.append(name)
            else:
                _write(blocks.offered.add(), name, held)
        return message


class Unnamed:
    """Blocks that a snapshot has not named, found as it comes: it goes through names in their order.

    Args:
        holdings: what is held at this end.
        namespaces: of which the snapshot is.
    """

    def __init__(self, holdings: Holdings, namespaces: Iterable[bytes]) -> None:
        self._holdings = holdings
        self._through = dict.fromkeys(namespaces, -1)
        self._names: dict[bytes, array[int]] = {}
        self._spared: set[tuple[bytes, int]] = set()
        self._skipped: set[tuple[bytes, int]] = set()

    def page(self, blocks: serving_pb2.OfferedBlocks) -> None:
        """A part of the snapshot."""
        fingerprint = blocks.fingerprint
        before = self._through.get(fingerprint)
        if before is not None and blocks.through > before:
            self._pass(
                fingerprint, before, blocks.through, [block.name for block in blocks.offered]
            )

    def end(self) -> None:
        """The snapshot is whole: of namespaces that it did not tell of, it has nothing."""
        for fingerprint, before in self._through.items():
            self._pass(fingerprint, before, NAME_MAX, [])

    def spare(self, fingerprint: bytes, name: int) -> None:
        """It was named after all, or told of since."""
        if fingerprint in self._names:
            self._spared.add((fingerprint, name))

    def skip(self, fingerprint: bytes, name: int) -> None:
        """It came after the snapshot had begun: that cannot name it."""
        if len(self._skipped) < SKIPPED_MAX:  # of more it is said that they are unnamed
            self._skipped.add((fingerprint, name))

    def add(self, fingerprint: bytes, name: int) -> None:
        """It was named, but not as it is here."""
        self._spared.discard((fingerprint, name))
        self._names.setdefault(fingerprint, array("Q")).append(name)

    def pop(self) -> tuple[bytes, int] | None:
        """One of them, which then is none any more; None when there are no others so far."""
        while self._names:
            fingerprint, names = next(iter(self._names.items()))
            name = names.pop()
            if not names:
                del self._names[fingerprint]
            if (fingerprint, name) not in self._spared:
                return fingerprint, name
        self._spared.clear()
        return None

    def last(self) -> tuple[bytes, int] | None:
        """One that the snapshot may name yet."""
        for fingerprint, through in self._through.items():
            name = self._holdings.last(fingerprint)
            if name is not None and name > through:
                return fingerprint, name
        return None

    def _pass(self, fingerprint: bytes, before: int, through: int, named: list[int]) -> None:
        self._through[fingerprint] = through
        while before < through:
            held = self._holdings.after(fingerprint, before, BLOCKS_PER_MESSAGE)
            held = [name for name in held if name <= through]
            if not held:
                return
            before = held[-1]
            unnamed = sorted(set(held).difference(named))
            if self._skipped:
                unnamed = [name for name in unnamed if (fingerprint, name) not in self._skipped]
            if unnamed:
                self._names.setdefault(fingerprint, array("Q")).extend(unnamed)


class Replica:
    """The other end of a feed.

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
        self._blocks_max = blocks_max
        self.holdings = Holdings(
            blocks_max=blocks_max,
            hop_limit=hop_limit,
            on_change=on_change,
            unattested_ok=unattested_ok,
        )
        """What is offered; others only take away from it."""
        self._unnamed: Unnamed | None = None
        self._ended = False  # the snapshot is here, but not all that it lacks is withdrawn
        self.complete = False
        """A whole snapshot has been applied."""

    def apply(self, message: serving_pb2.ToServing) -> None:
        """Takes a message of the feed; ignores others. What is left to do then is for `withdraw_some`."""
        which = message.WhichOneof("what")
        if which == "snapshot_begin":
            held = [fingerprint for fingerprint, _ in self.holdings.namespaces()]
            self._unnamed = Unnamed(self.holdings, held)
            self._ended = False
        elif which == "snapshot_end" and self._unnamed is not None:
            self._unnamed.end()
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
            if not self._withdraw_unnamed():
                self._unnamed = None
                self._ended = False
                self.complete = True
                return False
        return True

    def _take(self, blocks: serving_pb2.OfferedBlocks) -> None:
        fingerprint = blocks.fingerprint
        for name in blocks.withdrawn:
            self.holdings.withdraw(fingerprint, name)
        if self._unnamed is not None and blocks.HasField("through"):
            self._unnamed.page(blocks)
        for block in blocks.offered:
            held = read_held(block)
            if self._unnamed is not None:
                self._unnamed.spare(fingerprint, block.name)
            known = self.holdings.get(fingerprint, block.name)
            if known == held:
                continue
            if known is not None:
                self.holdings.withdraw(fingerprint, block.name)
            while len(self.holdings) >= self._blocks_max and self._withdraw_unnamed():
                pass  # one that is named later comes again then
            if not self.holdings.add(fingerprint, block.name, held):
                counters.add("moonmesh_serving_left_out_total")

    def _withdraw_unnamed(self) -> bool:
        """Withdraws one block of before the snapshot that it has not named; False if there is none."""
        if self._unnamed is None:
            return False
        unnamed = self._unnamed.pop() or self._unnamed.last()
        return unnamed is not None and (self.holdings.withdraw(*unnamed) or True)


def _write(message: serving_pb2.OfferedBlock, name: int, held: Held) -> None:
    message.name = name
    message.size = held.size
    message.digest = held.digest
    message.since = held.since
    if held.rival is not None:
        message.rival = held.rival
    if held.origin != OWN:
        message.origin, message.epoch, message.hops = held.origin, held.epoch, held.hops


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
