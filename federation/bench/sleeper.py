"""A process that sleeps in short steps and notes how late it is woken, into memory that it shares.

Run as a file of its own, with the standard library alone: it has no thread, no lock and no work that
could delay it, so that what it notes is the machine's doing. `delay.MachineDelay` starts it.

The memory: count of notes (u64), when the wait that is under way is due to end, and the longest delay
(both f64); then a ring of notes, (due, woken). Times are seconds of the monotonic clock.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct
import sys
import time

STEP_S = 0.002
NOTED_S = 0.001
"""Shorter delays are not noted."""
KEPT = 8192
"""Notes: at least 24 s, where every single wake-up is late."""
COUNT = struct.Struct("=Q")
TIME = struct.Struct("=d")
NOTE = struct.Struct("=dd")
DUE_AT, WORST_AT, NOTES_AT = 8, 16, 32
MEMORY_BYTES = NOTES_AT + KEPT * NOTE.size
PR_SET_PDEATHSIG = 1


def main() -> None:
    """Sleep until killed: arguments are the memory's descriptor and the parent's pid."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[2]):
        return
    memory = mmap.mmap(int(sys.argv[1]), MEMORY_BYTES)
    count = 0
    while True:
        due = time.monotonic() + STEP_S
        TIME.pack_into(memory, DUE_AT, due)
        time.sleep(STEP_S)
        woken = time.monotonic()
        if woken - due > NOTED_S:
            NOTE.pack_into(memory, NOTES_AT + count % KEPT * NOTE.size, due, woken)
            count += 1
            COUNT.pack_into(memory, 0, count)
            # Read back, not kept: who measures may set it to 0.
            if woken - due > TIME.unpack_from(memory, WORST_AT)[0]:
                TIME.pack_into(memory, WORST_AT, woken - due)


if __name__ == "__main__":
    main()
