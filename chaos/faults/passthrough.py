"""A folder shown at another place, where writes can fail: `python -m chaos.faults.passthrough FROM AT`.

Needs root or a usable /dev/fuse, libfuse, and the package mfusepy.

stdin: a line a change, `{"failing": true|false}`. stdout: `ready`, then before the `ok` of each change how
many writes and syncs have failed so far: `{"failed": n}`.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

MOUNT_S = 10.0


class Passthrough:
    """Passes on what the kernel asks for; its methods have the names and arguments of FUSE's operations."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.failing = False
        self.failed = 0

    def _at(self, path: str) -> str:
        return self._source + path

    def _check(self) -> None:
        if self.failing:
            self.failed += 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        found = os.lstat(self._at(path))
        names = ("atime", "ctime", "gid", "mode", "mtime", "nlink", "size", "uid")
        return {f"st_{name}": getattr(found, f"st_{name}") for name in names}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *os.listdir(self._at(path))]

    def open(self, path: str, flags: int) -> int:
        return os.open(self._at(path), flags & ~os.O_APPEND)

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        self._check()
        return os.open(self._at(path), os.O_RDWR | os.O_CREAT, mode)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self._check()
        return os.pwrite(fh, data, offset)

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        self._check()
        os.fsync(fh)
        return 0

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        self._check()
        os.truncate(self._at(path), length)
        return 0

    def unlink(self, path: str) -> int:
        os.unlink(self._at(path))
        return 0

    def rename(self, old: str, new: str) -> int:
        self._check()
        os.rename(self._at(old), self._at(new))
        return 0

    def mkdir(self, path: str, mode: int) -> int:
        self._check()
        os.mkdir(self._at(path), mode)
        return 0

    def chmod(self, path: str, mode: int) -> int:
        os.chmod(self._at(path), mode)
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self._at(path))
        names = ("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_files", "f_frsize", "f_namemax")
        return {name: getattr(found, name) for name in names}


def why_not() -> str | None:
    """Why there can be none here, with what to do about it; None if there can."""
    try:
        importlib.import_module("mfusepy")
    except (ImportError, OSError) as error:
        return f"it needs FUSE: {error} (pip install mfusepy; apt-get install fuse3)"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "it needs FUSE: /dev/fuse cannot be opened"
    return None


def _mount(operations: Passthrough, source: str, at: str) -> threading.Thread:
    mfusepy: Any = importlib.import_module("mfusepy")  # no types, and not everywhere
    kind: Any = type("Operations", (mfusepy.Operations,), {})
    asked = kind()
    for name in dir(operations):
        if not name.startswith("_") and callable(getattr(operations, name)):
            setattr(asked, name, getattr(operations, name))
    thread = threading.Thread(
        target=mfusepy.FUSE,
        args=(asked, at),
        kwargs={"foreground": True, "nothreads": True, "direct_io": True},
        daemon=True,
    )
    before = os.stat(at).st_dev
    thread.start()
    end = time.monotonic() + MOUNT_S
    while os.stat(at).st_dev == before:
        if time.monotonic() > end or not thread.is_alive():
            raise SystemExit(f"{at} could not be mounted")
        time.sleep(0.02)
    return thread


def main(source: str, at: str) -> None:
    """Serves until the end of stdin. Who has started it unmounts what is left."""
    operations = Passthrough(str(Path(source).absolute()))
    _mount(operations, source, at)
    print("ready", flush=True)
    for line in sys.stdin:
        operations.failing = bool(json.loads(line)["failing"])
        print(json.dumps({"failed": operations.failed}), flush=True)
        print("ok", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
