"""Coordination of a group with gateways on one host: a lock, an epoch and a configuration in files."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import json
import math
import os
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

from local_group.coordination.base import (
    ASK_SECONDS,
    KEYS_MAX,
    Changed,
    Coordination,
    Leader,
    Listed,
    Term,
    check_entry,
    check_valid,
)
from local_group.coordination.file import FileCoordination
from local_group.coordination.lease import Lease, clock
from local_group.coordination.watchers import Watchers
from local_group.process_errors import CoordinationError, Fenced

FILE_BYTES_MAX = 64 << 20


class FileBackend(Coordination):
    """Who has the lock leads, until its process ends: nobody can lead beside one that is frozen.

    The configuration is changed, and can be watched, in the leader's process alone; others read it.

    Args:
        directory: on a local file system; made if missing.
    """

    def __init__(self, directory: Path, member: str, address: str) -> None:
        super().__init__(member, address)
        self._directory = directory
        self._epochs = FileCoordination(directory)
        self._config = directory / "config"
        self._lock = -1
        self._term: Term | None = None
        self._values: dict[str, bytes] = {}
        self._writing = asyncio.Lock()
        self._watchers = Watchers(lambda: self._values)

    async def start(self) -> None:
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _unusable(self._directory, error) from error
        self._values = await asyncio.to_thread(self._read)

    async def close(self) -> None:
        self._release()

    async def campaign(self, floor: int = 0) -> Term:
        if self._lock >= 0:
            raise CoordinationError(f"{self.member} leads already", where=str(self._directory))
        while True:
            descriptor = self._try_lock(fcntl.LOCK_EX)
            if descriptor >= 0:
                break
            await asyncio.sleep(ASK_SECONDS)
        self._lock = descriptor
        try:
            self._values = await asyncio.to_thread(self._read)
            self._watchers.replaced()
            return await self._begin(floor)
        except BaseException:
            self._release()
            raise

    async def above(self, term: Term, floor: int) -> Term:
        self._check(term)
        term.end()
        try:
            return await self._begin(floor)
        except BaseException:
            self._release()  # or nobody could lead, this one included
            raise

    async def resign(self, term: Term) -> None:
        if term is self._term:
            self._release()
        term.end()

    async def leader(self) -> Leader | None:
        free = self._try_lock(fcntl.LOCK_SH)
        if free >= 0:
            os.close(free)
            return None
        try:
            content = json.loads((self._directory / "leader").read_bytes())
            return Leader(content["member"], content["address"], content["epoch"])
        except (OSError, ValueError, KeyError, TypeError):
            return None  # it has only just begun

    async def get(self, key: str) -> bytes | None:
        check_entry(key)
        if self._lock < 0:
            self._values = await asyncio.to_thread(self._read)
        return self._values.get(key)

    async def put(self, key: str, value: bytes, term: Term) -> None:
        check_entry(key, value)
        async with self._writing:
            self._check(term)
            if key not in self._values and len(self._values) >= KEYS_MAX:
                raise CoordinationError(f"{KEYS_MAX} keys are all there can be", where=key)
            values = {**self._values, key: value}
            # Not abandoned when cancelled: what is on the disk and what is known stay the same.
            await asyncio.shield(self._store(values, key))

    def watch(self, prefix: str) -> AsyncIterator[Listed | Changed]:
        return self._watchers.watch(prefix)

    def _check(self, term: Term) -> None:
        check_valid(term)
        if self._term is None or term.epoch != self._term.epoch:
            raise Fenced(f"epoch {term.epoch} is not the one that leads")

    async def _begin(self, floor: int) -> Term:
        epoch = await asyncio.to_thread(self._epochs.above, floor)
        content = {"member": self.member, "address": self.address, "epoch": epoch}
        with contextlib.suppress(
            CoordinationError
        ):  # a full disk must not keep a leader from leading
            await asyncio.to_thread(self._replace, "leader", json.dumps(content).encode())
        self._term = Term(epoch, epoch, Lease(math.inf, clock()))
        return self._term

    async def _store(self, values: dict[str, bytes], key: str) -> None:
        text = json.dumps({k: base64.b64encode(v).decode() for k, v in values.items()})
        line = f"{zlib.crc32(text.encode()):08x} {text}\n"
        await asyncio.to_thread(self._replace, "config", line.encode())
        self._values = values
        self._watchers.changed(key, values[key])

    def _release(self) -> None:
        if self._term is not None:
            self._term.end()
            self._term = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _try_lock(self, kind: int) -> int:
        """A descriptor with the lock; -1 if another has it."""
        try:
            path = self._directory / "leading"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(self._directory, error) from error
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return -1
        return descriptor

    def _read(self) -> dict[str, bytes]:
        try:
            with self._config.open("rb") as file:
                data = file.read(FILE_BYTES_MAX)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise _unusable(self._config, error) from error
        check, _, text = data.partition(b" ")
        text = text.removesuffix(b"\n")
        try:
            if int(check, 16) != zlib.crc32(text):
                raise ValueError("its checksum is wrong")
            return {k: base64.b64decode(v) for k, v in json.loads(text).items()}
        except (ValueError, AttributeError, TypeError) as error:
            raise CoordinationError(
                f"the group's small configuration is damaged: {error}",
                where=str(self._config),
                hint="restore it from a backup, or delete it: it is then empty",
            ) from error

    def _replace(self, name: str, data: bytes) -> None:
        """A whole new content, on the disk when this returns."""
        path, temporary = self._directory / name, self._directory / f"{name}.tmp"
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            folder = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise _unusable(path, error) from error


def _unusable(path: Path, error: OSError) -> CoordinationError:
    return CoordinationError(
        f"cannot be used: {error.strerror}",
        where=str(path),
        hint="check the disk, its free space and the folder's permissions",
    )
