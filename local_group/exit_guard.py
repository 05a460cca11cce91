"""Lets the interpreter exit while a call is still inside Mooncake.

Mooncake's library closes its clients in handlers that the C library runs at exit. With a call
inside, on a thread that nobody can stop, that is a segmentation fault (measured). So, when there is
such a call, the process leaves before those handlers: `_exit` itself is registered with `on_exit`,
which passes it the exit status, and runs before all handlers registered earlier. Python has then
flushed its files and run its own exit handlers. An exit with no call inside is not changed.
"""

from __future__ import annotations

import atexit
import ctypes
import weakref

from local_group.calls import Tally

_tallies: weakref.WeakSet[Tally] = weakref.WeakSet()


def watch(tally: Tally) -> None:
    """Has the calls of this tally looked at when the interpreter exits."""
    if not _tallies:
        atexit.register(_at_exit)
    _tallies.add(tally)


def _at_exit() -> None:
    inside = False
    for tally in list(_tallies):
        with tally.lock:
            tally.closed = True  # no call may enter after this look
            inside = inside or bool(tally.active or tally.running)
    if inside:
        libc = ctypes.CDLL(None)
        libc.on_exit(libc._exit, None)
