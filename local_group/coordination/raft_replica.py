"""One member of the Raft group: pysyncobj with our state machine, in a thread of its own."""

from __future__ import annotations

import base64
import functools
import json
import logging
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from local_group.coordination.machine import DONE, Machine
from local_group.coordination.pysync import (
    FAIL_REASON,
    SERIALIZER_STATE,
    SyncObj,
    SyncObjConf,
    replicated,
)
from local_group.coordination.raft_transport import Disk, Transport
from local_group.process_errors import CoordinationError

SNAPSHOT_BYTES_MAX = 64 << 20
LOG_ENTRIES = 5000
"""Entries in the journal, above which a snapshot takes their place: some 40 minutes of renewals."""
LOG_SECONDS = 3600
"""Between two snapshots, at most."""
QUEUE_MAX = 1000
"""Commands that wait to be proposed."""
ELECTION_SECONDS = (0.4, 0.8)
"""Without a word of the leader, before a member wants to be it."""
HEARTBEAT_SECONDS = 0.1
FALLBACK_SECONDS = 1.5
"""Without a majority, before a Raft leader stops to be one."""
SILENCE_SECONDS = 2.0
"""Without a byte, before a connection is made anew."""
REDIAL_SECONDS = 0.25
TICK_SECONDS = 0.05

COMMANDS = frozenset({"claim", "above", "renew", "resign", "put"})
SUCCESS = FAIL_REASON.SUCCESS

logging.getLogger("pysyncobj").setLevel(logging.CRITICAL + 1)  # it logs each lost connection


class Replica(SyncObj):  # type: ignore[misc]
    """See the module.

    Args:
        own, others: `host:port` of the members.
        secret: encrypts and authenticates what they say to each other. Needed: messages are pickles, so
            whoever can send one can run code here.
        changed: told of each key that was written, in the thread of the replica.
        replaced: told that a snapshot has taken the place of everything, likewise.

    Raises:
        CoordinationError: what is on the disk is damaged.
    """

    def __init__(
        self,
        own: str,
        others: list[str],
        disk: Disk,
        secret: str,
        changed: Callable[[str, bytes], None],
        replaced: Callable[[], None],
    ) -> None:
        self.machine = Machine()
        self._disk = disk
        self._changed = changed
        self._replaced = replaced
        self._compaction = SERIALIZER_STATE.NOT_SERIALIZING
        self._trusted = False
        if disk.snapshot.exists():
            read_snapshot(
                disk.snapshot
            )  # pysyncobj would begin with nothing, and say so in its log
        configuration = SyncObjConf(
            password=secret,
            bindAddress=own,  # not every address of the host, as pysyncobj would
            autoTickPeriod=TICK_SECONDS,
            commandsQueueSize=QUEUE_MAX,
            raftMinTimeout=ELECTION_SECONDS[0],
            raftMaxTimeout=ELECTION_SECONDS[1],
            appendEntriesPeriod=HEARTBEAT_SECONDS,
            appendEntriesUseBatch=False,
            connectionTimeout=SILENCE_SECONDS,
            connectionRetryTime=REDIAL_SECONDS,
            leaderFallbackTimeout=FALLBACK_SECONDS,
            commandsWaitLeader=False,
            journalFile=str(disk.journal),
            fullDumpFile=str(disk.snapshot),
            logCompactionMinEntries=LOG_ENTRIES,
            logCompactionMinTime=LOG_SECONDS,
            serializer=self._write_snapshot,
            deserializer=self._load_snapshot,
            serializeChecker=self._check_snapshot,
            onStateChanged=self._state_changed,
        )
        try:
            transport = functools.partial(Transport, disk=disk)
            super().__init__(own, others, configuration, transportClass=transport)
        except (OSError, ValueError, KeyError, IndexError, ArithmeticError) as error:
            raise _damaged(disk.journal, error) from error
        except Exception as error:  # struct.error, of a journal that was cut
            raise _damaged(disk.journal, error) from error

    @replicated  # type: ignore[untyped-decorator]
    def command(self, name: str, *arguments: Any) -> int:
        """Every member does this, in the same order."""
        if name not in COMMANDS:
            return 0  # of a newer version
        answer: int = getattr(self.machine, name)(*arguments)
        if name == "put" and answer == DONE:
            _, _, key, value = arguments
            self._changed(key, value)
        return answer

    def _state_changed(self, _: int, state: int) -> None:
        if state == 2 and self._disk.fresh:  # elected by all, or alone: nobody knows more
            self._disk.join()

    # Snapshots. While pysyncobj cuts its journal, which it does in place, a crash can lose the end of it: the
    # member counts as one without a past until that is done.

    def _write_snapshot(self, path: str, positions: tuple[Any, ...]) -> None:
        last, before, _ = positions
        content = {
            "state": self.machine.to_json(),
            "last": _entry(last),
            "before": _entry(before),
        }
        text = json.dumps(content).encode()
        self._compaction = SERIALIZER_STATE.FAILED
        with open(path, "wb") as file:
            file.write(f"{zlib.crc32(text):08x} ".encode() + text)
            file.flush()
            os.fsync(file.fileno())
        self._trusted = not self._disk.fresh
        self._disk.doubt()
        self._compaction = SERIALIZER_STATE.SUCCESS

    def _check_snapshot(self) -> int:
        """Asked at each tick; when it says SUCCESS, the journal is cut before it is asked again."""
        state = self._compaction
        if state == SERIALIZER_STATE.SUCCESS:
            self._compaction = SERIALIZER_STATE.SERIALIZING
        elif state != SERIALIZER_STATE.NOT_SERIALIZING:
            self._compaction = SERIALIZER_STATE.NOT_SERIALIZING
            if self._trusted:
                self._disk.join()
        return int(state)

    def _load_snapshot(self, path: str) -> tuple[Any, ...]:
        content = read_snapshot(Path(path))
        self.machine.load(content["state"])
        self._replaced()
        return _from_entry(content["last"]), _from_entry(content["before"]), set()


def read_snapshot(path: Path) -> dict[str, Any]:
    """The content of a snapshot. Raises CoordinationError if it is damaged."""
    try:
        with path.open("rb") as file:
            check, _, text = file.read(SNAPSHOT_BYTES_MAX).partition(b" ")
        if int(check, 16) != zlib.crc32(text):
            raise ValueError("its checksum is wrong")
        content: dict[str, Any] = json.loads(text)
        Machine().load(content["state"])
        for name in ("last", "before"):
            _from_entry(content[name])
        return content
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, error) from error


def _entry(entry: tuple[bytes, int, int]) -> list[Any]:
    command, index, term = entry
    return [base64.b64encode(command).decode(), index, term]


def _from_entry(fields: list[Any]) -> tuple[bytes, int, int]:
    command, index, term = fields
    return base64.b64decode(command), int(index), int(term)


def _damaged(path: Path, error: Exception) -> CoordinationError:
    return CoordinationError(
        f"what this member of the Raft group remembers is damaged: {error}",
        where=str(path),
        hint=f"delete {path.parent} of this member alone: the others give it back, if most run",
    )
