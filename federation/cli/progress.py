"""How a long command shows that it goes on: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from federation.bench.tally import Tally

LINE_EVERY = 0.1
"""Share of the requests after which a plain line is printed."""


class ReplayProgress:
    """The `federation.bench.replay.Progress` of the command line. Everything goes to stderr."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._mode = ""
        self._total = 0
        self._next = 0.0

    def say(self, text: str) -> None:
        """One line."""
        self._end_bar()
        self._console.print(text, style="dim", markup=False)

    def begin(self, mode: str, requests: int) -> None:
        """A mode begins to send."""
        self._mode, self._total, self._next = mode, requests, LINE_EVERY
        if not self._console.is_terminal:
            self.say(f"{mode}: {requests} requests")
            return
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[found]}"),
            console=self._console,
            refresh_per_second=4,
        )
        self._task = self._bar.add_task(mode, total=requests, found="")
        self._bar.start()

    def advance(self, tally: Tally) -> None:
        """An answer came."""
        found = f"local {tally.local_hits} peer {tally.peer_hits} miss {tally.misses}"
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=tally.requests, found=found)
            if tally.requests >= self._total:
                self._end_bar()
        elif tally.requests >= self._next * self._total:
            self._next = tally.requests / self._total + LINE_EVERY
            self.say(f"{self._mode}: {tally.requests}/{self._total}  {found}")

    def close(self) -> None:
        self._end_bar()

    def _end_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None
