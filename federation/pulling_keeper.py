"""The keeper of staging: a small process that has its memory mapped for writing, and from which pulling
processes are forked.

Staging is sealed against new writable mappings, so that no engine can make one: neither can a process
that is started later. One that is forked has the mapping of its parent. The gateway cannot be that parent
(gRPC, Mooncake and numpy have threads and locks that a fork does not carry over), so this one is: it loads
nothing but Python's own modules, has one thread, and does nothing else.

python -m federation.pulling_keeper CHANNEL MEMORY    (descriptors; see federation/peers/keeper.py)
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import socket
import struct
import sys

ASK = struct.Struct("=cq")
FORK, END = b"F", b"E"
"""With the worker's end of its channel beside it; with the pid of one that is to end, and be forgotten."""
ANSWER = struct.Struct("=q")
_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Runs the keeper until its gateway is gone; the exit code."""
    channel, memory = map(int, sys.argv[1:])
    # Whoever ends the gateway's process group ends the gateway: we go with it, after its last pull.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    gateway = socket.socket(fileno=channel)
    staging = mmap.mmap(memory, os.fstat(memory).st_size)
    os.close(memory)
    gateway.send(ANSWER.pack(0))  # from here on it may be sealed
    own = os.getpid()
    while True:
        asked, descriptors, *_ = socket.recv_fds(gateway, ASK.size, 1)
        if len(asked) < ASK.size:
            return 0
        what, pid = ASK.unpack(asked)
        if what == END:
            # Our own child, not yet waited for: no other process has this pid.
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        elif descriptors:
            pid = os.fork()
            if pid == 0:
                gateway.close()
                _work(own, descriptors[0], staging)
            os.close(descriptors[0])
        gateway.send(ANSWER.pack(pid))


def _work(keeper: int, channel: int, staging: mmap.mmap) -> None:
    """The rest of a pulling process's life."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == keeper:
            from federation.pulling import run

            code = run(channel, staging)
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
