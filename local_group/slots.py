"""A small record that can be replaced on a full disk: a file of fixed size, overwritten in place."""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path

_HEADER_BYTES = 64


class SlotFile:
    """Two places in one file; each record goes to the one that has not the newest.

    So a reader always finds a whole record, in the midst of a write too, and a write needs no new
    block of the disk: all are taken when the file is made. (A file system that copies on write may
    need some even so.)

    Args:
        path: the file; made by the first `write`.
        slot_bytes: of one place; a record may have 64 less.
        durable: records are on disk when `write` returns. Without it they are for other processes, not for
            after a crash.
    """

    def __init__(self, path: Path, slot_bytes: int, *, durable: bool = False) -> None:
        self._path = path
        self._slot_bytes = slot_bytes
        self._durable = durable

    def read(self) -> bytes | None:
        """The newest record; None where there is none that is whole.

        Raises:
            OSError: the file cannot be opened, and is there.
        """
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            return self._newest(file.read(2 * self._slot_bytes))[1]
        return None

    def write(self, record: bytes) -> None:
        """Replace the record.

        Raises:
            OSError: it cannot be written; the old one stays.
            ValueError: it is too long.
        """
        if len(record) > self._slot_bytes - _HEADER_BYTES:
            raise ValueError(f"a record of {len(record)} bytes does not fit")
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            descriptor = self._make()
        try:
            data = os.pread(descriptor, 2 * self._slot_bytes, 0)
            if len(data) != 2 * self._slot_bytes:  # not ours, or cut
                os.close(descriptor)
                descriptor = self._make()
            number, _, place = self._newest(data)
            _write_all(descriptor, _encode(number + 1, record), (1 - place) * self._slot_bytes)
            if self._durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _make(self) -> int:
        """A descriptor of a new file that has all its blocks."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = self._path.with_name(self._path.name + ".tmp")
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write_all(descriptor, b" " * (2 * self._slot_bytes), 0)
            os.fsync(descriptor)  # only now are the blocks surely ours
            temporary.replace(self._path)
            if self._durable:
                _sync_folder(self._path.parent)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _newest(self, data: bytes) -> tuple[int, bytes | None, int]:
        """(its number, the record, its place) of the newest whole record; (0, None, 1) if none."""
        best: tuple[int, bytes | None, int] = (0, None, 1)
        for place in (0, 1):
            found = _decode(data[place * self._slot_bytes : (place + 1) * self._slot_bytes])
            if found is not None and found[0] > best[0]:
                best = (*found, place)
        return best


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _encode(number: int, record: bytes) -> bytes:
    crc = zlib.crc32(b"%d %b" % (number, record))
    return (b"%d %d %08x\n" % (number, len(record), crc)).ljust(_HEADER_BYTES) + record


def _decode(slot: bytes) -> tuple[int, bytes] | None:
    fields = slot[:_HEADER_BYTES].split()
    if len(fields) != 3 or not (fields[0].isdigit() and fields[1].isdigit()):
        return None
    number, length = int(fields[0]), int(fields[1])
    record = slot[_HEADER_BYTES : _HEADER_BYTES + length]
    whole = slot[: _HEADER_BYTES + length]
    return (number, record) if whole == _encode(number, record) else None


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
