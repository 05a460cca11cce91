"""Coordination of a group with one gateway: a durable counter in a file."""

from __future__ import annotations

import fcntl
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from local_group.coordination.base import EPOCH_MAX
from local_group.process_errors import CoordinationError

PLACE_BYTES = 4096
"""Of each of the two copies: no block of a disk holds parts of both."""
_MAGIC = "moonmesh-epoch-1"


class FileCoordination:
    """The group's epochs: each call of `next_epoch` gives one that was never given before.

    The invariant: a number is returned only after both copies of it in the file have reached the
    disk. Copies are overwritten in place, one after the other, the lower one first: so a full disk
    does not stop it, a crash at any step leaves a copy of at least the last number that was given,
    and so does damage to either copy at rest. A crash can skip numbers and never repeats one.

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
                copies, whole = self._read()
                epoch = max(*copies, floor) + 1
                if epoch > EPOCH_MAX:
                    raise CoordinationError("the epochs are used up", where=str(self._file))
                if whole:
                    self._overwrite(copies, epoch)
                else:
                    self._create(epoch)
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
        # A lock file of its own: the epoch file itself can be replaced.
        descriptor = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _read(self) -> tuple[tuple[int, int], bool]:
        """The epoch of each copy, 0 for one that is not whole; and has the file room for both?

        Raises:
            CoordinationError: neither is whole.
        """
        try:
            with self._file.open("rb") as file:
                data = file.read(2 * PLACE_BYTES)
        except FileNotFoundError:
            return (0, 0), False
        copies = _decode(data[:PLACE_BYTES]), _decode(data[PLACE_BYTES:])
        if not any(copies):
            raise CoordinationError(
                f"the epoch file is damaged: {data[:60]!r}",
                where=str(self._file),
                hint="restore it from a backup; only if this group has never had peers, delete it",
            )
        return copies, len(data) == 2 * PLACE_BYTES

    def _overwrite(self, copies: tuple[int, int], epoch: int) -> None:
        lower = 0 if copies[0] < copies[1] else 1
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CLOEXEC)
        try:
            for copy, place in (("first", lower), ("second", 1 - lower)):
                self._step(f"write {copy}")
                _write_all(descriptor, _encode(epoch), place * PLACE_BYTES)
                self._step(f"sync {copy}")
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _create(self, epoch: int) -> None:
        """Make the file, or replace one of only one copy, with both and all their blocks."""
        self._step("create")
        descriptor = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            _write_all(descriptor, _encode(epoch) * 2, 0)
            self._step("sync file")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._step("rename")
        self._temporary.replace(self._file)
        self._step("sync folder")
        folder = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _encode(epoch: int) -> bytes:
    """One copy, with its padding."""
    return _line(epoch).ljust(PLACE_BYTES)


def _line(epoch: int) -> bytes:
    text = f"{_MAGIC} {epoch}"
    return f"{text} {zlib.crc32(text.encode()):08x}\n".encode()


def _decode(copy: bytes) -> int:
    """The epoch of a copy (its padding may be missing); 0 if it is not whole."""
    line, _, padding = copy.partition(b"\n")
    fields = line.decode("ascii", errors="replace").split(" ")
    if len(fields) != 3 or fields[0] != _MAGIC or not fields[1].isdigit() or len(line) > 100:
        return 0
    epoch = int(fields[1])
    good = 1 <= epoch <= EPOCH_MAX and copy.startswith(_line(epoch)) and not padding.strip(b" ")
    return epoch if good else 0


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
