"""An epoch is never given twice, whatever step the process dies at."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from local_group.coordination.file import EPOCH_MAX, FileCoordination
from local_group.process_errors import CoordinationError

# Prints each epoch it was given, then dies before the given step of the third.
_DIES = """
import os, sys
from pathlib import Path
from local_group.coordination.file import FileCoordination
count = 0
def step(name):
    if count == 2 and name == sys.argv[2]:
        os._exit(9)
coordination = FileCoordination(Path(sys.argv[1]), step=step)
while True:
    print(coordination.next_epoch(), flush=True)
    count += 1
"""
STEPS = ["write", "sync file", "rename", "sync folder", "return"]


def test_epochs_start_at_one_and_rise(tmp_path: Path) -> None:
    coordination = FileCoordination(tmp_path / "c")
    assert [coordination.next_epoch() for _ in range(3)] == [1, 2, 3]
    assert FileCoordination(tmp_path / "c").next_epoch() == 4


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_repeats_nothing(tmp_path: Path, step: str) -> None:
    given: list[int] = []
    for _ in range(2):
        result = subprocess.run(
            [sys.executable, "-c", _DIES, str(tmp_path), step],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert result.returncode == 9, result.stderr
        given += [int(line) for line in result.stdout.split()]
    given.append(FileCoordination(tmp_path).next_epoch())
    assert len(given) == 5
    assert given == sorted(set(given))


def test_the_steps_are_all_there_are(tmp_path: Path) -> None:
    steps: list[str] = []
    FileCoordination(tmp_path, step=steps.append).next_epoch()
    assert steps == STEPS


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
    file.write_bytes(file.read_bytes().replace(b" 1001 ", b" 1 "))
    with pytest.raises(CoordinationError, match="damaged"):
        coordination.next_epoch()


def test_the_end_of_epochs(tmp_path: Path) -> None:
    with pytest.raises(CoordinationError, match="used up"):
        FileCoordination(tmp_path).above(EPOCH_MAX)


def test_no_place_to_write(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("a file")
    with pytest.raises(CoordinationError, match=r"cannot be stored: (File exists|Not a directory)"):
        FileCoordination(tmp_path / "c").next_epoch()
