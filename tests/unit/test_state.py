"""The state of a running group, its file and its lock."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from local_group.processes import Supervisor
from local_group.slots import SlotFile
from local_group.state import (
    STATE_BYTES_MAX,
    ChildState,
    GroupLock,
    GroupState,
    ProcessId,
    clear_state,
    read_state,
    write_state,
)
from tests.support.groups import environment

SLOT = 256


def here() -> ProcessId:
    me = ProcessId.of(os.getpid())
    assert me is not None
    return me


def disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def full(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TRUNC or (flags & os.O_CREAT and not os.path.exists(path)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", full)


def test_the_newest_record_is_read(tmp_path: Path) -> None:
    slots = SlotFile(tmp_path / "run" / "state", SLOT)
    assert slots.read() is None
    for record in (b"", b"one", b"x" * (SLOT - 64), b"three"):
        slots.write(record)
        assert SlotFile(tmp_path / "run" / "state", SLOT).read() == record
    with pytest.raises(ValueError, match="does not fit"):
        slots.write(b"x" * (SLOT - 63))
    assert slots.read() == b"three"


@pytest.mark.parametrize("kept", [0, 5, 64, 66])
def test_a_record_that_is_half_written_is_none(tmp_path: Path, kept: int) -> None:
    file = tmp_path / "state"
    slots = SlotFile(file, SLOT)
    slots.write(b"one")
    slots.write(b"two")
    before = file.read_bytes()
    slots.write(b"three")
    after = file.read_bytes()
    place = 0 if before[:SLOT] != after[:SLOT] else SLOT
    end = place + kept
    file.write_bytes(before[:place] + after[place:end] + before[end:])
    assert slots.read() == b"two"
    slots.write(b"four")
    assert slots.read() == b"four"


def test_a_full_disk_stops_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "state"
    slots = SlotFile(file, 4096)
    slots.write(b"one")
    before = file.stat()
    assert before.st_blocks * 512 >= 2 * 4096
    disk_is_full(monkeypatch)
    for number in range(5):
        slots.write(b"%d" % number * 1000)
    assert slots.read() == b"4" * 1000
    after = file.stat()
    assert (after.st_ino, after.st_blocks) == (before.st_ino, before.st_blocks)
    with pytest.raises(OSError, match="No space left"):
        SlotFile(tmp_path / "other", 4096).write(b"one")


def test_the_state_keeps_its_room_when_it_is_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "state"
    clear_state(file)
    assert not file.exists()
    state = GroupState(group="east", supervisor=here())
    write_state(file, state)
    disk_is_full(monkeypatch)
    clear_state(file)
    assert read_state(file) is None
    write_state(file, state)
    assert read_state(file) == state


def test_the_state_of_the_largest_group_fits(tmp_path: Path) -> None:
    child = ChildState(process=here(), problem="é" * 300, last_exit="x" * 60, restarts=10**9)
    names = ["master", "gateway", *(f"store-{i}" for i in range(64))]
    state = GroupState(group="e" * 31, supervisor=here(), children=dict.fromkeys(names, child))
    write_state(tmp_path / "state", state)
    assert read_state(tmp_path / "state") == state
    assert len(state.model_dump_json().encode()) < STATE_BYTES_MAX / 2


def test_a_state_that_cannot_be_written_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("in the way")
    told: list[str] = []
    supervisor = Supervisor(
        GroupState(group="east", supervisor=here()),
        [],
        data_dir=tmp_path,
        state_file=tmp_path / "run" / "state",
        log_dir=tmp_path,
        progress=lambda each: told.append(each.detail),
    )
    for _ in range(3):
        supervisor._write()
    assert len(told) == 1
    assert "cannot be written" in told[0]


_CHILD = """
import sys
from pathlib import Path
from local_group.state import GroupLock
lock = GroupLock(Path(sys.argv[1]))
lock.adopt(int(sys.argv[2]))
print("adopted", flush=True)
sys.stdin.read()
"""


def test_a_lock_is_handed_to_a_child(tmp_path: Path) -> None:
    lock, other = GroupLock(tmp_path / "lock"), GroupLock(tmp_path / "lock")
    assert other.holder() is None
    assert lock.acquire()
    assert other.holder() == os.getpid()
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(tmp_path / "lock"), str(lock.descriptor)],
        pass_fds=(lock.descriptor,),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    ) as child:
        lock.release()
        assert other.holder() is not None  # there is no moment at which nobody holds it
        assert child.stdout is not None
        assert child.stdout.readline() == b"adopted\n"
        assert other.holder() == child.pid
        assert not other.acquire()
        assert child.stdin is not None
        child.stdin.close()
        child.wait(10)
    assert other.holder() is None


def test_a_damaged_state_is_no_state(tmp_path: Path) -> None:
    file = tmp_path / "state"
    assert read_state(file) is None
    for text in ("", "{", "[]", '{"group": 1}'):
        file.write_text(text)
        assert read_state(file) is None
