"""File systems of a group's own, that can be full. They need root."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from chaos.errors import ChaosError

DISK_BYTES = 96 * 1024 * 1024
"""Of a group's own disk: its logs, spans, journal and coordination."""
FILLER = "filler"
CHUNK = 1 << 16
_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


def mount(place: Path) -> None:
    """A small file system of its own at a folder, which is made.

    Raises:
        ChaosError: it cannot be had.
    """
    place.mkdir()
    _mount(place, f"size={DISK_BYTES},mode=0700")


def why_not() -> str | None:
    """Why there can be none here; None if there can."""
    if os.geteuid() != 0:
        return "a file system of a group's own needs root"
    return None


def keep(place: Path) -> None:
    """Puts a plain folder in place of a file system, with the same files: they are looked into later."""
    copy = place.with_name(place.name + "-kept")
    shutil.copytree(place, copy, symlinks=True, ignore=_but_files, dirs_exist_ok=True)
    unmount_below(place.parent)
    place.rmdir()
    copy.rename(place)


def _but_files(folder: str, names: list[str]) -> list[str]:
    """What is neither file nor folder: sockets cannot be copied. And the filler."""
    paths = {name: Path(folder, name) for name in names}
    return [n for n, p in paths.items() if n == FILLER or not (p.is_file() or p.is_dir())]


def unmount_below(folder: Path) -> None:
    """Takes away whatever is mounted in a folder: what is still open goes with its last user."""
    for place in sorted(_mounted_below(folder), reverse=True):
        _libc.umount2(os.fsencode(place), _MNT_DETACH)


def _mounted_below(folder: Path) -> Iterable[str]:
    start = f"{folder}/"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        place = line.split(" ")[1]
        if place.startswith(start):
            yield place


def _mount(place: Path, options: str) -> None:
    done = _libc.mount(
        b"moonmesh-chaos",
        os.fsencode(place),
        b"tmpfs",
        ctypes.c_ulong(0),
        options.encode(),
    )
    if done != 0:
        code = ctypes.get_errno()
        raise ChaosError(f"a file system cannot be made: {os.strerror(code)}", where=str(place))


def fill(place: Path) -> int:
    """Writes until the disk is full; bytes that were written."""
    written = 0
    chunk = bytes(CHUNK)
    with open(place / FILLER, "ab", buffering=0) as file:
        while len(chunk):
            try:
                written += file.write(chunk)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                chunk = chunk[: len(chunk) // 2]
    return written


def empty(place: Path) -> None:
    """Gives back what `fill` took."""
    with contextlib.suppress(FileNotFoundError):
        (place / FILLER).unlink()
