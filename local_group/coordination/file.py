"""Coordination of a group with one gateway: a durable counter in a file."""

from __future__ import annotations

import fcntl
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from local_group.process_errors import CoordinationError

EPOCH_MAX = (1 << 63) - 1
_FILE_BYTES_MAX = 256
_MAGIC = "moonmesh-epoch-1"


class FileCoordination:
    """The group's epochs: each call of `next_epoch` gives one that was never given before.

    The invariant: a number is returned only after a file that holds it has reached the disk under
    its final name. So a crash at any step can skip numbers and never repeats one.

    Args:
        directory: made if missing; it must be on a local file system.
        step: called with the name of each step before it; tests stop the process there.
    """

    def __init__(self, directory: Path, *, step: Callable[[str], None] = lambda _: None) -> None:
        self._directory = directory
        self._file = directory / "epoch"
        self._temporary = directory / "epoch.tmp"
        self._step = step

    def next_epoch(self) -> int:
        """The next epoch, 1 at first; durable when it returns. Blocks for some ms (two fsyncs).

        Raises:
            CoordinationError: the file is damaged (it is never replaced: an epoch that went back
                would make peers refuse this group), or the disk fails.
        """
        return self._advance(0)

    def above(self, floor: int) -> int:
        """The next epoch, and above `floor`: for a group whose peers remember a higher one."""
        return self._advance(floor)

    def _advance(self, floor: int) -> int:
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._locked():
                epoch = max(self._read(), floor) + 1
                if epoch > EPOCH_MAX:
                    raise CoordinationError("the epochs are used up", where=str(self._file))
                self._write(epoch)
                self._step("return")
                return epoch
        except OSError as error:
            raise CoordinationError(
                f"the epoch cannot be stored: {error.strerror}",
                where=str(self._file),
                hint="check the disk, its free space and the folder's permissions",
            ) from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # A lock file of its own: the epoch file itself is replaced.
        descriptor = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _read(self) -> int:
        """The last epoch; 0 if there was none yet."""
        try:
            with self._file.open("rb") as file:
                data = file.read(_FILE_BYTES_MAX)
        except FileNotFoundError:
            return 0
        epoch = _decode(data)
        if epoch is None:
            raise CoordinationError(
                f"the epoch file is damaged: {data[:60]!r}",
                where=str(self._file),
                hint="restore it from a backup; only if this group has never had peers, delete it",
            )
        return epoch

    def _write(self, epoch: int) -> None:
        self._step("write")
        descriptor = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_encode(epoch))
            file.flush()
            self._step("sync file")
            os.fsync(file.fileno())
        self._step("rename")
        self._temporary.replace(self._file)
        self._step("sync folder")
        folder = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _encode(epoch: int) -> bytes:
    text = f"{_MAGIC} {epoch}"
    return f"{text} {zlib.crc32(text.encode()):08x}\n".encode()


def _decode(data: bytes) -> int | None:
    fields = data.decode("ascii", errors="replace").split()
    if len(fields) != 3 or fields[0] != _MAGIC or not fields[1].isdigit():
        return None
    epoch = int(fields[1])
    return epoch if 1 <= epoch <= EPOCH_MAX and data == _encode(epoch) else None
