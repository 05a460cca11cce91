"""Something that is measured, in a process of its own: asked over a pipe, it answers with numbers."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, Final

from federation.bench.engines import BenchError

ANSWER_S: Final = 60.0
"""Longest wait for one answer: Mooncake's own timeouts are shorter."""

Work = Callable[[str, Mapping[str, Any]], float]
"""Does what is asked; a number, most often the milliseconds that it took."""


class WorkerError(BenchError):
    """What was to be measured has failed."""


class Worker:
    """The process, and the pipe to it.

    Args:
        make: makes the work, in the process; it and `args` are pickled.
        name: for errors.
    """

    def __init__(self, name: str, make: Callable[..., Work], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_main, args=(make, args, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.name = name

    def ready(self) -> None:
        """Waits until the work is made.

        Raises:
            WorkerError: if that fails.
        """
        self._answer("start")

    def ask(self, what: str, **about: Any) -> float:
        """Has something done, and waits for it.

        Raises:
            WorkerError: if it fails, or the process ends or hangs.
        """
        self.begin(what, **about)
        return self.end(what)

    def begin(self, what: str, **about: Any) -> None:
        """Has something done; `end` waits for it."""
        try:
            self._pipe.send((what, about))
        except OSError as error:
            raise WorkerError(f"its process has ended ({what})", where=self.name) from error

    def end(self, what: str) -> float:
        """See `begin`."""
        return self._answer(what)

    def seconds(self) -> float:
        """Seconds of a processor that the process has used so far."""
        return self.ask(CPU)

    def close(self) -> None:
        """Ends the process; what it has of Mooncake goes with it."""
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def _answer(self, what: str) -> float:
        try:
            answered = self._pipe.poll(ANSWER_S)
            found = self._pipe.recv() if answered else f"no answer in {ANSWER_S:.0f} s"
        except (EOFError, OSError):
            found = "its process has ended"
        if isinstance(found, str):
            raise WorkerError(f"{what}: {found}", where=self.name)
        return float(found)


CPU: Final = "cpu"


def _main(make: Callable[..., Work], args: tuple[Any, ...], pipe: Connection) -> None:
    try:
        work = make(*args)
        pipe.send(0.0)
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
        return
    while True:
        what, about = pipe.recv()
        try:
            pipe.send(time.process_time() if what == CPU else work(what, about))
        except Exception as error:
            pipe.send(f"{type(error).__name__}: {error}")
