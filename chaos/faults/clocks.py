"""The wall clock of a group's processes, which can be set: libfaketime, loaded before the C library.

The monotonic clock goes on as it is: it does not jump on a real host either.
"""

from __future__ import annotations

from pathlib import Path

LIBRARY = "faketime/libfaketimeMT.so.1"
PLACES = ("/usr/lib", "/usr/local/lib", "/usr/lib64")
LOOKS_S = 1
"""How often a process looks at what time it is to believe in."""


def library() -> Path | None:
    """Where it is installed, if it is."""
    for place in map(Path, PLACES):
        for found in (place / LIBRARY, *sorted(place.glob(f"*/{LIBRARY}"))):
            if found.is_file():
                return found
    return None


def why_not() -> str | None:
    """Why there can be none here, with what to do about it; None if there can."""
    if library() is None:
        return "a clock that can be set needs libfaketime (apt-get install faketime)"
    return None


def environment(file: Path) -> dict[str, str]:
    """Of processes whose clock is to be what `put` writes to a file."""
    return {
        "LD_PRELOAD": str(library()),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_CACHE_DURATION": str(LOOKS_S),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_RESET": "1",
        "NO_FAKE_STAT": "1",
    }


def put(file: Path, seconds: float) -> None:
    """How far the clock is ahead from now on; whole or not at all."""
    fresh = file.with_suffix(".tmp")
    fresh.write_text(f"{seconds:+.0f}\n")
    fresh.replace(file)
