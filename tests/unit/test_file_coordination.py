"""An epoch is never given twice, whatever step the process dies at."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import pytest

from local_group.coordination.base import EPOCH_MAX
from local_group.coordination.file import PLACE_BYTES, FileCoordination
from local_group.process_errors import CoordinationError

# Prints each epoch it was given, then dies before the given step once it was given enough.
_DIES = """
import os, sys
from pathlib import Path
from local_group.coordination.file import FileCoordination
count = 0
def step(name):
    if count >= int(sys.argv[3]) and name == sys.argv[2]:
        os._exit(9)
coordination = FileCoordination(Path(sys.argv[1]), step=step)
while True:
    print(coordination.next_epoch(), flush=True)
    count += 1
"""
CREATE = ["create", "sync file", "rename", "sync folder", "return"]
OVERWRITE = ["write first", "sync first", "write second", "sync second", "return"]


def test_epochs_start_at_one_and_rise(tmp_path: Path) -> None:
    coordination = FileCoordination(tmp_path / "c")
    assert [coordination.next_epoch() for _ in range(3)] == [1, 2, 3]
    assert FileCoordination(tmp_path / "c").next_epoch() == 4


def epochs_until(folder: Path, step: str, count: int) -> list[int]:
    result = subprocess.run(
        [sys.executable, "-c", _DIES, str(folder), step, str(count)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert result.returncode == 9, result.stderr
    return [int(line) for line in result.stdout.split()]


@pytest.mark.parametrize("step", CREATE)
def test_a_crash_at_the_first_epoch_repeats_nothing(tmp_path: Path, step: str) -> None:
    assert epochs_until(tmp_path, step, 0) == []
    assert FileCoordination(tmp_path).next_epoch() >= 1


@pytest.mark.parametrize("step", OVERWRITE)
def test_a_crash_at_any_step_repeats_nothing(tmp_path: Path, step: str) -> None:
    given: list[int] = []
    for _ in range(3):
        given += epochs_until(tmp_path, step, 2)
    given.append(FileCoordination(tmp_path).next_epoch())
    assert len(given) == 7
    assert given == sorted(set(given))


@pytest.mark.parametrize("step", ["sync first", "sync second"])
@pytest.mark.parametrize("kept", [0, 7, 30])
def test_a_torn_write_repeats_nothing(tmp_path: Path, step: str, kept: int) -> None:
    """The disk has only a part of the copy that was written when the power went."""
    (given,) = epochs_until(tmp_path, step, 1)
    file = tmp_path / "epoch"
    data = bytearray(file.read_bytes())
    place = PLACE_BYTES if step == "sync first" else 0
    assert f" {given + 1} ".encode() in data[place : place + 100]
    data[place + kept : place + PLACE_BYTES] = b"\0" * (PLACE_BYTES - kept)
    file.write_bytes(data)
    assert FileCoordination(tmp_path).next_epoch() > given


@pytest.mark.parametrize("place", [0, PLACE_BYTES])
def test_damage_to_one_copy_repeats_nothing(tmp_path: Path, place: int) -> None:
    coordination = FileCoordination(tmp_path)
    given = [coordination.next_epoch() for _ in range(2)]
    file = tmp_path / "epoch"
    data = bytearray(file.read_bytes())
    data[place : place + 512] = b"\xff" * 512
    file.write_bytes(data)
    assert coordination.next_epoch() == given[-1] + 1
    assert file.read_bytes()[:40] == file.read_bytes()[PLACE_BYTES:][:40]


def test_a_full_disk_does_not_stop_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No new file, no new block: it needs nothing of a full disk."""
    coordination = FileCoordination(tmp_path)
    coordination.next_epoch()
    before = (tmp_path / "epoch").stat()
    assert before.st_blocks * 512 >= 2 * PLACE_BYTES
    real_open = os.open

    def full(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TRUNC or (flags & os.O_CREAT and not path.exists()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real_open(path, flags, mode)

    monkeypatch.setattr(os, "open", full)
    assert [coordination.next_epoch() for _ in range(3)] == [2, 3, 4]
    after = (tmp_path / "epoch").stat()
    kept = ("st_ino", "st_size", "st_blocks")
    assert [getattr(after, name) for name in kept] == [getattr(before, name) for name in kept]
    with pytest.raises(CoordinationError, match="cannot be stored: No space left on device"):
        FileCoordination(tmp_path / "new").next_epoch()


def test_a_file_of_one_copy_is_taken_over(tmp_path: Path) -> None:
    """As the first version has written it."""
    text = "moonmesh-epoch-1 41"
    (tmp_path / "epoch").write_text(f"{text} {zlib.crc32(text.encode()):08x}\n")
    assert FileCoordination(tmp_path).next_epoch() == 42
    assert (tmp_path / "epoch").stat().st_size == 2 * PLACE_BYTES
    assert FileCoordination(tmp_path).next_epoch() == 43


def test_the_steps_are_all_there_are(tmp_path: Path) -> None:
    steps: list[str] = []
    coordination = FileCoordination(tmp_path, step=steps.append)
    coordination.next_epoch()
    assert steps == CREATE
    steps.clear()
    coordination.next_epoch()
    assert steps == OVERWRITE


def test_above_a_floor(tmp_path: Path) -> None:
    coordination = FileCoordination(tmp_path)
    assert coordination.above(41) == 42
    assert coordination.above(7) == 43
    assert coordination.next_epoch() == 44


def test_threads_get_different_epochs(tmp_path: Path) -> None:
    given: list[int] = []

    def take() -> None:
        coordination = FileCoordination(tmp_path)
        given.extend(coordination.next_epoch() for _ in range(10))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(given) == list(range(1, 41))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"7\n",
        b"\0\0\0\0",
        b"moonmesh-epoch-1 7 00000000\n",
        b"moonmesh-epoch-1 -7 00000000\n",
        b"moonmesh-epoch-2 7 00000000\n",
        b"\xff\xfe\xfd",
        b"x" * 10_000,
    ],
)
def test_a_damaged_file_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    coordination = FileCoordination(tmp_path)
    coordination.next_epoch()
    (tmp_path / "epoch").write_bytes(content)
    with pytest.raises(CoordinationError, match="the epoch file is damaged") as caught:
        coordination.next_epoch()
    assert str(tmp_path / "epoch") in str(caught.value)
    assert (tmp_path / "epoch").read_bytes() == content


def test_a_digit_changed_is_damage(tmp_path: Path) -> None:
    coordination = FileCoordination(tmp_path)
    coordination.above(1000)
    file = tmp_path / "epoch"
    file.write_bytes(file.read_bytes().replace(b" 1001 ", b" 1002 "))
    with pytest.raises(CoordinationError, match="damaged"):
        coordination.next_epoch()


def test_the_end_of_epochs(tmp_path: Path) -> None:
    with pytest.raises(CoordinationError, match="used up"):
        FileCoordination(tmp_path).above(EPOCH_MAX)


def test_no_place_to_write(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("a file")
    with pytest.raises(CoordinationError, match=r"cannot be stored: (File exists|Not a directory)"):
        FileCoordination(tmp_path / "c").next_epoch()
