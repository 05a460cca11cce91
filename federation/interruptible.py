"""A part of a task that another one can end, and the task goes on after it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator


class Interruptible:
    """A part of a task that can be ended from elsewhere, in order: as if nothing more came."""

    def __init__(self, task: asyncio.Task[object]) -> None:
        self.task = task
        self.interrupted = False
        self.over = False

    def interrupt(self) -> None:
        """Ends it, at whatever it waits."""
        if not (self.over or self.interrupted):
            self.interrupted = True
            self.task.cancel()


@contextlib.contextmanager
def interruptible() -> Iterator[Interruptible]:
    """The part."""
    task = asyncio.current_task()
    assert task is not None, "called in a task"
    part = Interruptible(task)
    before = 0
    if sys.version_info >= (3, 11):
        before = task.cancelling()
    try:
        yield part
    except asyncio.CancelledError:
        if not part.interrupted:
            raise
        if sys.version_info >= (3, 11) and task.uncancel() > before:
            raise  # the whole task was cancelled in the same moment: it hears of both at once
    finally:
        part.over = True
