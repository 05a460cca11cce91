"""Live progress of a run: what goes on now, and a line for each scenario that has ended."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.status import Status
from rich.text import Text

from chaos.runner import Result


class ConsoleProgress:
    """On a terminal a line that changes; otherwise a line a step.

    Args:
        console: where to.
        total: scenarios that are to come, rounds counted.
    """

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._done = 0
        self._name = ""
        self._began = time.monotonic()
        self._status: Status | None = console.status("starting") if console.is_terminal else None

    def __enter__(self) -> ConsoleProgress:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, line: str) -> None:
        """A step."""
        text = f"{self._name}: {line}" if self._name else line
        if self._status is not None:
            self._status.update(f"[{self._done}/{self._total}] {text}")
        else:
            self._console.print(Text(f"  {text}", "dim"))

    def begin(self, name: str, round_: int) -> None:
        """A scenario starts."""
        self._name = name if round_ == 0 else f"{name} (round {round_ + 1})"
        self.say("load")

    def result(self, result: Result) -> None:
        """A scenario has ended."""
        self._done += 1
        self._name = ""
        word, style = ("held", "green") if result.held else ("BROKEN", "bold red")
        if result.error:
            word = "not finished" if result.interrupted else "NOT RUN"
        if result.skipped:
            word, style = "not run", "yellow"
        at = time.monotonic() - self._began
        line = Text.assemble(
            f"{at:6.1f} s  ", (f"{word:7} ", style), f"{result.name} ({result.seconds:.1f} s)"
        )
        self._console.print(line)
