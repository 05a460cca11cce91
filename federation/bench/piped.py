"""Child processes that are spoken to over stdin and stdout: started, ended, and their last words."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from local_group.child import own_group

LINE_BYTES = 64 * 1024
"""Longest line that is read from one that names no other."""


async def start_piped(
    command: Sequence[str], log: Path, *, line_bytes: int = LINE_BYTES
) -> asyncio.subprocess.Process:
    """Starts a command with pipes to its stdin and stdout; its stderr goes to the end of `log`.

    It has a process group of its own: a terminal's ^C is for us alone, who then end it.

    Raises:
        OSError: it cannot be started.
    """
    stderr = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            limit=line_bytes,
            **own_group(),
        )
    finally:
        os.close(stderr)


async def kill_piped(process: asyncio.subprocess.Process) -> None:
    """Makes sure that it, and what it started in its group, are gone."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def last_lines(path: Path, count: int = 12) -> str:
    """The end of a log, indented; empty where it cannot be read."""
    try:
        lines = path.read_text(errors="replace").splitlines()[-count:]
    except OSError:
        return ""
    return "\n".join(f"  {line}" for line in lines)
