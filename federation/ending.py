"""How a process of ours ends: its tasks for sure, and itself by a deadline, whatever clings.

A call into Mooncake, a full disk or a task that takes no word of its cancellation could hold an end up for
ever; whoever waits for the next gateway would wait for that.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import sys
import threading
from collections.abc import Iterable
from typing import Any, Final

log = logging.getLogger("moonmesh.ending")

AGAIN_SECONDS: Final = 0.5
"""After which a task that goes on although it was cancelled is cancelled again."""
AGAIN_MAX: Final = 4
"""Times; what goes on then is left behind."""
ENDING_SECONDS: Final = 8.0
"""For a process to end from when it is to; `up` would kill it two seconds later, without a word."""
EX_HUNG: Final = 70
"""Exit code of one that did not (EX_SOFTWARE of sysexits.h)."""


async def ended(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels tasks and waits until all have ended; what they ended with is not looked at.

    A cancellation can be lost: where one part of a task is ended from elsewhere in the same moment
    (`federation.interruptible`), and before Python 3.12 in `asyncio.wait_for`. So it is said again.
    """
    left = set(tasks)
    for task in left:
        task.cancel()
    for _ in range(AGAIN_MAX):
        if not left:
            return
        done, left = await asyncio.wait(left, timeout=AGAIN_SECONDS)
        for task in done:
            if not task.cancelled():
                task.exception()  # it is known: nobody has to be told when the task is forgotten
        for task in left:
            log.warning("it goes on although it was cancelled: %s", task)
            task.cancel()


def end_by_deadline(seconds: float = ENDING_SECONDS) -> None:
    """From now on this process has so long to end; then it does, and all stacks are in its log."""
    timer = threading.Timer(seconds, _leave, [seconds])
    timer.daemon = True
    timer.name = "ending"
    timer.start()


def _leave(seconds: float) -> None:
    try:
        log.critical("this process has not ended within %g s; what its threads are at:", seconds)
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
    finally:
        os._exit(EX_HUNG)
