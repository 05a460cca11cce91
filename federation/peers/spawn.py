"""Starting the serving process. Imports little: it is started before the gateway has loaded the rest."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from federation.config import GroupFile
from local_group.logs import rotate
from local_group.processes import bound_to_us
from local_group.state import CHILD_VARIABLE, DATA_DIR_VARIABLE

CHILD_NAME = "serving"
LOG_BYTES = 16 << 20
"""A larger log is moved to `serving.log.1`."""
PROGRAM = (sys.executable, "-m", "federation.serving")


class Spawned(NamedTuple):
    """A serving process, and our end of the channel to it: it closes when the process ends."""

    process: subprocess.Popen[bytes]
    end: socket.socket
    at: float
    """Monotonic seconds."""


def log_file(config: GroupFile) -> Path:
    """Where the serving process logs."""
    return config.log_dir / f"{CHILD_NAME}.log"


def spawn(config: GroupFile, path: Path, program: Sequence[str] = PROGRAM) -> Spawned:
    """Starts a serving process, in our process group and no longer alive than us.

    Call it from the main thread: the kernel binds the child to the thread that starts it.

    Args:
        path: the group's group.toml.

    Raises:
        OSError: it cannot be started.
    """
    log = log_file(config)
    rotate(log, LOG_BYTES)
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                process = subprocess.Popen(
                    bound_to_us(
                        (*program, "-c", str(path.absolute()), "--channel", str(theirs.fileno()))
                    ),
                    stdin=subprocess.DEVNULL,
                    stdout=descriptor,
                    stderr=descriptor,
                    pass_fds=(theirs.fileno(),),
                    env={
                        **os.environ,
                        DATA_DIR_VARIABLE: str(config.data_dir),
                        CHILD_VARIABLE: CHILD_NAME,
                    },
                )
            finally:
                os.close(descriptor)
        except OSError:
            ours.close()
            raise
    return Spawned(process, ours, time.monotonic())
