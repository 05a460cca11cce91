"""The logs of a group's processes: kept small, and quoted where a process has failed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from itertools import takewhile
from pathlib import Path

LOG_TAIL_LINES = 8
ERROR_LINES_MAX = 30
"""Of a tail that has an error: it may list many problems."""

_ERROR = re.compile(r"error MM\d{3}: ")


def how_it_ended(code: int) -> str:
    """`exited with code 3`, or `was killed by SIGKILL`."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def log_size(path: Path) -> int:
    """Bytes of a log; 0 where there is none."""
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def log_tail(path: Path, lines: int = LOG_TAIL_LINES, since: int = 0) -> str:
    """The last lines of a log, of what comes after byte `since`; "" where there is none.

    From an error of ours on, which is the reason of what follows, there may be more of them.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if since > size:  # it was cut meanwhile
                since = 0
            file.seek(max(since, size - 8192))
            found = file.read(8192).decode(errors="replace").splitlines()
    except OSError:
        return ""
    errors = [index for index, line in enumerate(found) if _ERROR.match(line)]
    first = min(len(found) - lines, errors[-1] if errors else len(found))
    return "\n".join(line[:500] for line in found[max(0, first) :][:ERROR_LINES_MAX])


def own_error(tail: str) -> str:
    """The error of ours that a process has ended with, in one line; "" where there is none."""
    found = tail.splitlines()
    starts = [index for index, line in enumerate(found) if _ERROR.match(line)]
    if not starts:
        return ""
    first, *more = found[starts[-1] :]
    rest = takewhile(lambda line: line.startswith("  "), more)
    return "; ".join([first, *(line.strip() for line in rest)])


def told(log: Path, tail: str) -> str:
    """A log's last lines as an error's hint."""
    if not tail:
        return f"its log {log} is empty"
    return f"the last lines of {log}:\n" + "\n".join(f"    {line}" for line in tail.splitlines())


def rotate(log: Path, max_bytes: int) -> None:
    """Move a log that is too large out of the way, before it is opened."""
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > max_bytes:
            log.replace(log.with_suffix(".log.1"))


def truncate(log: Path, max_bytes: int) -> None:
    """Cut a log that is too large while a child writes it, keeping its last `max_bytes`.

    The child appends (O_APPEND), so it goes on at the new end; lines written during the copy can be
    lost, which a log may.
    """
    with contextlib.suppress(OSError), log.open("r+b") as file:
        if file.seek(0, os.SEEK_END) <= max_bytes:
            return
        file.seek(-max_bytes, os.SEEK_END)
        kept = log.with_suffix(".log.1")
        with kept.open("wb") as copy:
            kept.chmod(0o600)
            while chunk := file.read(1 << 20):
                copy.write(chunk)
        file.truncate(0)
