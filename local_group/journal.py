"""Who wrote what, on disk: an append-only file that outlives the gateway.

Without it a restarted gateway would know from listings THAT a block is here, not whether its own
engines computed it or which peer it came from; then the hop limit and purging by origin both fail.

    record: length u32 | crc32 u32 | body;  body: version u8 | size u64 | hops u16 | epoch u64 |
            origin length u8 | name u64 | fingerprint 16 B | digest 16 B | origin

Version 1 had the key behind the origin, and its length (u16) instead of the name. A block of size 0 has no
digest: it is known, and not what it should contain. A record cut short by a crash ends the replay; what came
before it stands.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import zlib
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from local_group.errors import MoonmeshError
from local_group.names import name_of

_VERSION = 2
_FRAME = struct.Struct("<II")
_BODY = struct.Struct("<BQHQBQ16s16s")
_BODY_1 = struct.Struct("<BQHQBH16s16s")
_RECORD_BYTES_MAX = _BODY.size + 255 + 65535
FILE_NAME = "provenance.log"


class JournalError(MoonmeshError):
    """The journal cannot be read or written; blocks from peers are not admitted without it."""

    code = "MM204"


class Entry(NamedTuple):
    """One attributed block, as in `local_group.holdings.Held`."""

    fingerprint: bytes
    name: int
    """See `local_group.names`."""
    size: int
    digest: bytes
    origin: str
    epoch: int
    hops: int


def encode(entry: Entry) -> bytes:
    """One record."""
    origin = entry.origin.encode()
    head = (_VERSION, entry.size, entry.hops, entry.epoch, len(origin), entry.name)
    body = _BODY.pack(*head, entry.fingerprint, entry.digest) + origin
    return _FRAME.pack(len(body), zlib.crc32(body)) + body


def decode(file: BinaryIO) -> Generator[Entry, None, bool]:
    """The records of a file, up to the first that is cut short or damaged.

    Returns:
        Whether that is all that was ever written, but for an append that a crash cut short.
    """
    while len(frame := file.read(_FRAME.size)) == _FRAME.size:
        length, crc = _FRAME.unpack(frame)
        if not _BODY_1.size <= length <= _RECORD_BYTES_MAX:
            return False
        body = file.read(length)
        if len(body) != length:
            return True
        entry = _entry(body) if zlib.crc32(body) == crc else None
        if entry is None:
            return False
        yield entry
    return True


def _entry(body: bytes) -> Entry | None:
    if body[0] == 1:
        _, size, hops, epoch, n_origin, n_key, fingerprint, digest = _BODY_1.unpack_from(body)
        at = _BODY_1.size + n_origin
        if at + n_key != len(body):
            return None
        name = name_of(fingerprint, body[at:].decode(errors="surrogateescape"))
    elif body[0] == _VERSION and len(body) >= _BODY.size:
        _, size, hops, epoch, n_origin, name, fingerprint, digest = _BODY.unpack_from(body)
        at = _BODY.size + n_origin
        if at != len(body):
            return None
    else:
        return None
    origin = body[at - n_origin : at].decode()
    return Entry(fingerprint, name, size, digest if size else b"", origin, epoch, hops)


class Journal:
    """The file, open for appending. Safe to call from several threads; calls block on the disk.

    Args:
        directory: where `provenance.log` is kept; made if missing.
        bytes_max: at this size the file has to be rewritten before more is appended.
    """

    def __init__(self, directory: Path, bytes_max: int) -> None:
        self._path = directory / FILE_NAME
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._file: BinaryIO | None = None
        self._fresh: BinaryIO | None = None
        self._size = 0
        self.lost = False
        """`load` found no file, or a damaged one: not all that was recorded is known."""

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._size

    def load(self) -> Iterator[Entry]:
        """What was recorded before, oldest first; later entries for a key replace earlier ones.

        Raises:
            JournalError: if the file is there and cannot be read.
        """
        try:
            with self._path.open("rb") as file:
                self.lost = not (yield from decode(file))
        except FileNotFoundError:
            self.lost = True
        except OSError as error:
            raise JournalError(
                f"cannot read the journal: {error.strerror}", where=str(self._path)
            ) from error

    def rewrite(self, entries: Iterable[Entry]) -> None:
        """Replaces the file by one that holds just `entries`, atomically, and opens it.

        Raises:
            JournalError: if the disk refuses; the old file stands.
        """
        self.begin_anew()
        self.write_anew(entries)
        self.end_anew()

    def begin_anew(self) -> None:
        """The first of three steps of `rewrite`; until the last one the old file stands, and is appended to
        by nobody.

        Raises:
            JournalError: if the disk refuses.
        """
        with self._lock, self._explained("rewrite"):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._fresh is not None:
                self._fresh.close()
            self._fresh = _open_private(self._path.with_suffix(".new"))

    def write_anew(self, entries: Iterable[Entry]) -> None:
        """Adds to the new file, after `begin_anew`.

        Raises:
            JournalError: if the disk refuses.
        """
        with self._lock, self._explained("rewrite"):
            assert self._fresh is not None
            self._fresh.writelines(map(encode, entries))

    def end_anew(self) -> None:
        """Puts the new file in the place of the old one.

        Raises:
            JournalError: if the disk refuses.
        """
        with self._lock, self._explained("rewrite"):
            assert self._fresh is not None
            fresh, self._fresh = self._fresh, None
            with fresh:
                fresh.flush()
                os.fsync(fresh.fileno())
            os.replace(self._path.with_suffix(".new"), self._path)
            directory = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
            if self._file is not None:
                self._file.close()
            self._file = self._path.open("ab", buffering=0)
            self._size = self._path.stat().st_size

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise JournalError(
                f"cannot {what} the journal: {error.strerror}",
                where=str(self._path),
                hint="free space or fix the permissions of data_dir",
            ) from error

    def has_room(self, entries: Iterable[Entry]) -> bool:
        """Whether `append` would take these; if not, `rewrite` may make room."""
        return self._size + sum(len(encode(entry)) for entry in entries) <= self._bytes_max

    def append(self, entries: Iterable[Entry], *, durable: bool) -> None:
        """Adds records in one write.

        Args:
            entries: what to record.
            durable: also wait until the disk has them. Foreign blocks need that before they are
                admitted; a lost report of an own block only makes it unexported.

        Raises:
            JournalError: if the disk refuses or the limit is reached; nothing is recorded then.
        """
        data = b"".join(encode(entry) for entry in entries)
        with self._lock:
            if self._file is None:
                raise JournalError("the journal is not open", where=str(self._path))
            if self._size + len(data) > self._bytes_max:
                raise JournalError(
                    f"the journal has reached its limit of {self._bytes_max} bytes",
                    where=str(self._path),
                    hint="raise limits.journal_bytes_max, or wait for it to be compacted",
                )
            try:
                written = self._file.write(data)
                if written != len(data):
                    os.ftruncate(self._file.fileno(), self._size)
                    raise OSError(28, "the disk took only a part")
                if durable:
                    os.fdatasync(self._file.fileno())
            except OSError as error:
                raise JournalError(
                    f"cannot append to the journal: {error.strerror}", where=str(self._path)
                ) from error
            self._size += len(data)

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None


def _open_private(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
