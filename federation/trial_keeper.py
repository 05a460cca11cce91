"""Sees to a trial where its gateway does not; a task of `up`, which starts that again when it has ended."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from pathlib import Path

from federation.config import GroupFile
from federation.trial import Overdue, Trial, TrialError, TrialFile
from local_group.errors import MoonmeshError
from local_group.state import ProcessId, read_state

LOOK_SECONDS = 1.0


async def keep_trials(group: GroupFile) -> None:
    """Never returns. Without a trial it costs a look at a file's date a second."""
    keeper = TrialKeeper(group)
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        with contextlib.suppress(
            OSError, MoonmeshError
        ):  # the disk may be well again at the next look
            await asyncio.to_thread(keeper.look, time.monotonic())


class TrialKeeper:
    """What `keep_trials` does at a look."""

    def __init__(self, group: GroupFile) -> None:
        self._group = group
        self._trials = TrialFile(group.data_dir)
        self._overdue = Overdue()
        self._date: int | None = None
        self._trial: Trial | None = None

    def look(self, now: float) -> None:
        """Ends a gateway that hangs, and takes back what it has not decided.

        Raises:
            OSError, MoonmeshError: a file cannot be read.
        """
        date = _date(self._trials.path)
        if date != self._date:
            self._date, self._trial = date, self._trials.read()
        trying = self._trial is not None and self._trial.state == "trying"
        running = trying and gateway_of(self._group) is not None
        due = self._overdue.look(self._trial, running, now)
        if due == "decide" and (latest := self._trials.read()) == self._trial and latest:
            # Where it cannot be put back, the next gateway tries to before it reads anything.
            with contextlib.suppress(TrialError):
                self._trials.take_back(latest, "the gateway did not decide in time")
        if due:
            end_gateway(self._group, hard=True)


def gateway_of(group: GroupFile) -> ProcessId | None:
    """The gateway's process, if it runs.

    Raises:
        GroupError: the group is another user's.
    """
    state = read_state(group.state_file)
    child = state.children.get("gateway") if state is not None else None
    if child is None or child.process is None or not child.process.alive():
        return None
    return child.process


def end_gateway(group: GroupFile, *, hard: bool = False) -> bool:
    """Ends the gateway, which `up` starts anew; False if none runs.

    Args:
        hard: it cannot refuse; else it ends as it should.
    """
    process = gateway_of(group)
    if process is not None:
        process.signal(signal.SIGKILL if hard else signal.SIGTERM)
    return process is not None


def _date(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None
