"""Two things that Raft needs and pysyncobj leaves out: what is promised is on the disk, and a member
that has lost its disk has no say until it has been told everything again.

pysyncobj writes its journal through a memory map and never syncs it: killed, a member remembers all, but
when a data centre loses power, all members may forget what they acknowledged. So the files are synced here
before a message that promises what is in them.

A member that acknowledged an entry and then lost its disk could elect, with a second one that never had it,
a leader that does not have it either. So a member without a past votes as a `fresh` one, until its log is
that of a leader, up to an entry that this leader committed itself. The votes of fresh members count only
where ALL members vote for the same candidate: then nothing can be lost that any disk still has. That is also
how a group begins: its first election needs all members, any later one most of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from local_group.coordination.pysync import TCPTransport

Message = dict[str, Any]


class Disk:
    """The files of one member.

    Args:
        folder: of this member alone; made if missing.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder
        self.journal = folder / "journal"
        self.snapshot = folder / "snapshot"
        self._joined = folder / "joined"
        self.fresh = not (self._joined.exists() and self.journal.exists())

    def join(self) -> None:
        """This member has a past now, on the disk."""
        if self.fresh:
            self.sync()
            self._joined.touch(mode=0o600)
            _sync(self.folder)
            self.fresh = False

    def doubt(self) -> None:
        """What follows may lose the end of the journal if it is interrupted: fresh until `join`."""
        self._joined.unlink(missing_ok=True)
        _sync(self.folder)
        self.fresh = True

    def sync(self) -> None:
        """What the journal says, and the vote, are on the disk."""
        meta = self.folder / "journal.meta"
        for path in (self.journal, meta, self.snapshot, self.folder):
            if path.exists():
                _sync(path)


class Votes:
    """Which votes a candidate may count, without IO.

    Args:
        others: how many other members there are.
    """

    def __init__(self, others: int) -> None:
        self._others = others
        self._term = -1
        self._held: dict[str, Message] = {}
        self._voters: set[str] = set()

    def take(self, voter: str, message: Message, *, fresh: bool) -> list[tuple[str, Message]]:
        """The votes to be counted now, with who gave them.

        Args:
            message: a `response_vote`.
            fresh: is the candidate, we, a fresh member?
        """
        if message["term"] != self._term:
            self._term, self._held, self._voters = message["term"], {}, set()
        self._voters.add(voter)
        if fresh or message.get("fresh"):
            self._held[voter] = message
        else:
            return [(voter, message)]
        if len(self._voters) < self._others:
            return []
        held, self._held = list(self._held.items()), {}
        return held


class Transport(TCPTransport):  # type: ignore[misc]
    """pysyncobj's transport with both guards.

    Args:
        disk: of this member.
    """

    _unsynced = False

    def __init__(self, replica: Any, own: Any, others: Any, disk: Disk) -> None:
        self._disk = disk
        self._votes = Votes(len(others))
        self._by_id = {node.id: node for node in others}
        super().__init__(replica, own, others)

    def send(self, node: Any, message: Message) -> Any:
        kind = message["type"]
        if kind == "response_vote" and self._disk.fresh:
            message = {**message, "fresh": True}
        promises = kind in ("request_vote", "response_vote") or (
            kind == "next_node_idx" and message["success"] and self._unsynced
        )
        if promises or message.get("entries") or "transmission" in message:
            self._disk.sync()
            self._unsynced = False
        return super().send(node, message)

    def setOnMessageReceivedCallback(self, callback: Callable[[Any, Message], None]) -> None:  # noqa: N802 - pysyncobj's name
        def receive(node: Any, message: Message) -> None:
            kind = message["type"]
            if kind == "response_vote":
                for voter, vote in self._votes.take(node.id, message, fresh=self._disk.fresh):
                    callback(self._by_id.get(voter, node), vote)
                return
            if kind == "append_entries" and ("serialized" in message or message.get("entries")):
                self._unsynced = True
            if "transmission" in message:
                self._unsynced = True
            callback(node, message)
            if self._disk.fresh and kind == "append_entries" and self._told_all(message):
                self._disk.join()

        super().setOnMessageReceivedCallback(receive)

    def _told_all(self, message: Message) -> bool:
        """Is our log the leader's, up to an entry of its own term that it has committed? Every entry
        that was ever acknowledged is before that one."""
        replica = self._syncObj
        return bool(
            message["term"] >= replica.raftCurrentTerm
            and message.get("prevLogTerm") == message["term"]
            and message["commit_index"] >= message["prevLogIdx"]
            and replica.raftCommitIndex >= message["prevLogIdx"]
        )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
