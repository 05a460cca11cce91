"""The wall clock of a group's processes, which can be set: a small library, loaded before the C library.

It is made where it is used, of `clock.c`, by the host's C compiler. (libfaketime's `clock_nanosleep` refuses
what Python's `time.sleep` asks for, where the monotonic clock is left alone.)
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

from chaos.errors import ChaosError

SOURCE = Path(__file__).with_name("clock.c")
LIBRARY = "clock.so"
COMPILE_S = 30.0


def compiler() -> str | None:
    """The host's, if it has one."""
    return shutil.which("cc")


def why_not() -> str | None:
    """Why there can be none here, with what to do about it; None if there can."""
    if compiler() is None:
        return "a clock that can be set needs a C compiler (apt-get install gcc libc6-dev)"
    return None


def make(folder: Path) -> Path:
    """The library, in a folder.

    Raises:
        ChaosError: it cannot be made.
    """
    library = folder / LIBRARY
    if not library.exists():
        done = subprocess.run(
            [compiler() or "cc", "-O2", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"],
            capture_output=True,
            text=True,
            timeout=COMPILE_S,
        )
        if done.returncode != 0:
            raise ChaosError(f"a clock that can be set cannot be made: {done.stderr[:300]}")
    return library


def environment(library: Path, file: Path) -> dict[str, str]:
    """Of processes whose clock is to be as far ahead as a file says."""
    return {"LD_PRELOAD": str(library), "MOONMESH_CHAOS_CLOCK": str(file)}


def put(file: Path, seconds: float) -> None:
    """How far the clock is ahead from now on, in all processes that look at this file."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, struct.pack("=q", round(seconds)), 0)
    finally:
        os.close(descriptor)
